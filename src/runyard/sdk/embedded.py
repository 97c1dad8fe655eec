"""The embedded server: found if it runs, started if it does not, by whoever needs it first."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runyard import __version__
from runyard.domain.errors import Denied, EngineFailed, Invalid, RunyardError, TimedOut, Unavailable
from runyard.domain.server import (
    ADDRESS_FILE,
    LOCK_TAKEN,
    SERVER_OUTPUT,
    START_LOCK,
    TOKEN_FILE,
    ServerInfo,
)
from runyard.sdk.client import Client
from runyard.settings import Settings, default_home, load_settings, to_environ

log = logging.getLogger(__name__)

START_SECONDS = 30.0  # a cold start on a slow disk takes a few
STOP_SECONDS = 30.0
PROBE_SECONDS = 2.0  # a busy server may take a second; one that hangs must not hold us up
STEP_SECONDS = 0.01
RESTART = "runyard down && runyard up --detach"
TAIL_LINES = 15
OUTPUT_BYTES = 5_000_000


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of the server of a home folder."""

    server: ServerInfo | None = None  # it runs and answers
    pid: int | None = None  # of the last one, if it is not known to have ended
    reason: str = ""  # why `server` is None
    denied: bool = False  # it runs, but our token is damaged or not accepted
    fix: str = ""  # what to do about that


def connect(settings: Settings | None = None) -> Client:
    """A client of the server at RUNYARD_URL, or of the embedded one, started if need be."""
    settings = settings or load_settings()
    if settings.url:
        return Client(settings.url, _remote_token(settings))
    if settings.token:
        log.warning("RUNYARD_TOKEN is ignored: it belongs to RUNYARD_URL, which is not set")

    def present() -> tuple[str, str]:
        return ensure_running(settings).url, load_token(settings.home)

    url, token = present()
    return Client(url, token, refresh=present)


def status(settings: Settings | None = None) -> Status:
    """Whether the server of these settings answers; starts nothing."""
    settings = settings or load_settings()
    if not settings.url:
        return _look(settings.home)
    try:
        return Status(server=_ask(settings.url, _remote_token(settings)))
    except Unavailable as error:
        return Status(reason=error.why)


def ensure_running(
    settings: Settings,
    *,
    within_seconds: float = START_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> ServerInfo:
    """The embedded server of this home folder; whoever comes first starts it."""
    found = _look(settings.home)
    if found.server is not None and not _is_older(found.server):
        return found.server
    prepare_home(settings.home)
    deadline = now() + within_seconds
    with _start_lock(settings.home, deadline, now):
        found = _look(settings.home)  # somebody else may have started it meanwhile
        if found.server is not None:
            if not _is_older(found.server):
                return found.server
            log.warning(
                "replacing the server of version %s by one of %s; running jobs go on",
                found.server.version,
                __version__,
            )
            stop(settings)
        elif found.reason:
            log.info("starting the server: %s", found.reason)
        return _start(settings, deadline, now)


def stop(settings: Settings | None = None) -> bool:
    """Stop the embedded server, jobs go on; False if none was running."""
    settings = settings or load_settings()
    found = _look(settings.home)
    if found.server is not None:
        client = Client(found.server.url, load_token(settings.home), patience_seconds=0)
        try:
            client.request("POST", "/api/v1/server/stop", answer=dict)
        except Unavailable:
            log.debug("the server went away before it answered")
        finally:
            client.close()
        _wait_until_ended(found.server.pid)
        return True
    if found.pid is None or not _is_server(found.pid, settings.home):
        return False
    os.kill(found.pid, signal.SIGTERM)  # it runs but does not answer us
    _wait_until_ended(found.pid)
    return True


def server_command() -> list[str]:
    """What starts a server. -P: a module of the user's folder must not shadow ours."""
    return [sys.executable, "-P", "-m", "runyard.server"]


def prepare_home(home: Path) -> None:
    """Make the home folder, for its owner only; `Invalid` if it cannot be written."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / SERVER_OUTPUT).parent.mkdir(exist_ok=True)
        with (home / START_LOCK).open("ab"):
            pass
    except OSError as error:
        raise Invalid(
            f"The home folder {home} cannot be used.",
            why=f"{error.strerror}: {error.filename}.",
            fix="Make it writable, or name another folder in RUNYARD_HOME.",
        ) from error


def load_token(home: Path) -> str:
    """The owner's token. A file that others can read is closed to them, and that is said."""
    path = home / TOKEN_FILE
    try:
        token = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode & 0o777
    except (OSError, UnicodeError) as error:
        raise Denied(
            f"The token in {path} cannot be read.",
            why=f"{error}.",
            fix=f"Become the user who owns it, or make a new one: rm '{path}' && {RESTART}",
        ) from error
    if not token:
        raise Denied(
            f"The token file {path} is empty.",
            why="Something cut it short.",
            fix=f"Have a new one made: rm '{path}' && {RESTART}",
        )
    if mode & 0o077:
        log.warning("%s was open to other users (mode %o); it is 600 now", path, mode)
        path.chmod(0o600)
    return token


def _remote_token(settings: Settings) -> str:
    if settings.token:
        return settings.token
    raise Denied(
        f"There is no token for {settings.url}.",
        why="RUNYARD_URL is set, RUNYARD_TOKEN is not.",
        fix="Set RUNYARD_TOKEN to the token of that server, or unset RUNYARD_URL.",
    )


def _look(home: Path) -> Status:
    """The server that the home folder speaks of, if it is there and ours."""
    try:
        written = msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=ServerInfo)
    except FileNotFoundError:
        return Status(reason="it has not been started")
    except (OSError, msgspec.DecodeError) as error:
        return Status(reason=f"{ADDRESS_FILE} cannot be read: {error}")
    pid = written.pid if _is_alive(written.pid) else None
    try:
        token = load_token(home)
    except Denied as error:
        return Status(pid=pid, reason=f"{error.what} {error.why}", denied=True, fix=error.fix)
    try:
        answered = _ask(written.url, token)
    except Denied as error:
        why = f"{written.url} does not accept our token: {error.why}"
        return Status(pid=pid, reason=why, denied=True, fix=f"Restart it: {RESTART}")
    except Unavailable as error:
        if pid is None:
            return Status(reason=f"process {written.pid} has ended")
        why = f"process {pid} does not answer at {written.url}: {error.why}"
        return Status(pid=pid, reason=why)
    except RunyardError as error:
        return Status(pid=pid, reason=f"{written.url} is another program's now: {error.what}")
    if not _same_folder(answered.home, home):
        return Status(pid=pid, reason=f"{written.url} is now the server of {answered.home}")
    return Status(server=answered, pid=answered.pid)


def _ask(url: str, token: str) -> ServerInfo:
    client = Client(url, token, patience_seconds=0)
    try:
        return client.request(
            "GET", "/api/v1/server", answer=ServerInfo, timeout_seconds=PROBE_SECONDS
        )
    finally:
        client.close()


def _same_folder(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _is_older(server: ServerInfo) -> bool:
    """True if the server has to be replaced. A newer one serves older clients as it is."""
    return _version(server.version) < _version(__version__)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


@contextmanager
def _start_lock(home: Path, deadline: float, now: Callable[[], float]) -> Iterator[None]:
    """Be the only one who starts a server; the kernel frees the lock of a process that dies."""
    with (home / START_LOCK).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if now() > deadline:
                    raise TimedOut(
                        "Another process has been starting the server for too long.",
                        why=f"It holds {home / START_LOCK}.",
                        fix=f"Find it with: fuser -v '{home / START_LOCK}'   and end it.",
                    ) from None
                time.sleep(STEP_SECONDS)
        yield


def _start(settings: Settings, deadline: float, now: Callable[[], float]) -> ServerInfo:
    """Start a server in the background and return when it answers."""
    home = settings.home
    before = _stamp(home)
    output = home / SERVER_OUTPUT
    if output.exists() and output.stat().st_size > OUTPUT_BYTES:
        os.truncate(output, 0)  # the server's own log, logs/server.log, has the history
    printed = output.stat().st_size if output.exists() else 0
    process = _spawn(settings, output)
    try:
        while now() < deadline:
            code = process.poll()
            if code not in (None, LOCK_TAKEN):
                raise _start_failed(code, _tail(output, printed))
            if _stamp(home) != before or code == LOCK_TAKEN:
                found = _look(home)
                if found.server is not None:
                    return found.server
                holds = found.pid is not None and _is_server(found.pid, home)
                if code == LOCK_TAKEN and holds and found.denied:
                    break  # waiting would not change that
                if code == LOCK_TAKEN and not holds:
                    # Whoever had the lock is not ready yet, or was about to end.
                    process = _spawn(settings, output)
            time.sleep(STEP_SECONDS)
    finally:
        if process.returncode is None:
            _spawned.add(process.pid)
            process.returncode = 0  # it outlives us: nobody is to wait for it, or warn
    raise _not_ready(home, _tail(output, printed))


def _spawn(settings: Settings, output: Path) -> "subprocess.Popen[bytes]":
    with output.open("ab") as out:
        return subprocess.Popen(
            server_command(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=settings.home,
            env=to_environ(settings),
            start_new_session=True,
        )


def _start_failed(code: int | None, tail: str) -> EngineFailed:
    says_how = "  fix: " in tail  # then there is no need for another one
    return EngineFailed(
        "The server could not be started.",
        why=f"It ended with exit code {code}, saying:\n{tail}",
        fix="" if says_how else "Mend what it says (runyard doctor helps), and try again.",
    )


def _not_ready(home: Path, tail: str) -> RunyardError:
    found = _look(home)
    if found.pid is not None and _is_server(found.pid, home):
        return TimedOut(
            f"A server runs (process {found.pid}) but is of no use: {found.reason}",
            why=f"It holds the lock of {home}, so no other can be started.",
            fix=found.fix
            or f"End it with: kill -9 {found.pid}   Jobs go on; try again after that.",
        )
    return TimedOut(
        "The server was not ready in time.",
        why=tail,
        fix=f"Read {home / SERVER_OUTPUT}, and run: runyard doctor",
    )


def _stamp(home: Path) -> tuple[int, int] | None:
    """Changes whenever a server says that it is ready."""
    try:
        found = (home / ADDRESS_FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _tail(output: Path, start: int) -> str:
    """The last lines that the server printed, from byte `start` on."""
    try:
        with output.open("rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"({output} cannot be read: {error.strerror})"
    return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:]) or "    (nothing)"


_spawned: set[int] = set()  # servers that this process started and may have to reap


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False  # to kill() these mean whole groups of processes
    if pid in _spawned:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                _spawned.discard(pid)
                return False
        except ChildProcessError:  # started before a fork, or reaped by somebody else
            _spawned.discard(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody else's
    except OverflowError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """True if the process has ended and only waits for whoever started it to take notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        state = _ps(pid, "stat=").strip()
    return state.startswith(b"Z")


def _is_server(pid: int, home: Path) -> bool:
    """True if the process is the server of that home: a pid may be another program's by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # no /proc, or somebody else's process
        return b"runyard.server" in _ps(pid, "command=")
    homes = [text[13:] for text in environ if text.startswith(b"RUNYARD_HOME=")]
    named = os.fsdecode(homes[0]) if homes else str(default_home())
    return b"runyard.server" in command and _same_folder(named, home)


def _ps(pid: int, column: str) -> bytes:
    """What ps says of a process, where there is no /proc."""
    try:
        return subprocess.run(
            ["ps", "-p", str(pid), "-o", column], capture_output=True, check=False
        ).stdout
    except OSError:
        return b""


def _wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while _is_alive(pid):
        if time.monotonic() > deadline:
            raise TimedOut(
                f"The server (process {pid}) was told to stop, but goes on.",
                why=f"It has not ended within {STOP_SECONDS:.0f} seconds.",
                fix=f"End it with: kill -9 {pid}   Jobs go on.",
            )
        time.sleep(STEP_SECONDS)
