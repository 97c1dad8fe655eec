"""The built environments of this machine: what there is, and how one goes."""

import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from runyard.domain.environments import EnvironmentOnDisk
from runyard.environments.build_lock import BuildLock
from runyard.environments.folders import LAST_USED, MARKER, BuiltEnvironment


def load_shelf(root: Path) -> list[EnvironmentOnDisk]:
    """Every whole environment below `root`, the last used first."""
    found = [one for folder in _folders(root) if (one := _load(folder)) is not None]
    return sorted(found, key=lambda one: one.last_used, reverse=True)


def remove_built(root: Path, one: EnvironmentOnDisk) -> bool:
    """Remove an environment, unless it was used since `one` was read, or is being built."""
    with BuildLock(root / "locks", one.key) as lock:
        if not lock.try_acquire():
            return False
        # Out of sight first. Whoever took it before that moment has touched it, so the look
        # comes afterwards; whoever comes later finds nothing and waits for the lock to build it.
        aside = root / f"{one.key}.building-old-{secrets.token_hex(4)}"
        try:
            (root / one.key).rename(aside)
        except FileNotFoundError:
            return False
        if _last_used(aside) > one.last_used:
            aside.rename(root / one.key)
            return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def remove_leftovers(root: Path) -> None:
    """Remove what crashes left of builds that nobody works on any more."""
    for left in list(root.glob("*.building-*")):
        with BuildLock(root / "locks", left.name.partition(".building-")[0]) as lock:
            if lock.try_acquire():
                shutil.rmtree(left, ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            yield from (Path(entry.path) for entry in entries if ".building-" not in entry.name)
    except FileNotFoundError:
        return


def _load(folder: Path) -> EnvironmentOnDisk | None:
    try:
        built = msgspec.json.decode((folder / MARKER).read_bytes(), type=BuiltEnvironment)
        last_used = _last_used(folder)
    except (OSError, msgspec.MsgspecError):
        return None
    return EnvironmentOnDisk(
        key=folder.name,
        name=built.name,
        python=built.python,
        lock=built.lock,
        requirements=built.requirements,
        notes=((built.note,) if built.note else ()) + built.notes,
        size_bytes=built.size_bytes,
        seconds=built.seconds,
        last_used=last_used,
    )


def _last_used(folder: Path) -> datetime:
    mark = folder / LAST_USED
    moment = (mark if mark.exists() else folder / MARKER).stat().st_mtime
    return datetime.fromtimestamp(moment, UTC)
