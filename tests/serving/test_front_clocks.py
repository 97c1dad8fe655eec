"""What takes too long, with a clock that the test moves: the front end runs in this process."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvloop

from runyard.serving.balance import Balancer
from runyard.serving.connections import Connection
from runyard.serving.desk import Desk
from runyard.serving.front_config import FrontConfig, Revision
from runyard.serving.metrics import Metrics
from runyard.testing.front_service import PATIENCE, Service

LARGE = 30_000_000


class Open:
    """A front end whose parts are at hand."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.loop = asyncio.get_running_loop()
        metrics = Metrics()
        self.balancer = Balancer(self.loop, service.folder, metrics)
        config = FrontConfig(
            name="demo", port=0, revisions=(Revision(revision=1, sockets=("w0.sock",)),)
        )
        self.desk = Desk(config, self.balancer, metrics, log_line=print)
        self.desk.heads.refresh(0.0)
        self.port = 0

    def sweep(self, seconds: float) -> None:
        """What the front end does each second, so many seconds from now."""
        for connection in list(self.desk.connections):
            connection.sweep(time.monotonic() + seconds)

    @asynccontextmanager
    async def client(self, data: bytes, buffer: int = 0) -> AsyncIterator[socket.socket]:
        """A client that has asked; `buffer`: how much is on its way at most."""
        with socket.socket() as one:
            if buffer:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            one.setblocking(False)
            await self.loop.sock_connect(one, ("127.0.0.1", self.port))
            await self.loop.sock_sendall(one, data)
            yield one
            self.service.leave(one)


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not check():
            await asyncio.sleep(0.01)


def with_front(service: Service, test: Callable[[Open], Awaitable[None]]) -> None:
    """Run a test beside an open front end with one worker."""

    async def run() -> None:
        front = Open(service)
        server = await front.loop.create_server(lambda: Connection(front.desk), "127.0.0.1", 0)
        front.port = server.sockets[0].getsockname()[1]
        await until(lambda: front.balancer.ready == 1)
        try:
            await test(front)
        finally:
            server.close()
            await until(lambda: not front.desk.connections)
            service.kill("w0")  # it may sleep, with something still to be read
            await until(lambda: not front.balancer.ready)
            front.balancer.close()
            await asyncio.sleep(0)

    service.worker()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def post(body: bytes) -> bytes:
    return b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_slow_reader_is_waited_for_as_long_as_it_reads(service: Service) -> None:
    async def check(front: Open) -> None:
        async with front.client(post(b"x" * LARGE), buffer=100_000) as one:
            found, seconds = len(await front.loop.sock_recv(one, 1000)), 0.0
            while found < LARGE / 2:
                for _ in range(20):
                    data = await front.loop.sock_recv(one, 1 << 20)
                    assert data, "it was cut off"
                    found += len(data)
                seconds += 50
                front.sweep(seconds)
                await asyncio.sleep(0)
            assert len(front.desk.connections) == 1
            assert seconds > 100
            front.sweep(seconds + 1)  # it reads no more
            await asyncio.sleep(0.1)
            front.sweep(seconds + 2)
            assert len(front.desk.connections) == 1
            front.sweep(seconds + 70)
            await until(lambda: not front.desk.connections)

    with_front(service, check)


def test_a_refused_client_cannot_stay_by_sending_on(service: Service) -> None:
    async def check(front: Open) -> None:
        async with front.client(b"nonsense\r\n\r\n") as one:
            assert (await front.loop.sock_recv(one, 4096)).startswith(b"HTTP/1.1 400 ")
            for seconds in range(5):
                before = time.monotonic() + seconds
                front.sweep(seconds)
                assert len(front.desk.connections) == 1
                for connection in front.desk.connections:
                    # A byte now and then, as of that time.
                    connection.data_received(b"x")  # type: ignore[attr-defined]
                    connection._seen = before  # type: ignore[attr-defined]
            front.sweep(5.5)
            await until(lambda: not front.desk.connections)

    with_front(service, check)


def test_a_worker_that_hangs_is_ended(service: Service) -> None:
    async def check(front: Open) -> None:
        balancer = front.balancer
        async with front.client(post(b'{"sleep": 1000}')) as one:
            await until(lambda: balancer.crews[1].in_flight == 1)
            balancer.expire(time.monotonic() + 61)
            assert (await front.loop.sock_recv(one, 4096)).startswith(b"HTTP/1.1 504 ")
            balancer.expire(time.monotonic() + 85)
            assert balancer.ready == 1, "it may still come back"
            balancer.expire(time.monotonic() + 95)
            assert service.workers["w0"].wait(PATIENCE) == -9
            await until(lambda: balancer.ready == 0)
            assert balancer.crews[1].in_flight == 0
            assert balancer.crews[1].hung == [str(service.folder / "w0.sock")]
            service.worker()
            await until(lambda: balancer.ready == 1)
            assert balancer.crews[1].hung == []

    with_front(service, check)


def test_a_worker_for_whom_somebody_waits_is_left_alone(service: Service) -> None:
    async def check(front: Open) -> None:
        async with front.client(post(b'{"sleep": 1000}')):
            await until(lambda: front.balancer.crews[1].in_flight == 1)
            for crew in front.balancer.crews.values():
                crew.give_up_hung(time.monotonic() + 1000)
            await asyncio.sleep(0.05)
            assert front.balancer.ready == 1
            assert service.workers["w0"].poll() is None

    with_front(service, check)


def test_a_body_goes_with_its_client_even_if_a_worker_has_it(service: Service) -> None:
    async def check(front: Open) -> None:
        async with front.client(post(b'{"sleep": 1000}' + b" " * LARGE)):
            await until(lambda: front.balancer.crews[1].in_flight == 1)
            (link,) = front.balancer.crews[1].links.values()
            assert len(link.batch[0].body) > LARGE
        await until(lambda: not front.desk.connections)
        assert [request.body for request in link.batch] == [b""]
        assert front.desk.held == 0

    with_front(service, check)


def test_an_old_revision_that_hangs_is_no_longer_in_use(service: Service) -> None:
    async def check(front: Open) -> None:
        async with front.client(post(b'{"sleep": 1000}')):
            await until(lambda: front.balancer.crews[1].in_flight == 1)
            front.balancer.apply(FrontConfig(name="demo", port=0))
            assert 1 in front.balancer.crews
            front.balancer.expire(time.monotonic() + 95)
            await until(lambda: 1 not in front.balancer.crews)

    with_front(service, check)
