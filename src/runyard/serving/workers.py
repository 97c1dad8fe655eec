"""A front end's connection to one worker: found, kept, and found again when it breaks."""

import asyncio
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, cast

from runyard.serving.request import Request
from runyard_runtime import processes, scoring_wire

log = logging.getLogger("runyard.serving")

# Between attempts: a twentieth of the time since the first, so that a worker is found soon after
# it is ready; in seconds at least and at most.
_SHARE, _SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.005, 0.1
_AFTER_BREAK = 0.5  # something answers there, but not as a worker does
_HELLO_TIMEOUT = 10.0

Reply = tuple[int, bytes, bytes]


class Owner(Protocol):
    """Whom a worker belongs to."""

    def worker_ready(self, link: "WorkerLink") -> None:
        """The worker said hello."""

    def worker_done(self, link: "WorkerLink", batch: list[Request], replies: list[Reply]) -> None:
        """The worker answered a batch and is free."""

    def worker_lost(self, link: "WorkerLink", batch: list[Request]) -> None:
        """The worker is gone; `batch` is what it leaves unanswered."""


class WorkerLink(asyncio.Protocol):
    """One worker. It has one batch at a time; `batch` is empty when it is free."""

    def __init__(self, path: str, owner: Owner) -> None:
        self.path = path
        self.hello: Mapping[str, object] = {}
        self.ready = False
        self.leaving = False  # no longer listed: let it go when it has answered
        self.limit = 1  # requests it takes at once, by its own word
        self.batch: list[Request] = []
        self.since = 0.0  # when it got the batch
        self.hung = False  # was given up; until a worker says hello there again
        self._process = (0, 0)  # its number and when it started
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._data: bytes | bytearray = b""
        self._gone: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look for the worker, and go on looking whenever it is lost."""
        self._task = loop.create_task(self._keep(loop))

    def close(self) -> None:
        """Let go of the worker."""
        self.ready = False
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def give_up(self) -> None:
        """It does not come back from what it was given: end its process; its keeper starts it anew.

        Should that not be possible, it is not given anything until it says hello again.
        """
        self.hung = True
        number, start = self._process
        # A process that ended may have left its number to another.
        if start and number != os.getpid() and processes.is_alive(number, start):
            processes.send(number, signal.SIGKILL)
        self._abort()

    def send(self, batch: list[Request], now: float) -> None:
        """Give the worker something to do; it must be ready and free."""
        self.batch, self.since = batch, now
        transport = self._transport
        assert transport is not None
        data = scoring_wire.encode_batch([(request.head, request.body) for request in batch])
        # A transport writes at the end of the loop's round. The worker need not wait so long.
        # The descriptor is a duplicate of ours: the transport's own may be somebody else's by now.
        written = 0
        with suppress(OSError):  # a full socket; a broken one is noticed by the transport
            written = os.write(self._descriptor, data)
        if written < len(data):
            transport.write(data[written:])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; a hello must come."""
        self._transport = cast(asyncio.Transport, transport)
        self._descriptor = os.dup(transport.get_extra_info("socket").fileno())
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """A hello or replies, whole or in part."""
        whole: bytes | bytearray = data
        if self._data:
            whole = self._data = bytearray(self._data) if type(self._data) is bytes else self._data
            whole += data
        try:
            if self.ready:
                replies = scoring_wire.split_replies(whole)
                if replies is not None:
                    self._take(replies)
                    whole = b""
            else:
                hello = scoring_wire.split_hello(whole)
                if hello is not None:
                    self._greet(hello)
                    whole = b""
        except (scoring_wire.Broken, ValueError) as error:
            log.error("the worker at %s does not speak as one: %s", self.path, error)
            whole = b""
            self._abort()
        self._data = whole

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker ended, or we let go."""
        was_ready, batch = self.ready, self.batch
        self.ready, self.batch, self._transport = False, [], None
        os.close(self._descriptor)
        self._gone.set()
        if was_ready:
            self._owner.worker_lost(self, batch)

    def _take(self, replies: list[Reply]) -> None:
        batch, self.batch = self.batch, []
        if len(replies) != len(batch):
            self.batch = batch
            raise scoring_wire.Broken(f"{len(replies)} replies to {len(batch)} requests")
        self._owner.worker_done(self, batch, replies)

    def _greet(self, hello: object) -> None:
        if not isinstance(hello, dict):
            raise scoring_wire.Broken("its hello is no object")
        most = hello.get("max_batch")
        self.hello = hello
        self.limit = max(1, most) if isinstance(most, int) else 1
        self.ready, self.hung = True, False
        self._process = _listener(self._transport)
        self._owner.worker_ready(self)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = loop.time()
        itself: Callable[[], WorkerLink] = lambda: self  # noqa: E731
        while True:
            self._gone.clear()
            try:
                if not os.path.exists(self.path):  # cheaper than to try in vain
                    raise FileNotFoundError(self.path)
                await loop.create_unix_connection(itself, self.path)
            except OSError:
                pause = _SHARE * (loop.time() - begun)
                await asyncio.sleep(min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE))
                continue
            greeting = loop.call_later(_HELLO_TIMEOUT, self._hello_overdue)
            try:
                await self._gone.wait()
            finally:
                greeting.cancel()
            await asyncio.sleep(_SHORTEST_PAUSE if self.hello else _AFTER_BREAK)
            begun = loop.time()

    def _hello_overdue(self) -> None:
        if not self.ready:
            log.error("the worker at %s took the connection but said nothing", self.path)
            self._abort()


def _listener(transport: asyncio.Transport | None) -> tuple[int, int]:
    """The process that listens at the other end, by the kernel's word: its number, its start."""
    if transport is None or not hasattr(socket, "SO_PEERCRED"):
        return 0, 0
    size = struct.calcsize("3i")
    link = transport.get_extra_info("socket")
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    number: int = struct.unpack("3i", found)[0]
    return number, processes.start_time(number) if number > 1 else 0
