"""The bytes behind a mount: fetched when they are read, and a little before.

Small files are fetched whole, and more of them ahead the longer a script reads in order. A large
file that is read from its beginning is streamed into the cache while the reader follows; parts far
from there are fetched by themselves. All of it ends in the node's cache, so that the next job gets
plain files.
"""

import collections
import os
import threading
import time
from collections.abc import Callable, Sequence

from runyard.data.mount_ahead import Ahead
from runyard.data.mount_plain import PlainFiles
from runyard_runtime.cache import Cache
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.origins import File, Origins

SMALL_BYTES = 8 << 20  # fetched whole by whoever asks
EAGER_BYTES = 64 << 20  # streamed at the first read; larger ones when they are read on
BLOCK_BYTES = 1 << 20
_PEEK_BYTES = 2 << 20  # reading the head of a large file is no reason to fetch all of it
_NEAR_BYTES = 32 << 20  # what the stream is about to bring is waited for
_STALL_SECONDS = (
    2.0  # a stream that brings nothing that long, perhaps because another process has it
)
_OPEN_FILES = 512
_BLOCKS = 64
_FIRST_AHEAD, _MOST_AHEAD = 8, 256


class _Opened:
    """An open file that is closed when the last reader lets go of it."""

    def __init__(self, place: str) -> None:
        self.handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


class Contents:
    """Reads the files of one mount. Any number of threads may."""

    def __init__(
        self,
        files: Sequence[File],
        cache: Cache,
        origins: Origins,
        plain: PlainFiles,
        note: Callable[[str], None],
    ) -> None:
        self._files = files
        self._plain = plain
        self._cache = cache
        self._origins = origins
        self._note = note
        self._number = {file.path: number for number, file in enumerate(files)}
        self._lock = threading.Lock()
        self._ahead = Ahead(self._fetch, self._fetched)
        self._places: dict[str, str] = {}
        self._opened: collections.OrderedDict[str, _Opened] = collections.OrderedDict()
        self._blocks: collections.OrderedDict[tuple[str, int], bytes] = collections.OrderedDict()
        self._streams: dict[str, Stream] = {}
        self._last, self._window = -1, _FIRST_AHEAD
        self._planned = 0  # files before this number have been asked for
        self._noted: set[str] = set()

    def fork(self) -> None:
        """Start the processes that fetch ahead, before there are threads."""
        self._ahead.start()

    def start(self) -> None:
        """Start the threads."""
        self._plain.start()
        self._ahead.listen()

    def size(self, file: File) -> int:
        """How long it is; it is fetched if nobody knows."""
        if file.size >= 0:
            return int(file.size)
        return os.fstat(self._whole(file).handle).st_size

    def read(self, file: File, offset: int, size: int) -> bytes:
        """Some of its bytes; OSError if they cannot be had."""
        opened = self._opened.get(file.path)
        if opened is None:
            try:
                return self._read_new(file, offset, size)
            except FetchFailed as error:
                self._complain(file, error)
                raise OSError(5, str(error)) from error
        return os.pread(opened.handle, size, offset)

    def _read_new(self, file: File, offset: int, size: int) -> bytes:
        if 0 <= file.size <= SMALL_BYTES or file.size < 0:
            self._plan_ahead(file)
            return os.pread(self._whole(file).handle, size, offset)
        if file.path in self._places or self._is_here(file):
            return os.pread(self._whole(file).handle, size, offset)
        stream = self._stream(file, offset, size)
        if stream is not None:
            found = stream.read(offset, size)
            if found is not None:
                return found
            if file.path in self._places:  # it has just become whole
                return os.pread(self._whole(file).handle, size, offset)
        return self._read_blocks(file, offset, size)

    def _whole(self, file: File) -> _Opened:
        """The whole content, open; fetched first if need be."""
        place = self._places.get(file.path)
        for _ in range(3):
            place = place or self._have(file)
            try:
                opened = _Opened(place)
                break
            except FileNotFoundError:
                place = None  # evicted meanwhile, where links cannot hold it
        else:
            raise FetchFailed(f"'{file.path}' is evicted again and again.")
        with self._lock:
            self._opened[file.path] = opened
            if len(self._opened) > _OPEN_FILES:
                self._opened.popitem(last=False)
        return opened

    def _have(self, file: File) -> str:
        local: str | None = self._origins.local(file)
        if local is not None:
            self._places[file.path] = local
            self._plain.add_later(file)
            return local
        place: str = self._cache.ensure(file)
        self._places[file.path] = place
        self._plain.add(file, place)
        return place

    def _is_here(self, file: File) -> bool:
        if self._origins.local(file) is None and self._cache.find(file) is None:
            return False
        self._have(file)
        return True

    def _plan_ahead(self, file: File) -> None:
        """Have the next files fetched, the more the longer files are read in order."""
        number = self._number[file.path]
        with self._lock:
            in_order = self._last < number <= self._last + self._window
            self._window = min(self._window * 2, _MOST_AHEAD) if in_order else _FIRST_AHEAD
            self._last = number
            end = min(number + 1 + self._window, len(self._files))
            # Not for one file at a time: the processes are woken for each message.
            if in_order and end - self._planned < self._window // 4 and end < len(self._files):
                return
            begin = max(self._planned if in_order else 0, number + 1)
            self._planned = max(end, number + 1)
        self._ahead.ask(other for other in range(begin, end) if self._is_to_fetch(other))

    def _is_to_fetch(self, number: int) -> bool:
        file = self._files[number]
        return file.size <= SMALL_BYTES and file.path not in self._places

    def _fetch(self, number: int) -> bool:
        """In another process: have a file in the cache, and laid out."""
        file = self._files[number]
        try:
            return self._origins.local(file) is None and self._plain.link(
                file, self._cache.ensure(file)
            )
        except FetchFailed:
            return False  # whoever reads it is told

    def _fetched(self, number: int) -> None:
        file = self._files[number]
        self._places.setdefault(file.path, self._plain.path(file))
        self._plain.count(file)

    def _stream(self, file: File, offset: int, size: int) -> "Stream | None":
        with self._lock:
            stream = self._streams.get(file.path)
            if stream is None:
                stream = self._streams[file.path] = Stream(file, self._finish)
        return stream if stream.wanted(offset, size) else None

    def _finish(self, stream: "Stream") -> None:
        """Bring a whole file into the cache, telling the stream how far it is."""
        place = self._cache.ensure(stream.file, stream.arrived, stream.opened)
        self._places[stream.file.path] = place
        self._plain.add(stream.file, place)

    def _read_blocks(self, file: File, offset: int, size: int) -> bytes:
        end = min(offset + size, file.size)
        found = []
        for number in range(offset // BLOCK_BYTES, (end + BLOCK_BYTES - 1) // BLOCK_BYTES):
            block = self._block(file, number)
            begin = number * BLOCK_BYTES
            found.append(block[max(offset - begin, 0) : end - begin])
        return b"".join(found)

    def _block(self, file: File, number: int) -> bytes:
        key = (file.path, number)
        block = self._blocks.get(key)
        if block is None:
            start = number * BLOCK_BYTES
            try:
                block = self._origins.read(file, start, min(start + BLOCK_BYTES, file.size))
            except FetchFailed as error:
                if error.status != 200:
                    raise
                # This server has no parts: all of it, then.
                return os.pread(self._whole(file).handle, BLOCK_BYTES, start)
            with self._lock:
                self._blocks[key] = block
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
        return block

    def _complain(self, file: File, error: FetchFailed) -> None:
        text = f"warning: '{file.path}' cannot be read: {error}"
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


class Stream:
    """A large file on its way into the cache, with readers who follow it."""

    def __init__(self, file: File, finish: Callable[["Stream"], None]) -> None:
        self.file = file
        self._finish = finish
        self._change = threading.Condition()
        self._handle = -1
        self._prefix = 0  # how much of the file is here
        self._furthest = 0  # how far it was read in order
        self._running = False
        self._served = False
        self._error: FetchFailed | None = None
        self._over = False

    def wanted(self, offset: int, size: int) -> bool:
        """Note a read; True if all of the file is to be fetched, which begins now."""
        with self._change:
            if offset <= self._furthest + BLOCK_BYTES:
                self._furthest = max(self._furthest, offset + size)
            eager = self.file.size <= EAGER_BYTES or self._furthest > _PEEK_BYTES
            if eager and not self._running and self._error is None:
                self._running = True
                threading.Thread(target=self._run, daemon=True).start()
            return self._running

    def read(self, offset: int, size: int) -> bytes | None:
        """The bytes, waited for if they are about to come; None: get them another way."""
        end = min(offset + size, self.file.size)
        with self._change:
            seen, since = self._prefix, time.monotonic()
            while self._prefix < end and not self._over:
                if self._error is not None:
                    raise self._error
                if offset > self._prefix + _NEAR_BYTES:
                    return None
                self._change.wait(_STALL_SECONDS)
                if self._prefix > seen:
                    seen, since = self._prefix, time.monotonic()
                elif time.monotonic() - since >= _STALL_SECONDS:
                    return None
            if self._handle < 0:
                return None  # another process fetched it
            self._served = True
            return os.pread(self._handle, end - offset, offset)

    def opened(self, handle: int) -> None:
        """The file that is being filled. Opened anew: a copy would share its lock, and keep it."""
        with self._change:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)

    def arrived(self, count: int) -> None:
        """More of it is here, and all before it."""
        prefix = os.fstat(self._handle).st_size
        with self._change:
            if prefix < self._prefix and self._served:
                # It changed and is fetched anew: what was read does not fit the rest.
                self._error = FetchFailed(f"'{self.file.path}' changed while it was read.")
            self._prefix = prefix
            self._change.notify_all()

    def _run(self) -> None:
        try:
            self._finish(self)
            with self._change:
                self._over = True
        except FetchFailed as error:
            with self._change:
                self._error = error
        finally:
            with self._change:  # whoever reads holds it
                if self._handle >= 0:
                    os.close(self._handle)
                    self._handle = -1
                self._running = False
                self._change.notify_all()
