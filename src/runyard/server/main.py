"""Start a server, and everything it takes, in the right order; stop it in the reverse."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from runyard import __version__
from runyard.conductor.changes import Changes
from runyard.conductor.conductor import Conductor
from runyard.conductor.serving import Serving
from runyard.domain.errors import Conflict, RunyardError
from runyard.domain.server import DATABASE_TAKEN, LOCK_TAKEN, ServerInfo
from runyard.domain.states import ACTIVE, RunState
from runyard.engines import ENGINES
from runyard.engines.machine import read_machine
from runyard.environments import open_builders
from runyard.environments.node_packages import find_packages
from runyard.server.app import build_app
from runyard.server.home import (
    load_secret,
    load_token,
    make_home,
    read_address,
    server_lock,
    write_address,
)
from runyard.server.platform import Platform
from runyard.server.serving import bind, serve, url_of
from runyard.settings import Settings, load_settings
from runyard.stores import open_store
from runyard.stores.base import Store, Where
from runyard.stores.conducting import sole_conductor

log = logging.getLogger(__name__)

CANNOT_START = 4  # exit code: a setting makes no sense, or a port is taken
_LOG_BYTES, _LOGS_KEPT = 5_000_000, 3


def main() -> int:
    """Serve until told to stop; the exit code."""
    taken = LOCK_TAKEN
    try:
        settings = load_settings()
        make_home(settings.home)
        with server_lock(settings.home):
            taken = DATABASE_TAKEN
            configure_logging(settings.home)
            with sole_conductor(settings.database_url, lost=_stop_oneself):
                run(settings)
    except RunyardError as error:
        sys.stderr.write(f"{error}\n")
        return taken if isinstance(error, Conflict) else CANNOT_START
    return 0


def _stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # as if somebody else had: a graceful stop


def run(settings: Settings) -> None:
    """Serve with these settings; the locks are held by the caller."""
    started = datetime.now(UTC)
    previous = read_address(settings.home)
    last_port = urlsplit(previous.url).port if previous is not None else None
    with closing(bind(settings.host, settings.port, last_port)) as listener:
        token, secret = load_token(settings.home), load_secret(settings.home)
        with closing(open_store(settings.database_url, settings.blobs_url)) as store:
            info = ServerInfo(
                pid=os.getpid(),
                url=url_of(listener),
                version=__version__,
                started=started,
                home=str(settings.home),
                database=settings.database_url.partition(":")[0].partition("+")[0],
            )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_work(settings, store, listener, info, token, secret))


async def _work(
    settings: Settings,
    store: Store,
    listener: socket.socket,
    info: ServerInfo,
    token: str,
    secret: bytes,
) -> None:
    changes, stop = Changes(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    builders = open_builders(settings.home / "environments", containers=settings.containers)
    machine = await asyncio.to_thread(read_machine)
    conductor = Conductor(
        store,
        settings,
        secret,
        changes,
        lambda: info.url,
        engine=ENGINES["local"](settings.home / "jobs", {}, {}),
        engines={kind: opener for kind, opener in ENGINES.items() if kind != "local"},
        builders=builders,
        machine=machine,
    )
    conductor.plans.find_packages = find_packages
    serving = Serving(store, settings, secret, changes, conductor.wake, lambda: datetime.now(UTC))
    platform = Platform(
        store=store,
        settings=settings,
        conductor=conductor,
        serving=serving,
        changes=changes,
        secret=secret,
        owner_token=token,
        info=partial(describe, info, store),
        stop=stop.set,
        machine=machine,
        builders=builders,
    )
    conductor.start()
    serving.start()
    try:
        await serve(
            build_app(platform),
            listener,
            stop,
            ready=partial(_announce, settings.home, info),
            end_streams=changes.close,
        )
    finally:
        await asyncio.to_thread(platform.close)
        await asyncio.to_thread(serving.stop)
        await asyncio.to_thread(conductor.stop)
    log.info("the server at %s has stopped; jobs go on without it", info.url)


def _announce(home: Path, info: ServerInfo) -> None:
    gc.collect()
    gc.freeze()  # what is here now stays; looking through it again would hold up everybody
    write_address(home, info)
    log.info("Runyard %s listens on %s, home %s", info.version, info.url, info.home)


def describe(info: ServerInfo, store: Store) -> ServerInfo:
    """The server as it is now, with the number of unfinished runs in each state."""
    counts = store.records.count(Where(states=ACTIVE))
    active = {RunState(state).value: number for state, number in counts.items() if number}
    return msgspec.structs.replace(info, active=active)


def configure_logging(home: Path) -> None:
    """Write to `logs/server.log`, in turns, and to stderr."""
    layout = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handlers: list[logging.Handler] = [
        RotatingFileHandler(
            home / "logs" / "server.log", maxBytes=_LOG_BYTES, backupCount=_LOGS_KEPT
        ),
        logging.StreamHandler(),
    ]
    for handler in handlers:
        handler.setFormatter(layout)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    for chatty in ("uvicorn", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
