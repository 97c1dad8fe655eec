"""`dataset.mount()`: a dataset as a folder on this machine."""

import atexit
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runyard.sdk.exceptions import user_error
from runyard.sdk.session import Session
from runyard.settings import GIGABYTE
from runyard_runtime import processes
from runyard_runtime.mounting import Mount, MountFailed

if TYPE_CHECKING:
    from runyard.sdk.file_dataset import FileDataset

# The same process that mounts inputs of runs. -P: this folder is not where modules come from.
MOUNTER = (sys.executable, "-P", "-m", "runyard.data.mount")


class MountContext:
    """A dataset as a folder, from `start()` to `stop()`; a `with` statement does both.

    Mounted by FUSE where this machine allows that: files are fetched when they are read. Else
    they are downloaded into the folder.
    """

    def __init__(self, dataset: "FileDataset", mount_point: str | os.PathLike[str] | None) -> None:
        self._dataset = dataset
        self._own = mount_point is None
        chosen = tempfile.mkdtemp(prefix="runyard-") if mount_point is None else mount_point
        self._folder = Path(os.fspath(chosen)).expanduser().absolute()
        self._notes: str | None = None  # the folder of the mount process's own files
        self._mount: Any = None
        self._copied: list[Path] = []
        self._started = False

    @property
    def mount_point(self) -> str:
        """The folder."""
        return str(self._folder)

    def start(self) -> None:
        """Have the files in the folder."""
        if self._started:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise user_error(
                f"'{self._folder}' is not empty.",
                why="What is in it would be mixed with the dataset.",
                fix="Choose an empty folder, or leave mount_point out.",
            )
        resolved = self._dataset._resolved()
        self._notes = tempfile.mkdtemp(prefix="runyard-mount-")
        mounted = os.path.join(self._notes, "files")
        mount = Mount("dataset", mounted, MOUNTER, self._notes, os.path.join(self._notes, "log"))
        try:
            session = self._dataset._place()._session
            mount.start(plan_mount(session), msgspec.to_builtins(resolved), time.sleep)
            self._mount = mount
            self._folder.rmdir()  # it is empty; a link stands in its place for the while
            self._folder.symlink_to(mounted)
            atexit.register(self._stop_at_exit, os.getpid())
        except MountFailed:
            self._copied = self._dataset._fetch(resolved.files, self._folder, overwrite=False)
        self._started = True

    def stop(self) -> None:
        """Take the files out of the folder again."""
        atexit.unregister(self._stop_at_exit)
        if self._mount is not None:
            self._folder.unlink()
            self._folder.mkdir()
            self._mount.end()
            with suppress(ChildProcessError):
                os.waitpid(self._mount.note()["pid"], os.WNOHANG)  # it was our child
            self._mount = None
        elif self._copied:
            for entry in self._folder.iterdir():  # it was empty before
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            self._copied = []
        if self._notes is not None:
            shutil.rmtree(self._notes, ignore_errors=True)
            self._notes = None
        if self._own and self._folder.exists():
            self._folder.rmdir()
        self._started = False

    def _stop_at_exit(self, pid: int) -> None:
        if pid == os.getpid():  # the end of a child that was forked is not ours
            self.stop()

    def __enter__(self) -> "MountContext":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def plan_mount(session: Session) -> dict[str, object]:
    """What the mount process is told: the keys of an agent's plan that it reads."""
    settings, client = session.settings, session.client
    me = os.getpid()
    return {
        "run_id": "",
        "parent": [me, processes.start_time(me)],
        "url": client.url,
        "token": client.token,
        "cache": str(settings.home / "cache"),
        "cache_bytes": int(settings.cache_gb * GIGABYTE),
        "fetching": {"mirrors": settings.mirrors, "allow_private": True, "max_bytes": None},
    }
