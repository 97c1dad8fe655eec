"""Compiles Horovod beside the framework it is for, once; the wheel is kept and used again.

<root>/wheels/<key>/horovod-….whl      a wheel, named by all that it was compiled with
<root>/wheels/<key>.building-…/        one that is being made, or what a crash left of it
"""

import os
import platform
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from runyard.domain.errors import EngineFailed, RunyardError
from runyard.environments.base import Log
from runyard.environments.build_lock import BuildLock
from runyard.environments.uv_tool import Uv
from runyard.planning.horovod import HorovodBuild, plan_horovod, wheel_key
from runyard.planning.requirements import Version


def install_horovod(
    tool: Uv,
    building: Path,
    line: str,
    lock: Sequence[str],
    python: Version,
    options: Sequence[str],
    log: Log,
) -> str:
    """Put what `line` asks for into the environment; the line of the lock for it."""
    try:
        build = plan_horovod(line, lock)
    except RunyardError as error:
        raise EngineFailed(error.what, why=error.why, fix=error.fix) from error
    root = building.parent
    key = wheel_key(build, python, f"{sys.platform}-{platform.machine()}")
    with BuildLock(root / "locks", key) as one:
        one.acquire(lambda: log("waiting for another run that compiles Horovod"))
        wheel = _find(root / "wheels" / key)
        if wheel is None:
            wheel = _compile(tool, building, build, root / "wheels" / key, options, log)
        else:
            log(f"Horovod {build.version} for {build.framework} was compiled before")
    python_path = str(building / "bin" / "python")
    tool.run("pip", "install", "--no-deps", "--offline", "--python", python_path, str(wheel))
    return f"horovod=={build.version}"


def _find(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _compile(
    tool: Uv, building: Path, build: HorovodBuild, folder: Path, options: Sequence[str], log: Log
) -> Path:
    path = os.pathsep.join([str(building / "bin"), tool.environ.get("PATH", os.defpath)])
    missing = [name for name in build.tools if shutil.which(name, path=path) is None]
    if missing:
        raise EngineFailed(
            f"Horovod {build.version} cannot be compiled.",
            why=f"This machine has no {' and no '.join(missing)}.",
            fix=f"Install a C++ compiler (apt install {' '.join(missing)}, or its like), then "
            "submit again.",
        )
    log(
        f"compiling Horovod {build.version} for {build.framework} {build.framework_version}; "
        "that takes minutes, and is done once"
    )
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = folder.with_name(f"{folder.name}.building-{os.getpid()}-{secrets.token_hex(4)}")
    work.mkdir(mode=0o700)
    try:
        # A cache of its own: uv's knows nothing of the framework a wheel was compiled against.
        tool.with_variables({**build.variables, "PATH": path}).run(
            *("pip", "install", "--no-deps", "--no-build-isolation", "--no-binary", "horovod"),
            *("--cache-dir", str(work / "cache"), "--target", str(work / "installed")),
            *options,
            f"horovod=={build.version}",
        )
        made = next(iter((work / "cache").rglob("horovod-*.whl")), None)
        if made is None:
            raise EngineFailed(
                f"Horovod {build.version} was compiled, but its wheel is not there.",
                why="This version of uv keeps wheels elsewhere.",
                fix="Install the version of uv that Runyard was tested with.",
            )
        (work / "kept").mkdir()
        made.rename(work / "kept" / made.name)
        (work / "kept").rename(folder)
        return folder / made.name
    finally:
        shutil.rmtree(work, ignore_errors=True)
