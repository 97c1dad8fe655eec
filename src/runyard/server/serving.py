"""Listening, serving and stopping: uvicorn on a socket of our own."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from runyard.domain.errors import Unavailable
from runyard.settings import near

log = logging.getLogger(__name__)

GRACE_SECONDS = 4  # for answers that are on their way when the server is to stop
_KEEP_ALIVE_SECONDS = 75  # longer than clients wait between two requests of one piece of work


def bind(host: str, port: int, last_port: int | None) -> socket.socket:
    """A listening socket: on `port`; if that is 0, on the last one used, or on a free one."""
    if port:
        try:
            return _bind(host, port)
        except OSError as error:
            raise Unavailable(
                f"The server cannot listen on {host}:{port}.",
                why=f"{error.strerror}.",
                fix="Choose another RUNYARD_PORT, or 0 for a free one.",
            ) from error
    if last_port:
        try:
            return _bind(host, last_port)
        except OSError as error:
            log.info("port %d, used last time, cannot be used: %s", last_port, error.strerror)
    try:
        return _bind(host, 0)
    except OSError as error:
        raise Unavailable(
            f"The server cannot listen on {host}.",
            why=f"{error.strerror}.",
            fix="Set RUNYARD_HOST to an address of this machine.",
        ) from error


def _bind(host: str, port: int) -> socket.socket:
    # The protocol is named, because asyncio turns on TCP_NODELAY only for sockets that say TCP;
    # without it an answer may wait 40 ms for the client's acknowledgement.
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """The address that clients on this machine use."""
    host, port = listener.getsockname()[:2]
    host = near(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp) -> uvicorn.Server:
    """uvicorn, without what we do ourselves: signals, logging, start and stop of the parts."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    ready: Callable[[], None],
    end_streams: Callable[[], None],
) -> None:
    """Serve until `stop` is set; then let answers on their way finish."""
    server = make_server(app)
    # What `Server.serve` does, but for its signal handlers and its clock of 10 ticks a second.
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    ready()
    await stop.wait()
    log.info("the server stops")
    end_streams()
    await server.shutdown(sockets=[listener])
