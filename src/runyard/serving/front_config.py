"""front.json: what a front end serves. Written by the conductor, read here when it changes.

A path of a socket that is not absolute is meant from the service's folder. If several revisions
are listed, the newest that is ready gets the requests.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from runyard.domain.errors import Invalid

FILE_NAME = "front.json"
MAX_HELD_BYTES = 1 << 30  # large bodies of all clients together, until they are answered
MAX_CONNECTIONS = 10_000


class Auth(StrEnum):
    """Who may call the model."""

    NONE = "none"  # everybody who reaches the port
    KEY = "key"  # who has one of the keys
    TOKEN = "token"  # who has a token that the platform signed and that has not run out


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One state of a service: where its workers listen."""

    revision: int
    sockets: tuple[str, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a front end takes on before it says no."""

    max_body_bytes: int = 100 << 20
    max_held_bytes: int = MAX_HELD_BYTES
    queue: int = 1000  # requests that wait for a worker, of each revision
    timeout_seconds: float = 60.0  # from the whole request to its answer
    max_batch_delay_ms: float = 0.0  # how long a request may wait for company
    max_connections: int = MAX_CONNECTIONS


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a front end must know."""

    name: str
    port: int
    configuration: str = ""  # tells this file from the one before; see /_runyard/status
    host: str = "127.0.0.1"
    auth: Auth = Auth.NONE
    key_hashes: tuple[str, ...] = ()  # sha256 of each key, in hex
    token_secret: str = ""
    control_token: str = ""  # of the platform, for /_runyard/status; empty: nobody gets in
    bell: str = ""  # what is rung when there is news for the platform; see `serving.bell`
    revisions: tuple[Revision, ...] = ()
    limits: Limits = Limits()


def read_config(folder: Path) -> FrontConfig:
    """The configuration in a service's folder; `Invalid` if it cannot be understood."""
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=FrontConfig)
    except OSError as error:
        raise Invalid(
            f"'{path}' cannot be read.",
            why=str(error),
            fix="Give the folder of a service; the platform writes the file when it deploys.",
        ) from error
    except msgspec.DecodeError as error:
        raise Invalid(
            f"'{path}' is not the configuration of a front end.", why=str(error)
        ) from error
