"""Built environments on disk: what there is, and how one goes while others want it."""

import os
from pathlib import Path

from runyard.domain.environments import EnvironmentSpec
from runyard.environments import open_builders
from runyard.environments.base import Builder, builder_for
from runyard.environments.build_lock import BuildLock
from runyard.environments.shelf import load_shelf, remove_built, remove_leftovers

SPEC = EnvironmentSpec(name="small", pip=("user", "sklearn_is_not_here ; python_version < '3'"))


def opened(root: Path, offline: dict[str, str]) -> Builder:
    return builder_for(SPEC, open_builders(root, offline))


def test_the_shelf_says_what_was_built_and_for_whom(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    root = tmp_path / "environments"
    assert load_shelf(root) == []
    use = opened(root, offline).build(SPEC, print)
    (root / "stray").mkdir()
    (root / f"{use.key}.building-1").mkdir()
    (one,) = load_shelf(root)
    assert (one.key, one.name, one.python) == (use.key, "small", use.python)
    assert one.lock == ("tiny==1.0", "user==1.0")
    assert one.size_bytes > 0
    assert one.seconds > 0


def test_one_that_was_used_meanwhile_stays(tmp_path: Path, offline: dict[str, str]) -> None:
    builder = opened(tmp_path, offline)
    use = builder.build(SPEC, print)
    os.utime(tmp_path / use.key / "last-used", (1, 1))
    (seen,) = load_shelf(tmp_path)
    assert builder.ready(SPEC) == use, "somebody takes it after the shelf was read"
    assert not remove_built(tmp_path, seen)
    assert builder.ready(SPEC) == use
    (seen,) = load_shelf(tmp_path)
    assert remove_built(tmp_path, seen)
    assert builder.ready(SPEC) is None
    assert not remove_built(tmp_path, seen), "it is gone already"
    assert not list(tmp_path.glob("*.building-*"))


def test_one_that_is_being_built_stays(tmp_path: Path, offline: dict[str, str]) -> None:
    use = opened(tmp_path, offline).build(SPEC, print)
    (seen,) = load_shelf(tmp_path)
    (tmp_path / f"{use.key}.building-1").mkdir()
    with BuildLock(tmp_path / "locks", use.key) as lock:
        assert lock.try_acquire()
        assert not remove_built(tmp_path, seen)
        remove_leftovers(tmp_path)
        assert (tmp_path / f"{use.key}.building-1").exists()
    remove_leftovers(tmp_path)
    assert not (tmp_path / f"{use.key}.building-1").exists()
    assert (tmp_path / use.key).exists()
