"""Mounts the files of a dataset, read-only, until it is told to end.

    python -m runyard.data.mount MOUNTPOINT FILES CONFIG STATUS

FILES is a JSON `ResolvedData`. CONFIG, which only its owner may read because the run's token is in
it, is JSON with keys of the plan (url, token, address_file, blobs, cache, cache_bytes, fetching,
run_id); `log`, where complaints go; `link` and `plain`, see `mount_plain`; and perhaps `parent`,
the [pid, start time] of the process that the mount is for alone. STATUS is written when the mount
can be used ({"ready": true}) or cannot be had ({"ready": false, "why": …}). SIGTERM unmounts; so
does the removal of CONFIG, because then the job is gone. So does the end of the parent, after which
the folder of CONFIG is nobody's and is removed.

Nothing is ever asked twice of this process: names and attributes are valid for ever, the kernel
keeps what was read, and `open` is answered with ENOSYS, after which the kernel opens files by
itself. And once all is fetched, plain files take the mount's place.
"""

import contextlib
import errno
import importlib
import json
import logging
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from runyard.data.mount_contents import Contents
from runyard.data.mount_plain import PlainFiles
from runyard_runtime import job_folder, mounts, processes
from runyard_runtime.cache import UNTOUCHED, Cache
from runyard_runtime.origins import File, Origins, files_of

FOREVER = 10 * 365 * 86400.0
READ_AHEAD_KB = 4096
_LOOK_SECONDS = 2.0
_UNLIMITED = 1 << 62

Attributes = dict[str, int]


class View:
    """The folders and files of a dataset, as FUSE asks for them."""

    use_ns = True  # times are in nanoseconds; mfusepy asks

    def __init__(
        self, files: Sequence[File], contents: Contents, ready: Callable[[], None]
    ) -> None:
        self._contents = contents
        self._ready = ready
        self._files = {"/" + file.path: file for file in files}
        self._folders: dict[str, dict[str, int]] = {"/": {}}
        for path in self._files:
            self._add(path, stat.S_IFREG | 0o444)
        self._owner = os.getuid(), os.getgid()

    def init(self, path: str) -> None:
        """Called once it is mounted."""
        self._contents.start()
        self._ready()

    def getattr(self, path: str, handle: int | None = None) -> Attributes:
        """What stat() says."""
        file = self._files.get(path)
        if file is not None:
            return self._attributes(stat.S_IFREG | 0o444, self._contents.size(file), 1)
        if path not in self._folders:
            raise OSError(errno.ENOENT, path)
        return self._attributes(stat.S_IFDIR | 0o555, 4096, 2)

    def readdir(self, path: str, handle: int) -> Iterator[tuple[str, Attributes, int]]:
        """The names in a folder."""
        for name in (".", ".."):
            yield name, {"st_mode": stat.S_IFDIR | 0o555}, 0
        for name, mode in self._folders[path].items():
            yield name, {"st_mode": mode}, 0

    def open(self, path: str, flags: int) -> int:
        """Answered once with "not needed": the kernel does not ask again, for any file."""
        raise OSError(errno.ENOSYS, path)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        """Some bytes of a file."""
        return self._contents.read(self._files[path], offset, size)

    def statfs(self, path: str) -> dict[str, int]:
        """What df says: full, because nothing can be written."""
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1, "f_namemax": 255}

    def _add(self, path: str, mode: int) -> None:
        while path != "/":
            folder, _, name = path.rpartition("/")
            names = self._folders.setdefault(folder or "/", {})
            if name in names:
                return
            names[name] = mode
            path, mode = folder or "/", stat.S_IFDIR | 0o555

    def _attributes(self, mode: int, size: int, links: int) -> Attributes:
        return {
            "st_mode": mode,
            "st_nlink": links,
            "st_size": size,
            "st_blocks": (size + 511) // 512,
            "st_uid": self._owner[0],
            "st_gid": self._owner[1],
            # As in the cache, so that nothing changes when plain files take our place.
            "st_mtime": UNTOUCHED,
            "st_ctime": UNTOUCHED,
            "st_atime": UNTOUCHED,
        }


def main(arguments: Sequence[str]) -> int:
    """Mount, serve, unmount; the exit code."""
    point, files_path, config_path, status_path = arguments

    said: list[bool] = []

    def say(*, ready: bool, why: str = "") -> None:
        said.append(ready)
        status = json.dumps({"ready": ready, "why": why}).encode()
        job_folder.write_atomically(status_path, status)

    logging.basicConfig(level=logging.WARNING)
    config = job_folder.read_json(config_path)
    resolved = job_folder.read_json(files_path)
    if config is None or resolved is None:
        say(ready=False, why="its files are missing or damaged")
        return 1
    fuse, why = load_fuse()
    if fuse is None:
        say(ready=False, why=why)
        return 1
    origins = Origins(config, is_wanted=lambda: os.path.exists(config_path))
    limit = config.get("cache_bytes") or _UNLIMITED
    cache = Cache(config["cache"], limit, origins, config.get("run_id") or "")
    files = files_of(resolved)
    plain = PlainFiles(files, cache, config["link"], config["plain"])
    contents = Contents(
        files, cache, origins, plain, lambda text: append_line(config.get("log"), text)
    )
    contents.fork()
    view = View(files, contents, lambda: _when_mounted(point, lambda: say(ready=True)))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal's end is not the job's
    parent = config.get("parent")
    threading.Thread(target=_end_with_job, args=(config_path, parent, point), daemon=True).start()
    try:
        serve(fuse, view, point)
    except (RuntimeError, OSError) as error:
        if not said:  # afterwards it is how libfuse tells of a signal
            say(ready=False, why=f"FUSE refused: {error}")
            return 1
    finally:
        if _is_orphan(parent):
            shutil.rmtree(os.path.dirname(config_path), ignore_errors=True)
        cache.let_go()
        cache.make_room()
    return 0


def load_fuse() -> tuple[ModuleType | None, str]:
    """The FUSE library, or None and why it cannot be used here."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return None, "/dev/fuse cannot be used here"
    try:
        mfusepy = importlib.import_module("mfusepy")
    except (ImportError, OSError, AttributeError) as error:
        return None, f"FUSE is not installed ({error}); Debian has it in the package fuse3"
    return mfusepy, ""


def serve(fuse: ModuleType, view: View, point: str) -> None:
    """Mount and answer until unmounted. libfuse unmounts at SIGTERM by itself."""
    fuse.FUSE(
        view,
        point,
        foreground=True,
        ro=True,
        fsname="runyard",
        subtype="runyard",
        kernel_cache=True,
        attr_timeout=FOREVER,
        entry_timeout=FOREVER,
        negative_timeout=FOREVER,
    )


def append_line(path: str | None, text: str) -> None:
    """Add a line to the agent's account of the job."""
    if path:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as log:
            log.write(f"{stamp} {text}\n")


def _when_mounted(point: str, ready: Callable[[], None]) -> None:
    """Tell that it can be used. libfuse calls us a moment before it answers anybody."""

    def wait() -> None:
        os.stat(point)  # answered by the threads that serve
        _read_further_ahead(point)
        ready()

    threading.Thread(target=wait, daemon=True).start()


def _read_further_ahead(point: str) -> None:
    """Have the kernel ask for large pieces, where we may say so (root)."""
    device = os.stat(point).st_dev
    path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as setting:
        setting.write(str(READ_AHEAD_KB))


def _end_with_job(config_path: str, parent: list[int] | None, point: str) -> None:
    while os.path.exists(config_path) and not _is_orphan(parent):
        time.sleep(_LOOK_SECONDS)
    mounts.unmount(point)


def _is_orphan(parent: list[int] | None) -> bool:
    return parent is not None and not processes.is_alive(*parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
