"""Turns a mount into plain files once all of it has been fetched.

The path that scripts are given is a link to the mount. Every content that is whole is also laid out
below a folder of its own; when the last one is there, the link is turned to that folder. Later
epochs then cost what a local disk costs, and FUSE has no part in them. Whoever still has the mount
open may go on with it.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Sequence

from runyard_runtime.cache import Cache
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.origins import File


class PlainFiles:
    """The growing folder beside a mount, and the link that is turned to it."""

    def __init__(self, files: Sequence[File], cache: Cache, link: str, folder: str) -> None:
        self._cache = cache
        self._link = link
        self._folder = folder
        self._left = {file.path for file in files}
        self._lock = threading.Lock()
        self._slow: queue.SimpleQueue[File] = queue.SimpleQueue()
        for name in {os.path.dirname(file.path) for file in files}:
            os.makedirs(os.path.join(folder, name), exist_ok=True)

    def start(self) -> None:
        """Start the thread that copies what cannot simply be linked."""
        threading.Thread(target=self._copy, daemon=True).start()

    def add(self, file: File, place: str) -> None:
        """A content is whole at that place of the cache. It cannot be evicted from now on."""
        if self.link(file, place):
            self.count(file)
        else:
            self._cache.hold(place)

    def link(self, file: File, place: str) -> bool:
        """Lay one out; False if that cannot be, because the cache is on another disk."""
        try:
            os.link(place, self.path(file))
        except FileExistsError:
            return True
        except OSError:
            return False
        return True

    def path(self, file: File) -> str:
        """Where it is once it is laid out."""
        return os.path.join(self._folder, file.path)

    def add_later(self, file: File) -> None:
        """A content is on this machine, but must be copied into the cache before it is linked."""
        self._slow.put(file)

    def _copy(self) -> None:
        while True:
            file = self._slow.get()
            try:
                self._cache.lay(file, self.path(file), private=False)
            except FetchFailed:
                return  # no room: then it stays a mount
            self.count(file)

    def count(self, file: File) -> None:
        """One more is laid out; with the last one the link is turned."""
        with self._lock:
            self._left.discard(file.path)
            if self._left or os.path.realpath(self._link) == os.path.realpath(self._folder):
                return
            turned = self._link + ".turned"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(turned)  # of a process that was killed right here
            os.symlink(self._folder, turned)
            os.rename(turned, self._link)
