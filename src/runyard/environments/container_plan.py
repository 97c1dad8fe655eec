"""What container a spec asks for, and how a rank is started in it. Pure."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported

Mode = Literal["auto", "require", "never"]

BUILDER = "container-1"  # part of every key: raise it when a build would come out differently
# v1's own images. They were retired with it: asking for one only costs the time to hear a no.
_RETIRED = re.compile(r"mcr\.microsoft\.com/azureml/|(viennaglobal|viennaprivate)\.azurecr\.io/")
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A container engine that answers on this machine."""

    kind: Literal["docker", "podman"]
    command: tuple[str, ...]  # how it is called, e.g. ("/usr/bin/podman",)
    rootless: bool = False
    gpus: tuple[str, ...] = ()  # what passes the machine's GPUs on; empty: none, or no way
    notes: tuple[str, ...] = ()


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank finds in its container."""

    image: str  # its id: names move
    path: str  # the image's PATH
    interpreter: str
    mounts: tuple[str, ...] = ()  # folders of this machine that it needs, read-only


def asks_for_container(spec: EnvironmentSpec) -> bool:
    """True if the spec says anything of containers."""
    return bool(spec.docker or spec.base_image or spec.base_dockerfile)


def without_container(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The same spec for a run outside a container."""
    return msgspec.structs.replace(
        spec,
        docker=False,
        base_image=None,
        base_dockerfile=None,
        docker_arguments=(),
        shm_size=None,
    )


def container_key(spec: EnvironmentSpec) -> str:
    """The content key of a spec: all of it but its name and the variables of the job."""
    content = msgspec.structs.replace(spec, name="", version=None, variables={})
    data = BUILDER.encode() + msgspec.json.encode(content, order="sorted")
    return hashlib.sha256(data).hexdigest()[:32]


def what_image(spec: EnvironmentSpec) -> str:
    """The image in words."""
    if spec.base_image:
        return spec.base_image
    return "the Dockerfile" if spec.base_dockerfile else "the default image"


def why_not(spec: EnvironmentSpec, mode: Mode) -> str:
    """Why the run takes place without a container, as far as nothing need be tried; else ''."""
    if mode == "never":
        return "RUNYARD_CONTAINERS is set to never"
    if mode == "require":
        return ""
    if not spec.base_image and not spec.base_dockerfile:
        return "nobody chose an image, and v1's default ones were retired with it"
    images = [spec.base_image] if spec.base_image else base_images(spec.base_dockerfile or "")
    if any(_RETIRED.match(image) for image in images):
        return "v1's own images were retired with it"
    return ""


def base_images(dockerfile: str) -> list[str]:
    """The images that a Dockerfile starts from, as far as they are written out."""
    found: list[str] = []
    stages: set[str] = set()
    for image, stage in _FROM.findall(dockerfile):
        if image.lower() not in {"scratch", *stages} and "$" not in image:
            found.append(image)
        stages.add(stage.lower())
    return found


# `docker run` options that only limit or label a container, and whether ours do it already.
_PASSED = {
    *("--memory", "--memory-swap", "--memory-reservation", "--cpus", "--cpu-shares"),
    *("--cpuset-cpus", "--pids-limit", "--shm-size", "--ulimit", "--add-host", "--env", "--label"),
}
_SHORT = {"-m": "--memory", "-c": "--cpu-shares", "-e": "--env", "-l": "--label"}
_OURS = {"--gpus", "--ipc", "--network", "--net", "--rm", "--init", "-it", "-i", "-t"}
_WITHOUT_VALUE = {"--rm", "--init", "-it", "-i", "-t"}


def docker_options(arguments: Sequence[str]) -> tuple[str, ...]:
    """The user's `docker run` options, each as --name=value; `Unsupported` if one is not allowed.

    Only what limits a container: a mount or a privilege would be one over this whole machine.
    """
    try:
        words = [word for argument in arguments for word in shlex.split(argument)]
    except ValueError as error:
        raise Unsupported(
            "The docker arguments of the run cannot be read.",
            why=f"{error}.",
            fix="Close every quote that you open.",
        ) from None
    options = []
    while words:
        flag, equals, value = words.pop(0).partition("=")
        flag = _SHORT.get(flag, flag)
        if flag not in _PASSED | _OURS:
            raise Unsupported(
                f"The docker argument '{flag}' cannot be passed on.",
                why=f"Only these are: {', '.join(sorted(_PASSED))}.",
                fix="Remove it from the docker arguments of the run.",
            )
        if not equals and flag not in _WITHOUT_VALUE:
            value = words.pop(0) if words else ""
        if flag in _PASSED:
            options.append(f"{flag}={value}")
    return tuple(options)


def user_options(engine: Engine, uid: int, gid: int) -> tuple[str, ...]:
    """Whom the container's processes are to be: files they write must be the user's own."""
    if engine.rootless and engine.kind == "docker":
        return ("--user=0:0",)  # its root is the user outside
    keep = ("--userns=keep-id",) if engine.rootless else ()
    home = ("--env=HOME=/tmp",) if uid else ()  # images know nobody but root
    return (*keep, f"--user={uid}:{gid}", *home)


def run_prefix(
    engine: Engine, inside: Inside, spec: EnvironmentSpec, uid: int, gid: int
) -> tuple[str, ...]:
    """The words before a rank's command; see runyard_runtime.contained for the placeholders.

    The container is for what is installed in it, not a cage: network, memory that processes
    share, and process numbers are the machine's own. So ranks of one node can talk to each other
    in every way, SIGTERM ends a script that is process 1 of nothing, and the agent sees all.
    """
    options = docker_options(spec.docker_arguments)
    own_shm = spec.shm_size or any(option.startswith("--shm-size=") for option in options)
    path = f"{inside.interpreter.rpartition('/')[0]}:{inside.path}"
    return (
        *engine.command,
        *("run", "--rm", "--name={name}", "--pull=never", "--label=runyard=rank"),
        *("--network=host", "--pid=host", *([] if own_shm else ["--ipc=host"])),
        *([f"--shm-size={spec.shm_size}"] if spec.shm_size else []),
        *("--log-driver=none", "--security-opt=label=disable", *engine.gpus),
        *user_options(engine, uid, gid),
        "--mount=type=bind,source={job},target={job}",
        "--mount=type=bind,source={runtime},target={runtime},readonly",
        "{cache}",
        *(f"--mount=type=bind,source={one},target={one},readonly" for one in inside.mounts),
        *(f"--env=PATH={path}", "{variables}", *options),
        *("--workdir={work}", "--entrypoint=", inside.image),
    )


def remove_command(engine: Engine) -> tuple[str, ...]:
    """What ends and removes containers; their names follow, and need not exist."""
    ignore = ("--ignore",) if engine.kind == "podman" else ()
    return (*engine.command, "rm", "--force", *ignore)
