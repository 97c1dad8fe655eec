"""`python -m runyard.serving.front FOLDER`: the process that clients of a service talk to.

It serves what front.json in the folder says, looks at the file a few times a second and on
SIGHUP, and ends on SIGTERM when everybody has an answer.
"""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from runyard.domain.errors import Conflict, RunyardError
from runyard.serving.balance import Balancer
from runyard.serving.bell import ring
from runyard.serving.connections import Connection
from runyard.serving.desk import Desk
from runyard.serving.front_config import FILE_NAME, FrontConfig, read_config
from runyard.serving.metrics import Metrics

log = logging.getLogger("runyard.serving")

_TICK = 0.1  # seconds between two looks at deadlines
_LOOK_EVERY = 1  # ticks, at front.json; a new revision waits for it
_SWEEP_EVERY = 10  # ticks, over the connections
_BACKLOG = 4096
_SPARE_FILES = 100  # descriptors that are not clients'
_BIND_TIME = 2.0  # for the one before us to let go of the port
_ARRIVAL_TIME = 5.0  # after a stop, for a request that was on its way
_MOST_LINES = 1000  # about failures that are kept until the next tick

Stamp = tuple[int, int, int] | None  # tells one version of front.json from the next


class Front:
    """A running front end."""

    def __init__(
        self, folder: Path, config: FrontConfig, stamp: Stamp, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._folder = folder
        self._config = config
        self._loop = loop
        self._lines: list[str] = []
        metrics = Metrics()
        self._balancer = Balancer(loop, folder, metrics, on_worker=self._ring)
        self._desk = Desk(config, self._balancer, metrics, log_line=self._note)
        self._desk.heads.refresh(time.time())
        self._room = _raise_file_limit()
        self._desk.max_connections = min(self._desk.max_connections, self._room)
        self._stamp = stamp
        self._ticks = 0
        self._stopped = asyncio.Event()

    async def run(self, ready: Path | None = None) -> None:
        """Serve until told to stop; the file `ready` is made as soon as clients may come."""
        config = self._config
        for number, call in (
            (signal.SIGTERM, self._stopped.set),
            (signal.SIGINT, self._stopped.set),
            (signal.SIGHUP, self._reload),
        ):
            self._loop.add_signal_handler(number, call)
        server = await self._listen(config.host, config.port)
        host, port = server.sockets[0].getsockname()[:2]
        log.info("serving %s at http://%s:%d", config.name, host, port)
        if ready is not None:
            ready.touch()
        if self._balancer.ready:
            self._ring()  # nobody could ask when the first worker was found
        gc.collect()
        gc.freeze()  # what is here now stays; no need to look through it again and again
        self._tick()
        await self._stopped.wait()
        await self._finish(server)

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        until = time.monotonic() + _BIND_TIME
        make: Callable[[], Connection] = lambda: Connection(self._desk)  # noqa: E731
        while True:
            try:
                return await self._loop.create_server(make, host, port, backlog=_BACKLOG)
            except OSError as error:
                if time.monotonic() > until:
                    raise Conflict(
                        f"The service cannot listen on {host}:{port}.",
                        why=str(error),
                        fix="Deploy it with another port, or stop what uses this one.",
                    ) from error
                await asyncio.sleep(0.05)

    async def _finish(self, server: asyncio.Server) -> None:
        """No new clients; everybody who asked gets an answer."""
        log.info("stopping: %d connections", len(self._desk.connections))
        server.close()
        self._desk.stopping = True
        begun = time.monotonic()
        until = begun + self._desk.config.limits.timeout_seconds + 1
        while self._desk.connections and time.monotonic() < until:
            patient = time.monotonic() < begun + _ARRIVAL_TIME
            for connection in list(self._desk.connections):
                connection.stop(patient=patient)
            await asyncio.sleep(0.02)
        self._balancer.close()
        self._write_lines()
        log.info("stopped")

    def _tick(self) -> None:
        now = time.monotonic()
        self._loop.call_later(_TICK, self._tick)
        self._ticks += 1
        self._balancer.expire(now)
        if self._ticks % _LOOK_EVERY == 0 and _stamp(self._folder) != self._stamp:
            self._reload()
        if self._ticks % _SWEEP_EVERY == 0:
            self._desk.heads.refresh(time.time())
            for connection in list(self._desk.connections):
                connection.sweep(now)
        if self._lines:
            self._write_lines()

    def _reload(self) -> None:
        """Serve by the file as it is now; one that cannot be understood changes nothing."""
        self._stamp = _stamp(self._folder)
        try:
            config = read_config(self._folder)
        except RunyardError as error:
            log.error("front.json is not taken over: %s", error)
            return
        if (config.host, config.port) != (self._config.host, self._config.port):
            log.warning("another address needs another front end; this one keeps its own")
        self._config = config
        self._desk.apply(config)
        self._desk.max_connections = min(self._desk.max_connections, self._room)
        log.info("front.json taken over: revisions %s", [one.revision for one in config.revisions])
        self._ring()

    def _ring(self) -> None:
        """Have the platform ask how we are."""
        if self._config.bell:
            ring(self._config.bell)

    def _note(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) > _MOST_LINES:
            self._write_lines()

    def _write_lines(self) -> None:
        text = "\n".join(self._lines) + "\n" if self._lines else ""
        self._lines.clear()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(text)
            sys.stdout.flush()


def _stamp(folder: Path) -> Stamp:
    try:
        found = (folder / FILE_NAME).stat()
    except OSError:
        return None  # between two versions, or the service is being removed
    return found.st_mtime_ns, found.st_ino, found.st_size


def _raise_file_limit() -> int:
    """Take as many descriptors as are allowed; how many clients fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_SPARE_FILES, (1 << 20 if soft == resource.RLIM_INFINITY else soft) - _SPARE_FILES)


def main(arguments: list[str]) -> int:
    """Exit code 0 after a stop, 2 if the folder or the port is not to be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if len(arguments) not in (1, 2):
        log.error("usage: python -m runyard.serving.front FOLDER [READY_FILE]")
        return 2
    folder = Path(arguments[0]).absolute()
    ready = Path(arguments[1]) if len(arguments) == 2 else None
    # Fewer, larger collections: short pauses in the middle of a request are what clients notice.
    gc.set_threshold(50_000, 20, 20)
    try:
        stamp = _stamp(folder)  # before the file is read: a change in between is seen later
        config = read_config(folder)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(folder, config, stamp, ready))
    except RunyardError as error:
        log.error("%s", error)
        return 2
    return 0


async def _serve(folder: Path, config: FrontConfig, stamp: Stamp, ready: Path | None) -> None:
    await Front(folder, config, stamp, asyncio.get_running_loop()).run(ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
