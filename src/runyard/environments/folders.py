"""The folders of built environments: found by content key, made once, never taken half made.

<root>/<key>/                      a whole environment: bin/python, requirements.lock, …
<root>/<key>/runyard.json          written last: without it the folder does not count
<root>/<key>/last-used             touched at every use, for a later clean-up
<root>/<key>.building-…/           one that is being made, or what a crash left of it
<root>/locks/<key>                 held (flock) while somebody builds that key
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from runyard.domain.environments import EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.environments.base import Log
from runyard.environments.build_lock import BuildLock
from runyard_runtime.job_folder import sync_folder

MARKER = "runyard.json"
LAST_USED = "last-used"
LOCK_FILE = "requirements.lock"


class BuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the marker file says of a finished environment."""

    python: str
    lock: tuple[str, ...]
    note: str = ""  # on the choice of the interpreter
    requirements: tuple[str, ...] = ()
    name: str = ""  # of the spec that it was built for first
    notes: tuple[str, ...] = ()
    size_bytes: int = 0
    seconds: float = 0.0


Fill = Callable[[Path, BuildLock], BuiltEnvironment]  # makes everything inside an empty folder


class Folders:
    """All built environments below one folder. Safe over threads and processes."""

    def __init__(self, root: Path, *, python_is_here: bool = True) -> None:
        self.root = root
        # False: bin/python is a link to the Python of an image, which this machine lacks.
        self._python_is_here = python_is_here

    def load(self, key: str, notes: tuple[str, ...]) -> EnvironmentUse | None:
        """The environment if it is whole; reads one small file and touches another."""
        folder = self.root / key
        python = folder / "bin" / "python"
        try:
            built = msgspec.json.decode((folder / MARKER).read_bytes(), type=BuiltEnvironment)
            if self._python_is_here and not python.exists():
                return None  # the interpreter behind it was removed
            (folder / LAST_USED).touch()
        except (OSError, msgspec.MsgspecError):
            return None
        return EnvironmentUse(
            key=key,
            interpreter=str(python),
            python=built.python,
            lock=built.lock,
            notes=((built.note,) if built.note else ()) + notes,
        )

    def build(
        self,
        name: str,
        key: str,
        notes: tuple[str, ...],
        log: Log,
        fill: Fill,
        *,
        in_place: bool = False,
    ) -> EnvironmentUse:
        """Load it; else have `fill` make it, or wait for whoever does and share the outcome.

        `in_place`: for what knows its own path and cannot be moved once it is made.
        """

        def labelled(building: Path, lock: BuildLock) -> BuiltEnvironment:
            return msgspec.structs.replace(fill(building, lock), name=name, notes=notes)

        if (use := self.load(key, notes)) is not None:
            return use
        try:
            self._build_alone(key, notes, log, labelled, in_place=in_place)
        except OSError as error:
            raise EngineFailed(
                f"Environment '{name}' could not be built.",
                why=str(error),
                fix=f"See that {self.root} can be written to and has space left.",
            ) from error
        use = self.load(key, notes)
        if use is None:
            raise EngineFailed(
                f"Environment '{name}' vanished as soon as it was built.",
                why=f"{self.root / key} is not complete.",
                fix="Submit again; keep other programs out of that folder.",
            )
        return use

    def _build_alone(
        self, key: str, notes: tuple[str, ...], log: Log, fill: Fill, *, in_place: bool
    ) -> None:
        """Build while nobody else builds the same, unless somebody just did."""
        with BuildLock(self.root / "locks", key) as lock:
            lock.acquire(lambda: log("waiting for another run that builds this environment"))
            if self.load(key, notes) is not None:
                return
            if (failure := lock.failure_while_waiting()) is not None:
                raise failure
            try:
                self._make(key, log, fill, lock, in_place=in_place)
            except EngineFailed as error:
                lock.record_failure(error)
                raise

    def _make(self, key: str, log: Log, fill: Fill, lock: BuildLock, *, in_place: bool) -> None:
        """Build beside and rename into place, or build in place; the marker is the last file."""
        started = time.monotonic()
        self._clear(key)
        beside = self.root / f"{key}.building-{os.getpid()}-{secrets.token_hex(4)}"
        building = self.root / key if in_place else beside
        try:
            built = fill(building, lock)
            built = msgspec.structs.replace(
                built, size_bytes=_size(building), seconds=time.monotonic() - started
            )
            _write_durably(building / MARKER, msgspec.json.encode(built))
            if not in_place:
                building.rename(self.root / key)
            sync_folder(str(self.root))
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        log(f"environment {key} is ready after {time.monotonic() - started:.1f} s")

    def _clear(self, key: str) -> None:
        """Remove what a crash left, and an environment that no longer counts as whole."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self.root / key).exists():
            # Renamed first: a removal that is broken off must not leave half a folder there.
            (self.root / key).rename(self.root / f"{key}.building-old-{secrets.token_hex(4)}")
        for left in self.root.glob(f"{key}.building-*"):
            shutil.rmtree(left, ignore_errors=True)


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(parent, name)).st_size for name in names)
    return total


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
