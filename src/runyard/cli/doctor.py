"""`runyard doctor`: what on this machine helps or hinders, and what to do about it."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
import msgspec

from runyard import __version__
from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option
from runyard.cli.render import size_text
from runyard.cli.scope import find_settings_anyhow
from runyard.domain.compute import ComputeRecord
from runyard.domain.errors import Denied, RunyardError, from_text
from runyard.domain.server import TOKEN_FILE
from runyard.domain.workspaces import WorkspaceRecord
from runyard.sdk.exceptions import AzureMLException
from runyard.settings import Settings

if TYPE_CHECKING:
    from runyard.sdk.embedded import Status

LITTLE_SPACE_BYTES = 2_000_000_000  # one environment with a framework takes as much
NO_SPACE_BYTES = 100_000_000
SLOW_SYNC_SECONDS = 0.05


class Verdict(StrEnum):
    """How a check went."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.INFO: "dim"}


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor's report."""

    name: str
    verdict: Verdict
    text: str
    fix: str = ""


@click.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check this machine; exit code 1 if something keeps Runyard from working.

    \b
    Example:
      runyard doctor
    """
    checks = list(examine())
    if as_json:
        console.document(checks)
    else:
        rows = [
            [Cell(check.verdict, COLOURS[check.verdict]), Cell(check.name), Cell(check.text)]
            for check in checks
        ]
        console.table(("", "CHECK", "FOUND"), rows, shrink=("FOUND",))
        for check in checks:
            if check.fix:
                console.say(f"\n{check.name}: {console.plain(check.text)}\n  fix: {check.fix}")
    if any(check.verdict is Verdict.FAIL for check in checks):
        context.exit(1)


def examine() -> Iterator[Check]:
    """Every check, in the order in which one thing rests on another."""
    yield check_python(sys.version_info[:3])
    try:
        settings, workspace, damage = find_settings_anyhow()
    except RunyardError as error:
        yield Check("settings", Verdict.FAIL, f"{error.what} {error.why}".rstrip(), error.fix)
        return
    yield check_workspace(workspace, damage)
    home = check_home(settings.home)
    yield home
    if home.verdict is not Verdict.FAIL:
        yield check_space(shutil.disk_usage(_existing(settings.home)).free)
        yield check_sync(_sync_seconds(_existing(settings.home)))
    yield from check_access(settings)
    yield check_port(settings)
    yield check_database(settings.database_url)
    yield check_uv()
    yield check_interpreters()
    yield check_tool("git", "The commit of a source folder is recorded.", "Install git.")
    yield from information()


def check_python(version: tuple[int, ...]) -> Check:
    """The interpreter of the platform itself."""
    text = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version >= (3, 11):
        return Check("python", Verdict.OK, text)
    return Check("python", Verdict.FAIL, text, "Install Runyard on Python 3.11 or newer.")


def check_workspace(workspace: str | None, damage: AzureMLException | None = None) -> Check:
    """Whether this folder belongs to a workspace, and its configuration can be used."""
    if damage is not None:
        told = from_text(str(damage))
        return Check("workspace", Verdict.FAIL, f"{told.what} {told.why}", told.fix)
    if workspace:
        return Check("workspace", Verdict.OK, workspace)
    return Check("workspace", Verdict.INFO, "this folder has no config.json; see: runyard init")


def check_home(home: Path) -> Check:
    """Whether the home folder can be written."""
    place = _existing(home)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check("home", Verdict.OK, str(home))
    fix = f"Make {place} a folder you can write, or name another in RUNYARD_HOME."
    return Check("home", Verdict.FAIL, f"{home} cannot be written", fix)


def _existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_space(free: int) -> Check:
    """Whether an environment and some outputs fit on the disk."""
    text = f"{size_text(free)} free"
    if free >= LITTLE_SPACE_BYTES:
        return Check("disk space", Verdict.OK, text)
    verdict = Verdict.WARN if free >= NO_SPACE_BYTES else Verdict.FAIL
    return Check("disk space", verdict, text, "Free some space, or move RUNYARD_HOME elsewhere.")


def check_sync(seconds: float) -> Check:
    """How long the disk takes to keep something for good; every change of a run waits for it."""
    text = f"{seconds * 1000:.1f} ms for a durable write"
    if seconds <= SLOW_SYNC_SECONDS:
        return Check("disk speed", Verdict.OK, text)
    return Check("disk speed", Verdict.WARN, text, "Put RUNYARD_HOME on a local disk.")


def _sync_seconds(folder: Path) -> float:
    """The median of five."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(5):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return sorted(times)[2]


def check_access(settings: Settings) -> Iterator[Check]:
    """Whether the server answers, is of our version, and takes our token."""
    from runyard.sdk import embedded

    try:
        found = embedded.status(settings)
    except Denied as error:  # of a remote one
        yield Check("token", Verdict.FAIL, f"{error.what} {error.why}".rstrip(), error.fix)
        return
    except RunyardError as error:
        yield Check("server", Verdict.FAIL, f"{error.what} {error.why}".rstrip(), error.fix)
        return
    yield check_server(settings, found)
    if found.denied:
        yield Check("token", Verdict.FAIL, found.reason, found.fix)
    elif not settings.url:
        yield check_token(settings.home / TOKEN_FILE)
    elif found.server is not None:
        yield Check("token", Verdict.OK, f"RUNYARD_TOKEN is accepted by {settings.url}")
    if found.server is not None and not found.denied:
        yield from check_clusters(_load_clusters(settings))


def _load_clusters(settings: Settings) -> list[ComputeRecord]:
    """Every target whose nodes are a cluster's; each cluster is asked now."""
    from runyard.sdk.embedded import connect

    client = connect(settings)
    workspaces = client.request("GET", "/api/v1/workspaces", answer=list[WorkspaceRecord])
    found: list[ComputeRecord] = []
    for one in workspaces:
        path = f"/api/v1/workspaces/{quote(one.name, safe='')}/computes"
        found += client.request("GET", path, query={"ask": True}, answer=list[ComputeRecord])
    return [one for one in found if one.engine is not None]


def check_clusters(found: Sequence[ComputeRecord]) -> Iterator[Check]:
    """Whether the clusters of Slurm and Ray that targets stand for can be used."""
    for one in found:
        name, kind = f"cluster {one.name}", one.engine.kind if one.engine is not None else ""
        if not one.warnings:
            yield Check(name, Verdict.OK, f"{kind} takes jobs (workspace {one.workspace})")
            continue
        fix = f"See its address and options with: runyard compute show {one.name}"
        yield Check(name, Verdict.WARN, " ".join(one.warnings), fix)


def check_server(settings: Settings, found: "Status") -> Check:
    """Whether the server answers and is of our version."""
    if found.denied:
        return Check("server", Verdict.WARN, f"process {found.pid} runs; see the token")
    if found.server is None:
        if settings.url:
            fix = f"Check that {settings.url} is right and that the server runs there."
            return Check("server", Verdict.FAIL, found.reason, fix)
        if found.pid is not None:
            fix = f"If process {found.pid} is a Runyard server, end it: kill -9 {found.pid}"
            return Check("server", Verdict.FAIL, found.reason, fix)
        return Check("server", Verdict.OK, f"starts when it is needed: {found.reason}")
    text = f"{found.server.version} at {found.server.url} (process {found.server.pid})"
    if found.server.version == __version__:
        return Check("server", Verdict.OK, text)
    fix = "runyard down && runyard up --detach"
    return Check("server", Verdict.WARN, f"{text}; this is {__version__}", fix)


def check_token(file: Path) -> Check:
    """Whether the owner's token is the owner's alone."""
    try:
        mode = file.stat().st_mode & 0o777
        file.read_bytes()
    except FileNotFoundError:
        return Check("token", Verdict.OK, "made when the server starts")
    except OSError as error:
        fix = "Become the user who owns it."
        return Check("token", Verdict.FAIL, f"{file}: {error.strerror}", fix)
    if mode & 0o077:
        fix = f"chmod 600 '{file}'"
        return Check("token", Verdict.WARN, f"{file} is open to others ({mode:o})", fix)
    return Check("token", Verdict.OK, f"{file} (mode {mode:o})")


def check_port(settings: Settings) -> Check:
    """Whether the server could listen where it is told to."""
    if not settings.port:
        return Check("port", Verdict.OK, f"any free one at {settings.host}")
    place = f"{settings.host}:{settings.port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            text = f"{place} is in use (fine if that is the server): {error.strerror}"
            return Check("port", Verdict.INFO, text)
    return Check("port", Verdict.OK, f"{place} is free")


def check_database(url: str) -> Check:
    """Which database holds the metadata, and whether its driver is here. Never the password."""
    kind = url.partition(":")[0].partition("+")[0]
    if kind == "sqlite":
        return Check("database", Verdict.OK, "SQLite")
    if kind != "postgresql":
        fix = "Set RUNYARD_DATABASE to a sqlite:/// or postgresql:// address, or unset it."
        return Check("database", Verdict.FAIL, f"'{kind}' is not supported", fix)
    if importlib.util.find_spec("psycopg") is None:
        fix = "pip install 'runyard[postgres]'"
        return Check("database", Verdict.FAIL, "PostgreSQL, but its driver is missing", fix)
    return Check("database", Verdict.OK, "PostgreSQL")


def check_uv() -> Check:
    """The tool that builds environments."""
    try:
        from uv import find_uv_bin

        found: str | None = find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found:
        return Check("uv", Verdict.OK, f"{_first_line([found, '--version'])} at {found}")
    return Check("uv", Verdict.FAIL, "not found; no environment can be built", "pip install uv")


def check_interpreters() -> Check:
    """The Pythons that environments can be built on."""
    from runyard.environments.interpreters import Probe, installed

    found = installed(os.environ, Probe())
    return Check("interpreters", Verdict.OK, ", ".join(one.version_text for one in found))


def check_tool(name: str, use: str, fix: str) -> Check:
    """A program that is nice to have."""
    path = shutil.which(name)
    if path:
        return Check(name, Verdict.OK, path)
    return Check(name, Verdict.WARN, f"not found. Without it not: {use}", fix)


def information() -> Iterator[Check]:
    """What else is here, without a judgement."""
    probes: dict[str, Callable[[], str]] = {
        "docker": lambda: shutil.which("docker") or "",
        "podman": lambda: shutil.which("podman") or "",
        "fuse": lambda: "/dev/fuse" if Path("/dev/fuse").exists() else "",
        "gpu": lambda: _first_line(["nvidia-smi", "-L"]),
    }
    for name, probe in probes.items():
        yield Check(name, Verdict.INFO, probe() or "none")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
