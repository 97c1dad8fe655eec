"""Ends ranks that have nothing left to do, in jobs with parameter servers.

A parameter server never ends by itself, and neither does a worker of TensorFlow 2 that only lends
itself to worker 0. So when all ranks that do end are over and good, the servers are told to end;
and when worker 0 ended well, so is a worker that does nothing for a while. Their ends are good.
"""

import os
import signal
import time

from runyard_runtime import processes

# A worker of TensorFlow 1 looks only every 30 s whether the chief has made the session ready, and
# does nothing in between: it must not be taken for one that has nothing left to do.
IDLE_SECONDS = 45.0
_LOOK_SECONDS = 1.0
_BUSY_SHARE = 0.02  # of a core: a process that only waits still looks at its clocks
_GRACE = 3.0


class IdleRanks:
    """What is known of such a job on one node. `numbers` are the ranks that end, of all nodes."""

    def __init__(self, numbers, marker, note, idle_seconds=IDLE_SECONDS, now=time.monotonic):
        self._ending = frozenset(numbers)
        self._marker = marker
        self._note = note
        self._idle_seconds = idle_seconds
        self._now = now
        self._looked = None
        self._since = {}  # rank → (when it last did something, its ticks then)
        self._kill_at = {}

    def look(self, running, good):
        """Tell those of `running` to end that have nothing left to do.

        `good` are the numbers of the ranks, of all nodes, that are over and good.
        """
        for rank in self._without_work(running, good):
            if rank not in self._kill_at:
                self._note("ending %s: nothing is left for it to do" % rank.called)
                rank.let_go()
                rank.send(signal.SIGTERM)
                self._kill_at[rank] = self._now() + _GRACE
        for rank, when in self._kill_at.items():
            if rank.exit_code is None and self._now() >= when:
                rank.send(signal.SIGKILL)

    def _without_work(self, running, good):
        if self._ending <= good:
            return [rank for rank in running if rank.serves]
        if 0 not in good:
            return []
        return self._idle([rank for rank in running if not rank.serves])

    def _idle(self, running):
        now = self._now()
        if self._looked is not None and now < self._looked + _LOOK_SECONDS:
            return []
        self._looked = now
        ticks = ticks_of(running, self._marker)
        hertz = os.sysconf("SC_CLK_TCK")
        for rank in running:
            at, before = self._since.setdefault(rank, (now, ticks[rank]))
            if abs(ticks[rank] - before) > max((now - at) * hertz * _BUSY_SHARE, 2):
                self._since[rank] = (now, ticks[rank])
        return [rank for rank in running if now - self._since[rank][0] >= self._idle_seconds]


def ticks_of(ranks, marker):
    """{rank: CPU time that its live processes have used, in ticks}."""
    found = processes.job_processes(marker, ())
    used = dict.fromkeys(ranks, 0)
    for rank in ranks:
        # By its variable: in a container the rank's processes are not our children.
        text = b"RUNYARD_RANK=%d\0" % rank.number
        used[rank] = sum(
            one.ticks for pid, one in found.items() if text in processes.environment(pid)
        )
    return used
