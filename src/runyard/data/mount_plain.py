"""Turns a mount into plain files once all of it has been fetched.

The path that scripts are given is a link to the mount. Every content that is whole is also laid out
below a folder of its own; when the last one is there, the link is turned to that folder. Later
epochs then cost what a local disk costs, and FUSE has no part in them. Whoever still has the mount
open may go on with it.
"""

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
        target = os.path.join(self._folder, file.path)
        try:
            os.link(place, target)
        except FileExistsError:
            pass
        except OSError:
            self._cache.hold(place)  # another disk: no plain files, but nothing is lost either
            return
        self._count(file)

    def add_later(self, file: File) -> None:
        """A content is on this machine, but must be copied into the cache before it is linked."""
        self._slow.put(file)

    def _copy(self) -> None:
        while True:
            file = self._slow.get()
            try:
                self._cache.lay(file, os.path.join(self._folder, file.path), private=False)
            except FetchFailed:
                return  # no room: then it stays a mount
            self._count(file)

    def _count(self, file: File) -> None:
        with self._lock:
            self._left.discard(file.path)
            if self._left or os.path.realpath(self._link) == os.path.realpath(self._folder):
                return
            turned = self._link + ".turned"
            os.symlink(self._folder, turned)
            os.rename(turned, self._link)
