"""Watches the ranks of one node until all are over, and ends them when they must end."""

import errno
import os
import select
import signal
import time

from runyard_runtime import processes

_ADOPTED_LOOK = 0.05  # of other nodes, and ranks that are not our children, nobody tells us
_LONG_LOOK = 1.0
_LEFTOVER_GRACE = 1.0  # daemons of a script that is over
# A rank that lost another often ends sooner than the one that failed, which still says why and
# tidies up. So long that one may end by itself; then it is seen which of them was the cause.
_CAUSE_PATIENCE = 2.0
_FAILED_GRACE = 3.0  # the other ranks of one that failed have nothing more to save

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
        self.heard_signal = False  # it was somebody of this machine who asked

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
        self.asked_to_stop = self.heard_signal = True


class Supervisor:
    """Waits for ranks; stops them all when one fails, the time is up, or somebody asks.

    `starter` is what started them (see `ranks`). In a job of several nodes `gang` says what
    happens on the others; `idle_ranks`, in a job whose ranks do not all end by themselves, ends
    those that have nothing left to do.
    """

    def __init__(self, ranks, wake, grace, deadline, marker, note, starter):
        self.ranks = ranks
        self.reason = None  # why the ranks were ended, if they were
        self.ending_since = None  # seconds since the epoch; who ends later was ended by us
        self.is_subreaper = False
        self.gang = None
        self.idle_ranks = None
        self.is_consequence = lambda rank: False  # that failed: did it because another had?
        self.starter = starter
        self._wake = wake
        self._grace = grace
        self._deadline = deadline  # seconds since the epoch, or None
        self._marker = marker
        self._note = note
        self._kill_at = None
        self._reaped = {}

    def run(self, remember):
        """Until every rank is over; for the leader of a gang, until those of all nodes are.

        `remember(reason, since)` is called before ranks are ended.
        """
        while True:
            self._look()
            running = [rank for rank in self.ranks if rank.exit_code is None]
            told = self._look_around(running)
            is_over = not running and self.starter.is_over()
            if is_over and (self.gang is None or self.gang.is_over()):
                return
            reason = self.reason or self._why_end() or told
            if reason and self._kill_at is None:
                self._begin_to_end(reason, running, remember)
            elif self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._send(running, signal.SIGKILL)
            self._wake.wait(self._pause(running))

    def starter_failure(self):
        """How what starts the ranks failed by itself, as a candidate for the job's error; or None.

        One that failed after all ranks ended well harmed nobody.
        """
        failure = self.starter.failure()
        if failure is None or all(one.exit_code == 0 for one in self.ranks):
            return None
        by_us = self.ending_since is not None and failure["ended_at"] >= self.ending_since
        return None if by_us else failure

    def end_leftovers(self):
        """End what the ranks left running: daemons, background jobs. What could not be ended."""
        self.starter.close()
        ours = all(rank.is_child for rank in self.ranks) and not self.starter.pids()
        if ours and self.is_subreaper and not self._has_children():
            return set()  # whatever was orphaned came to us: nothing can be left
        return processes.end_processes(self._leftovers, min(self._grace, _LEFTOVER_GRACE))

    def processes(self):
        """The live processes of the job on this node, without agent, keepers and starter."""
        keepers = {pid for rank in self.ranks for pid in rank.keeper_pids()}
        roots = keepers | {os.getpid()} | set(self.starter.pids())
        return processes.job_processes(self._marker, roots)

    def is_ended_by_us(self, rank):
        """True if the rank ended after we began to end all, so that its end says little."""
        return self.ending_since is not None and rank.ended_at >= self.ending_since

    def first_failure(self):
        """The rank that failed first, or None."""
        failed = [rank for rank in self.ranks if rank.has_failed]
        return min(failed, key=lambda rank: (rank.ended_at, rank.number)) if failed else None

    def failure_to_end_for(self):
        """The rank that failed first, once all others must end for it; None before."""
        first = self.first_failure()
        is_alone = self.gang is None and len(self.ranks) == 1
        if first is None or is_alone or self._patience_left(first) <= 0:
            return first
        failed = [rank for rank in self.ranks if rank.has_failed]
        return None if all(self.is_consequence(rank) for rank in failed) else first

    def _patience_left(self, first):
        return first.ended_at + _CAUSE_PATIENCE - time.time()

    def _leftovers(self):
        self._reap()
        return self.processes()

    def _look(self):
        self._reap()
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.look(self._reaped)
                if rank.is_expected and self.starter.is_over():
                    rank.look(self._reaped)  # it may have come since
                    if rank.is_expected:
                        rank.give_up()
                self._say_end(rank)

    def _say_end(self, rank):
        if rank.is_lost:
            self._note("%s is over; its exit code is not known" % rank.called)
        elif rank.exit_code is not None:
            self._note("%s ended with exit code %d" % (rank.called, rank.exit_code))

    def _look_around(self, running):
        """Look at what is not ours to wait for: other nodes, starters; a reason to end, or None."""
        good = {one.number for one in self.ranks if one.exit_code is not None}
        good -= {one.number for one in self.ranks if one.has_failed}
        told, notes = None, ()
        if self.gang is not None:
            told, notes = self.gang.look(self, good)
            good |= self.gang.good
        self.starter.look(notes, self._reaped)
        self._reaped.clear()  # all who wait for a child have seen it; numbers are used again
        if self.idle_ranks is not None:
            self.idle_ranks.look(running, good)
        return told

    def _begin_to_end(self, reason, running, remember):
        self.reason = reason
        self.ending_since = self.ending_since or time.time()
        remember(reason, self.ending_since)
        if running:
            self._note("ending the ranks: %s" % reason)
        grace = self._grace if reason != RANK_FAILED else min(self._grace, _FAILED_GRACE)
        self._kill_at = time.monotonic() + grace
        for rank in running:
            if rank.restarts:
                rank.let_go()  # or its keeper would start it again
        self._send(running, signal.SIGTERM)

    def _send(self, running, number):
        for rank in running:
            rank.send(number)
        self.starter.send(number)

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
        if self.failure_to_end_for() is not None or self.starter_failure() is not None:
            return RANK_FAILED
        return None

    def _pause(self, running):
        is_told = self.gang is None and all(rank.is_child for rank in running)
        pause = _LONG_LOOK if is_told else _ADOPTED_LOOK
        first = self.first_failure()
        if first is not None:
            pause = min(pause, max(self._patience_left(first), 0.05))
        if self._kill_at is not None:
            left = self._kill_at - time.monotonic()
            return min(pause, max(left, 0.05))
        if self._deadline is not None:
            pause = min(pause, self._deadline - time.time())
        return max(pause, 0.0)
