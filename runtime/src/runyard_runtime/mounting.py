"""A mount of a job as its agent sees it: a process that outlives the agent and is found again."""

import json
import os
import signal
import subprocess
import time

from runyard_runtime import job_folder, mounts, processes, wire

_READY_SECONDS = 30.0
_END_SECONDS = 5.0
_CONFIG = (
    "url",
    "token",
    "address_file",
    "blobs",
    "cache",
    "cache_bytes",
    "fetching",
    "run_id",
    "parent",
)


class MountFailed(Exception):
    """It cannot be mounted here; the text says why."""


class Mount:
    """One mounted input, and the process behind it.

    `link` is the path for scripts: it leads to the mount, and to plain files once all is fetched.
    """

    def __init__(self, name, link, command, folder, log, pid=0, start=0):
        beside, own = os.path.split(link)
        # A quoted name holds no "@", so these are nobody's.
        self._point = os.path.join(beside, "@mount-" + own)
        self._plain = os.path.join(beside, "@plain-" + own)
        self.name = name
        self._link = link
        self._command = command
        self._folder = folder  # for the files that the process is told by
        self._log = log
        self._pid = pid
        self._start = start
        self.restarts = 0

    @classmethod
    def found(cls, note):
        """The mount that an earlier agent noted."""
        return cls(**note)

    def note(self):
        """What a later agent needs to find it."""
        return {
            "name": self.name,
            "link": self._link,
            "command": self._command,
            "folder": self._folder,
            "log": self._log,
            "pid": self._pid,
            "start": self._start,
        }

    def start(self, plan, resolved, pause):
        """Mount; MountFailed if it cannot be done on this machine."""
        job_folder.write_atomically(self._file("files"), json.dumps(resolved).encode("utf-8"))
        config = {key: plan.get(key) for key in _CONFIG}
        config.update(log=self._log, link=self._link, plain=self._plain)
        config["cache"] = config["cache"] or os.path.join(self._folder, "cache")
        job_folder.write_atomically(self._file("config"), json.dumps(config).encode("utf-8"))
        self.restart(pause)

    def restart(self, pause):
        """Mount what was mounted before."""
        mounts.clear(self._point)
        os.makedirs(self._point, exist_ok=True)
        if not os.path.islink(self._link):
            os.symlink(self._point, self._link)
        status = self._file("status")
        if os.path.exists(status):
            os.unlink(status)
        self._spawn(status)
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            known = job_folder.read_json(status)
            if known is not None and known.get("ready"):
                return
            if known is not None or not self.is_alive() or time.monotonic() > deadline:
                self.end()
                os.unlink(self._link)
                raise MountFailed((known or {}).get("why") or "the mount process ended at once")
            pause(0.01)

    def is_served(self):
        """True while scripts can read: its process runs, or is not needed any more."""
        return self.is_alive() or os.path.realpath(self._link) == os.path.realpath(self._plain)

    def is_alive(self):
        """True while its process runs."""
        return processes.is_alive(self._pid, self._start)

    def end(self):
        """Unmount and end the process, however it is."""
        if self.is_alive():
            processes.send(self._pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        mounts.clear(self._point)
        if self.is_alive():
            processes.send(self._pid, signal.SIGKILL)

    def _spawn(self, status):
        words = [self._point, self._file("files"), self._file("config"), status]
        errors = os.path.join(self._folder, "mount.log")
        marked = {wire.JOB_KEY: processes.job_marker(os.path.dirname(self._folder))}
        try:
            with open(errors, "ab") as log:
                started = subprocess.Popen(
                    list(self._command) + words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=dict(os.environ, **marked),
                )
        except OSError as error:
            raise MountFailed("%s cannot be run: %s" % (self._command[0], error.strerror))
        started.returncode = 0  # the supervisor collects it; a warning at the end is not wanted
        self._pid, self._start = started.pid, processes.start_time(started.pid)

    def _file(self, kind):
        return os.path.join(self._folder, "mount-%s.%s" % (os.path.basename(self._link), kind))
