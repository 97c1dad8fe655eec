"""Finds the container engine of this machine, and talks to it."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runyard.domain.errors import EngineFailed
from runyard.environments.base import Log
from runyard.environments.container_plan import Engine

ANSWER_SECONDS = 10.0  # to say that it is there
_FRESH_SECONDS = 60.0  # that an answer, also a no, is believed
# How an engine finds its daemon and its store. Agents do not inherit these: they go with the words.
_ITS_OWN = (
    *("BUILDAH_ISOLATION", "CONTAINERS_CONF", "CONTAINERS_REGISTRIES_CONF"),
    *("CONTAINERS_STORAGE_CONF", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_CONFIG", "DOCKER_CONTEXT"),
    *("DOCKER_HOST", "XDG_RUNTIME_DIR"),
)
# What `pull` says once the registry has the image, however long the rest may take.
_PULLING = ("pulling from", "getting image source signatures", "copying blob", "pulling fs layer")


class Engines:
    """The engine that answers, looked for now and then. Safe over threads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._found: Engine | None = None
        self._why = ""
        self._asked = -_FRESH_SECONDS

    def find(self) -> tuple[Engine | None, str]:
        """The engine, or None and why there is none."""
        with self._lock:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._found, self._why = _look(self._environ)
                self._asked = time.monotonic()
            return self._found, self._why

    def run(
        self, engine: Engine, *arguments: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine; one that takes too long counts as failed."""
        return _run([*engine.command, *arguments], self._environ, timeout)

    def stream(self, engine: Engine, *arguments: str, log: Log, patience: float) -> str:
        """Run a command whose lines go to the log; '' or why it failed.

        `patience` is how many seconds it has to say that it has begun to pull.
        """
        said: list[str] = []
        with subprocess.Popen(
            [*engine.command, *arguments],
            env=dict(self._environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            too_long = threading.Event()

            def give_up() -> None:
                too_long.set()
                process.kill()

            watch = threading.Timer(patience, give_up)
            watch.daemon = True
            watch.start()
            try:
                for line in process.stdout:
                    said.append(line.rstrip())
                    log(line.rstrip())
                    if any(word in line.lower() for word in _PULLING):
                        watch.cancel()
            finally:
                watch.cancel()
        if too_long.is_set():
            return f"no answer within {patience:g} seconds"
        words = [line for line in said if line.strip()]
        return "" if process.returncode == 0 else (words or ["it failed without a word"])[-1]


def image_id(engines: Engines, engine: Engine, image: str) -> str:
    """The id of an image that the engine has; '' if it has not."""
    done = engines.run(engine, "image", "inspect", "--format", "{{.Id}}", image, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else ""


def _look(environ: Mapping[str, str]) -> tuple[Engine | None, str]:
    reasons = []
    for kind in ("docker", "podman"):
        program = shutil.which(kind, path=environ.get("PATH", os.defpath))
        if program is None:
            reasons.append(f"there is no {kind}")
            continue
        done = _run([program, "info", "--format", "{{json .}}"], environ, ANSWER_SECONDS)
        try:
            told = json.loads(done.stdout) if done.returncode == 0 else {}
        except ValueError:
            told = {}
        engine = describe_engine(program, told, environ)
        if engine is not None:
            return engine, ""
        reasons.append(f"{kind} does not answer here")
    return None, " and ".join(reasons)


def describe_engine(program: str, told: Any, environ: Mapping[str, str]) -> Engine | None:
    """The engine that `info` told of; None if it cannot be used."""
    own = [f"{name}={environ[name]}" for name in _ITS_OWN if environ.get(name)]
    command = (shutil.which("env") or "env", *own, program) if own else (program,)
    has_gpus = os.path.exists("/dev/nvidiactl")
    interface = [*Path("/etc/cdi").glob("*nvidia*"), *Path("/var/run/cdi").glob("*nvidia*")]
    if not isinstance(told, dict):
        return None
    if isinstance(host := told.get("host"), dict):  # podman, perhaps under docker's name
        if host.get("serviceIsRemote"):
            return None  # another machine's: our folders are not there
        gpus = ("--device=nvidia.com/gpu=all",) if has_gpus and interface else ()
        rootless = bool((host.get("security") or {}).get("rootless"))
        engine = Engine(kind="podman", command=command, rootless=rootless, gpus=gpus)
    elif told.get("ServerVersion"):
        if environ.get("DOCKER_HOST", "unix:").partition(":")[0] not in ("unix", "fd"):
            return None
        able = bool(interface) or "nvidia" in (told.get("Runtimes") or {})
        gpus = ("--gpus=all",) if has_gpus and able else ()
        rootless = any("rootless" in str(one) for one in told.get("SecurityOptions") or ())
        engine = Engine(kind="docker", command=command, rootless=rootless, gpus=gpus)
    else:
        return None
    if has_gpus and not engine.gpus:
        note = f"{engine.kind} cannot pass GPUs on: install the NVIDIA Container Toolkit"
        return Engine(kind=engine.kind, command=command, rootless=rootless, notes=(note,))
    return engine


def _run(
    command: Sequence[str], environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {timeout:g} seconds")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def failed(name: str, why: str, fix: str) -> EngineFailed:
    """The failure of an environment whose container cannot be had."""
    return EngineFailed(f"The container of environment '{name}' cannot be had.", why=why, fix=fix)
