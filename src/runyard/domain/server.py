"""What a server says of itself, and the files of its home folder that others may read."""

from datetime import datetime

import msgspec

from runyard.domain.compute import Machine

ADDRESS_FILE = "server.json"  # a `ServerInfo`, written when the server is ready
TOKEN_FILE = "token"  # the owner's token, mode 0600
SERVER_LOCK = "server.lock"  # held (flock) by the server for its lifetime
START_LOCK = "start.lock"  # held (flock) by whoever is starting one
SERVER_OUTPUT = "logs/server.out"  # what a server started in the background prints
LOCK_TAKEN = 3  # exit code of a server that found another one of its home
DATABASE_TAKEN = 5  # exit code of a server that found another one, of another home, at its database


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running server."""

    pid: int
    url: str
    version: str
    started: datetime
    home: str
    database: str = ""  # its kind: sqlite, postgresql
    active: dict[str, int] = {}  # unfinished runs by state; not in the file
    machine: Machine | None = None  # what the target `local` is; not in the file
    slots: int = 0  # how many runs work there at a time; not in the file
