"""A thread that does something every so many seconds until it is told to end."""

import threading


class Periodic(threading.Thread):
    """Calls `work` every `seconds`, the first time after `first`. One bad time is not the last."""

    def __init__(self, name, seconds, work, note, first=None):
        threading.Thread.__init__(self, name=name, daemon=True)
        self._seconds = seconds
        self._first = seconds if first is None else first
        self._work = work
        self._note = note
        self._over = threading.Event()

    def run(self):
        pause, said = self._first, None
        while not self._over.wait(pause):
            pause = self._seconds
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - what it does is not worth the job
                text = "%s failed: %s: %s" % (self.name, type(error).__name__, error)
                if text != said and not self._over.is_set():
                    self._note(text)  # once: it may go on failing for hours
                said = text

    def end(self):
        """Do it no more."""
        self._over.set()
