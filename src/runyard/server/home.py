"""The server's files in the home folder: the lock, the owner's token, the secret, the address."""

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runyard.domain.errors import Conflict, Invalid
from runyard.domain.server import ADDRESS_FILE, SERVER_LOCK, TOKEN_FILE, ServerInfo
from runyard_runtime.job_folder import write_atomically

log = logging.getLogger(__name__)

SECRET_FILE = "secret"  # signs the tokens of runs and viewers, mode 0600


def make_home(home: Path) -> None:
    """Make the folder, for its owner only; one that was open to others is closed to them."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.stat()
        # Not a folder like /tmp, which is everybody's; there is a bit that says so.
        if found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX:
            home.chmod(0o700)
            mode = stat.S_IMODE(found.st_mode)
            log.warning("%s was open to other users (mode %o); it is 700 now", home, mode)
        (home / "logs").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Invalid(
            f"The home folder {home} cannot be made.",
            why=f"{error.strerror}.",
            fix="Set RUNYARD_HOME to a folder that can be written.",
        ) from error


@contextmanager
def server_lock(home: Path) -> Iterator[None]:
    """Be the only server of this home; `Conflict` if there is one. A dead one holds nothing."""
    descriptor = os.open(home / SERVER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = read_address(home)
            where = f" at {other.url}, process {other.pid}" if other else ""
            raise Conflict(
                f"A server of {home} is already running{where}.",
                why="Two servers must not work on one home folder.",
                fix="Use that one, or stop it with: runyard down",
            ) from None
        yield
    finally:
        os.close(descriptor)


def load_token(home: Path) -> str:
    """The owner's token; made at the first start."""
    return _load_or_make(home / TOKEN_FILE, lambda: secrets.token_urlsafe(32))


def load_secret(home: Path) -> bytes:
    """The key that signs tokens; made at the first start."""
    return _load_or_make(home / SECRET_FILE, lambda: secrets.token_hex(32)).encode()


def _load_or_make(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        write_atomically(str(path), make().encode() + b"\n", durable=True)
    text = path.read_text().strip()
    if len(text) < 16:
        raise Invalid(
            f"The file {path} is damaged.",
            why="It should hold a long random text.",
            fix="Remove it and start again; a new one is made.",
        )
    return text


def read_address(home: Path) -> ServerInfo | None:
    """What the last server said of itself; None if there was none that could."""
    try:
        return msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=ServerInfo)
    except (OSError, msgspec.DecodeError):
        return None


def write_address(home: Path, info: ServerInfo) -> None:
    """Say where the server is."""
    write_atomically(str(home / ADDRESS_FILE), msgspec.json.encode(info) + b"\n", durable=True)
