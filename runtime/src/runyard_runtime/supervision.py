"""Watches the ranks of one node until all are over, and ends them when they must end."""

import errno
import os
import select
import signal
import time

from runyard_runtime import processes

_ADOPTED_LOOK = 0.05  # ranks of an earlier agent are not our children: nobody tells us
_LONG_LOOK = 1.0
_LEFTOVER_GRACE = 1.0  # daemons of a script that is over

STOPPED = "stopped"
TIMED_OUT = "timed out"
RANK_FAILED = "rank failed"


class Wake:
    """Wakes the main thread from signals and from other threads."""

    def __init__(self):
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self.asked_to_stop = False

    def catch_signals(self):
        """From now on SIGTERM and SIGINT ask for a stop, and the end of a child wakes."""
        signal.set_wakeup_fd(self._writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def stop(self):
        """Ask for a stop; from any thread."""
        self.asked_to_stop = True
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            pass  # full of wake-ups already

    def wait(self, seconds):
        """Until something happens, at most that long."""
        try:
            select.select([self._reader], [], [], max(seconds, 0))
            while os.read(self._reader, 512):
                pass
        except (BlockingIOError, InterruptedError):
            pass

    def _stop(self, number, frame):
        self.asked_to_stop = True


class Supervisor:
    """Waits for ranks; stops them all when one fails, the time is up, or somebody asks."""

    def __init__(self, ranks, wake, grace, deadline, marker, note):
        self.ranks = ranks
        self.reason = None  # why the ranks were ended, if they were
        self.keepers = frozenset(rank.keeper for rank in ranks)
        self.is_subreaper = False
        self._wake = wake
        self._grace = grace
        self._deadline = deadline  # seconds since the epoch, or None
        self._marker = marker
        self._note = note
        self._kill_at = None
        self._reaped = {}

    def run(self, remember):
        """Until every rank is over. `remember(reason)` is called before ranks are ended."""
        while True:
            self._look()
            running = [rank for rank in self.ranks if rank.exit_code is None]
            if not running:
                return
            reason = self.reason or self._why_end()
            if reason and self._kill_at is None:
                self.reason = reason
                remember(reason)
                self._note("ending the ranks: %s" % reason)
                for rank in running:
                    rank.send(signal.SIGTERM)
                self._kill_at = time.monotonic() + self._grace
            elif self._kill_at is not None and time.monotonic() >= self._kill_at:
                for rank in running:
                    rank.send(signal.SIGKILL)
            self._wake.wait(self._pause(running))

    def end_leftovers(self):
        """End what the ranks left running: daemons, background jobs. What could not be ended."""
        ours = all(rank.is_child for rank in self.ranks)
        if ours and self.is_subreaper and not self._has_children():
            return set()  # whatever was orphaned came to us: nothing can be left
        return processes.end_processes(self._leftovers, min(self._grace, _LEFTOVER_GRACE))

    def processes(self):
        """The live processes of the job on this node, without agent and keepers."""
        roots = self.keepers | {os.getpid()}
        return processes.job_processes(self._marker, roots)

    def _leftovers(self):
        self._reap()
        return self.processes()

    def first_failure(self):
        """The rank that failed first, or None."""
        failed = [rank for rank in self.ranks if rank.exit_code]
        return min(failed, key=lambda rank: (rank.ended_at, rank.number)) if failed else None

    def _look(self):
        self._reap()
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.look(self._reaped)
                if rank.is_lost:
                    self._note("rank %d is over; its exit code is not known" % rank.number)
                elif rank.exit_code is not None:
                    self._note("rank %d ended with exit code %d" % (rank.number, rank.exit_code))

    def _reap(self):
        """Collect ended children; False if there are no children at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError as error:
                if error.errno == errno.ECHILD:
                    return False
                raise
            if pid == 0:
                return True
            self._reaped[pid] = status

    def _has_children(self):
        # A keeper ends a moment after its note; it is no leftover.
        deadline = time.monotonic() + 0.05
        while self._reap():
            if time.monotonic() >= deadline:
                return True
            self._wake.wait(0.01)
        return False

    def _why_end(self):
        if self._wake.asked_to_stop:
            return STOPPED
        if self._deadline is not None and time.time() >= self._deadline:
            return TIMED_OUT
        if any(rank.exit_code for rank in self.ranks):
            return RANK_FAILED
        return None

    def _pause(self, running):
        pause = _LONG_LOOK if all(rank.is_child for rank in running) else _ADOPTED_LOOK
        if self._kill_at is not None:
            left = self._kill_at - time.monotonic()
            return min(pause, max(left, 0.05))
        if self._deadline is not None:
            pause = min(pause, self._deadline - time.time())
        return max(pause, 0.0)
