"""What the network sees: small answers are not kept back."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import uvloop

from runyard.server import serving

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_accepted_connections_have_nodelay(loop: Any) -> None:
    listener = serving.bind("127.0.0.1", 0, None)
    server = serving.make_server(_hello)
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(_nodelay_of_an_accepted_connection(server, listener))


async def _nodelay_of_an_accepted_connection(
    server: uvicorn.Server, listener: socket.socket
) -> bool:
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    (connection,) = server.server_state.connections
    accepted = connection.transport.get_extra_info("socket")
    nodelay = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    await server.shutdown(sockets=[listener])
    return bool(nodelay)


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def test_small_answers_do_not_wait_for_acknowledgements(server: LiveServer) -> None:
    took = []
    for _ in range(30):
        began = time.perf_counter()
        assert server.request("GET", "/healthz").status == 200
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.02  # the trap costs 40 ms a request
