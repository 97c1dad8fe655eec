"""Containers: an image of docker or podman, and packages on top of it.

The image is used as it is. Packages that the spec names go into a virtual environment beside it,
made inside a container with the image's own Python by this machine's uv, kept like every other
environment and mounted into the containers of the ranks.

Where no container can be had, and nobody insists, the run takes place without one and says so.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed, RunyardError
from runyard.domain.secrets import redact
from runyard.environments.base import Builder, Log, builder_for
from runyard.environments.build_lock import BuildLock
from runyard.environments.conda_plan import needs_conda
from runyard.environments.container_engines import Engines, failed, image_id
from runyard.environments.container_plan import (
    BUILDER,
    Engine,
    Inside,
    Mode,
    asks_for_container,
    base_images,
    container_key,
    docker_options,
    remove_command,
    run_prefix,
    user_options,
    what_image,
    why_not,
    without_container,
)
from runyard.environments.folders import BuiltEnvironment, Folders
from runyard.environments.interpreters import OLDEST
from runyard.environments.uv_tool import Uv, find_uv, install_requirements, open_uv
from runyard.planning.environments import (
    VenvPlan,
    local_folder,
    pick_version,
    plan_key,
    plan_venv,
)
from runyard.planning.requirements import Version

# For a registry to say that it has the image; the rest of the pull may take its time.
_PULL_SECONDS = {"auto": 30.0, "require": 300.0, "never": 0.0}
_BUILD_SECONDS = 3600.0  # for a Dockerfile, whose bases are there by then
_LOOK_SECONDS = 60.0  # for a look into an image
_READY_SECONDS = 60.0  # that an image is believed to be there still
_AWAY_SECONDS = 600.0  # that an image which could not be had is not asked for again

_UV = "/runyard-uv"  # where this machine's uv is, inside
_LOOK = (
    'echo "path:$PATH"; {uv} --version >/dev/null 2>&1 && echo uv:ok; for one in "$@"; do '
    'found=$(command -v "$one") && "$found" -E -S -c "import sys, json; '
    "sys.stdout.write('python:' + json.dumps([list(sys.version_info[:3]), sys.executable]) + "
    'chr(10))"; done; true'
)
_PLACES = ("python", "python3", "/opt/conda/bin/python", "/opt/miniconda/bin/python")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is found in an image."""

    path: str = ""
    runs_uv: bool = False
    pythons: tuple[tuple[Version, str], ...] = ()  # version and path, in the order asked


class _NotToBeHad(Exception):
    """No container, for a reason that is not the user's packages; the text says why."""


class ContainerBuilder:
    """Has ranks run in containers, or hands the spec to the other builders."""

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        mode: Mode,
        others: Sequence[Builder],
        pull_seconds: float | None = None,
    ) -> None:
        self._folders = Folders(root, python_is_here=False)
        self._environ = environ
        self._mode = mode
        self._pull_seconds = pull_seconds or _PULL_SECONDS[mode]
        self._others = others
        self._engines = Engines(environ)
        self._lock = threading.Lock()
        self._ready: dict[str, tuple[float, EnvironmentUse]] = {}
        self._away: dict[str, tuple[float, str]] = {}  # key → why there is no container
        self._looks: dict[str, Look] = {}  # image id → what is in it

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True for specs that say anything of containers."""
        return asks_for_container(spec)

    def key(self, spec: EnvironmentSpec) -> str:
        """Equal for specs with the same image, packages and limits."""
        return container_key(spec)

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it was seen to be there a moment ago."""
        why, key = why_not(spec, self._mode), container_key(spec)
        with self._lock:
            seen, use = self._ready.get(key, (0.0, None))
            refused, reason = self._away.get(key, (0.0, ""))
        if use is not None and time.monotonic() - seen < _READY_SECONDS:
            return use
        if not why and reason and time.monotonic() - refused < _AWAY_SECONDS:
            why = reason
        return self._ready_without(spec, why) if why else None

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """See that image and packages are there; without a container if that is allowed."""
        key, why = container_key(spec), why_not(spec, self._mode)
        if not why:
            try:
                use = self._build(spec, log)
            except _NotToBeHad as error:
                why = str(error)
                if self._mode == "require":
                    fix = "Mend that, or set RUNYARD_CONTAINERS=auto to run without a container."
                    raise failed(spec.name, why, fix) from error
                with self._lock:
                    self._away[key] = (time.monotonic(), why)
            else:
                with self._lock:
                    self._ready[key] = (time.monotonic(), use)
                return use
        note = _without(spec, why)
        log(note)
        plain = without_container(spec)
        use = builder_for(plain, self._others).build(plain, log)
        return msgspec.structs.replace(use, notes=(note, *use.notes))

    def _ready_without(self, spec: EnvironmentSpec, why: str) -> EnvironmentUse | None:
        plain = without_container(spec)
        use = builder_for(plain, self._others).ready(plain)
        if use is None:
            return None
        return msgspec.structs.replace(use, notes=(_without(spec, why), *use.notes))

    def _build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        try:
            docker_options(spec.docker_arguments)
        except RunyardError as error:
            raise EngineFailed(error.what, why=error.why, fix=error.fix) from error
        engine, why = self._engines.find()
        if engine is None:
            raise _NotToBeHad(why)
        image = self._image(engine, spec, log)
        look = self._look(engine, image, spec)
        found = self._environment(engine, image, look, spec, log)
        kind, name = engine.kind, redact(what_image(spec))
        notes = (f"in a {kind} container of {name}, with Python {found.python}", *engine.notes)
        for note in notes:
            log(note)
        is_mounted = Path(found.interpreter).is_relative_to(self._folders.root)
        inside = Inside(
            image=image,
            path=look.path,
            interpreter=found.interpreter,
            mounts=(str(Path(found.interpreter).parents[1]),) if is_mounted else (),
        )
        return msgspec.structs.replace(
            found,
            notes=(*notes, *found.notes),
            prefix=run_prefix(engine, inside, spec, os.getuid(), os.getgid()),
            remove=remove_command(engine),
        )

    def _environment(
        self, engine: Engine, image: str, look: Look, spec: EnvironmentSpec, log: Log
    ) -> EnvironmentUse:
        """The interpreter inside: the image's, or one with the packages, which is mounted."""
        if not spec.user_managed and needs_conda(spec):
            plain = without_container(spec)
            use = builder_for(plain, self._others).build(plain, log)
            if (Path(use.interpreter).parents[1] / "conda-meta").is_dir():
                return use  # it brings its own Python, and runs where it is mounted
        try:
            plan = plan_venv(without_container(spec)) if not spec.user_managed else None
        except RunyardError as error:
            raise EngineFailed(error.what, why=error.why, fix=error.fix) from error
        version, python = _choose(look, plan)
        if plan is not None and plan.requirements:
            return self._packages(engine, image, look, (version, python), spec, plan, log)
        return EnvironmentUse(
            key=container_key(spec),
            interpreter=python,
            python=".".join(str(part) for part in version),
        )

    # ---- the image ---------------------------------------------------------------------------

    def _image(self, engine: Engine, spec: EnvironmentSpec, log: Log) -> str:
        """The id of the image, pulled or built if need be."""
        if spec.base_image:
            return self._pulled(engine, spec.base_image, log)
        if not spec.base_dockerfile:
            raise _NotToBeHad("the environment names no image: set docker.base_image")
        tag = f"localhost/runyard-environment:{container_key(spec)}"
        if found := image_id(self._engines, engine, tag):
            return found
        for base in base_images(spec.base_dockerfile):
            self._pulled(engine, base, log)
        with tempfile.TemporaryDirectory(prefix="runyard-image-") as folder:
            file = Path(folder) / "Dockerfile"
            file.write_text(spec.base_dockerfile, encoding="utf-8")
            why = self._engines.stream(
                engine,
                *("build", "--network=host", f"--tag={tag}", f"--file={file}", folder),
                log=log,
                patience=_BUILD_SECONDS,
            )
        if why:
            raise _NotToBeHad(f"its Dockerfile cannot be built: {redact(why)}")
        return image_id(self._engines, engine, tag)

    def _pulled(self, engine: Engine, image: str, log: Log) -> str:
        if found := image_id(self._engines, engine, image):
            return found
        log(f"pulling {redact(image)}")
        why = self._engines.stream(engine, "pull", image, log=log, patience=self._pull_seconds)
        if why:
            raise _NotToBeHad(f"{redact(image)} cannot be pulled: {redact(why)}")
        return image_id(self._engines, engine, image)

    def _look(self, engine: Engine, image: str, spec: EnvironmentSpec) -> Look:
        """Which Pythons the image has, and whether this machine's uv runs in it."""
        asked = (spec.interpreter,) if spec.user_managed else _names(spec.python)
        cached = f"{image} {asked}"
        with self._lock:
            if cached in self._looks:
                return self._looks[cached]
        done = self._engines.run(
            engine,
            *("run", "--rm", "--pull=never", "--network=host", "--log-driver=none"),
            *("--security-opt=label=disable", "--entrypoint="),
            *(f"--mount=type=bind,source={find_uv()},target={_UV},readonly", image),
            *("sh", "-c", _LOOK.format(uv=_UV), "sh", *asked, *_PLACES),
            timeout=_LOOK_SECONDS,
        )
        if done.returncode != 0:
            words = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise _NotToBeHad(f"a container cannot be started from the image: {redact(words)}")
        look = _read_look(done.stdout)
        with self._lock:
            self._looks[cached] = look
        return look

    # ---- the packages ------------------------------------------------------------------------

    def _packages(
        self,
        engine: Engine,
        image: str,
        look: Look,
        python: tuple[Version, str],
        spec: EnvironmentSpec,
        plan: VenvPlan,
        log: Log,
    ) -> EnvironmentUse:
        """The virtual environment for that image."""
        if not look.runs_uv:
            raise _NotToBeHad("uv, which installs its packages, does not run in the image")
        if plan.horovod:
            raise _NotToBeHad("Horovod is not compiled inside an image")
        version, path = python
        key = plan_key(plan, own_python=path, platform=image, builder=BUILDER)

        def fill(building: Path, lock: BuildLock) -> BuiltEnvironment:
            host = open_uv(spec.name, plan, self._environ, self._folders.root, log, lock)
            tool = self._uv_inside(engine, image, host, spec.name, log, lock)
            building.mkdir(mode=0o700)  # or a container whose root is somebody else owned it
            tool.run(
                "venv", "-q", "--relocatable", "--allow-existing", "--python", path, str(building)
            )
            locked = install_requirements(tool, building, plan, version)
            return BuiltEnvironment(
                python=".".join(str(part) for part in version),
                lock=tuple(redact(line) for line in locked),
                requirements=tuple(redact(line) for line in plan.requirements),
            )

        return self._folders.build(spec.name, key, plan.notes, log, fill)

    def _uv_inside(
        self, engine: Engine, image: str, host: Uv, name: str, log: Log, lock: BuildLock
    ) -> Uv:
        """This machine's uv, started in a container of the image."""
        home = Path(self._environ.get("HOME") or Path.home())
        caches = Path(self._environ.get("XDG_CACHE_HOME") or home / ".cache")
        cache = Path(self._environ.get("UV_CACHE_DIR") or caches / "uv")
        cache.mkdir(parents=True, exist_ok=True)
        environ = {**host.environ, "UV_CACHE_DIR": str(cache), "UV_PYTHON_DOWNLOADS": "never"}
        places = (host.options.index_url, *host.options.extra_index_urls, *host.options.find_links)
        read = {folder for place in places if place and (folder := local_folder(place))}
        read |= {environ[one] for one in ("SSL_CERT_FILE", "SSL_CERT_DIR") if environ.get(one)}
        passed = [
            one for one in environ if one.startswith(("UV_", "SSL_CERT")) or "proxy" in one.lower()
        ]
        program = [
            *engine.command,
            *("run", "--rm", "--pull=never", "--network=host", "--log-driver=none"),
            *("--security-opt=label=disable", *user_options(engine, os.getuid(), os.getgid())),
            f"--mount=type=bind,source={find_uv()},target={_UV},readonly",
            *(_mount(str(one)) for one in (self._folders.root, cache)),
            *(f"{_mount(one)},readonly" for one in sorted(read) if os.path.exists(one)),
            *(f"--env={one}" for one in sorted(passed)),
            *("--env=NO_COLOR=1", "--env=UV_NO_PROGRESS=1", "--entrypoint=", image, _UV),
        ]
        return Uv(name, environ, self._folders.root, log, lock, host.options, program)


def _without(spec: EnvironmentSpec, why: str) -> str:
    image = redact(what_image(spec))
    return f"docker: {image} is not used, the run takes place without a container: {why}"


def _mount(path: str) -> str:
    return f"--mount=type=bind,source={path},target={path}"


def _names(asked: str | None) -> tuple[str, ...]:
    """The interpreters to look for when that version is asked for."""
    parts = (asked or "").lstrip("= ").split(".")
    return (f"python{parts[0]}.{parts[1]}",) if len(parts) > 1 and parts[1].isdigit() else ()


def _read_look(text: str) -> Look:
    lines = text.splitlines()
    found = [json.loads(line[7:]) for line in lines if line.startswith("python:")]
    pythons = [(tuple(version), path) for version, path in found if path]
    return Look(
        path=next((line[5:] for line in lines if line.startswith("path:")), ""),
        runs_uv="uv:ok" in lines,
        pythons=tuple(one for one in pythons if one[0] >= OLDEST),
    )


def _choose(look: Look, plan: VenvPlan | None) -> tuple[Version, str]:
    """The image's Python for that spec."""
    has = ", ".join(".".join(str(part) for part in version) for version, _ in look.pythons)
    if not look.pythons:
        raise _NotToBeHad("the image has no Python of 3.6 or newer")
    if plan is None or plan.python is None:
        return look.pythons[0]
    version = pick_version(plan.python, [version for version, _ in look.pythons])
    if version is None:
        raise _NotToBeHad(f"the image has no Python {plan.python}, only {has}")
    return next(one for one in look.pythons if one[0] == version)
