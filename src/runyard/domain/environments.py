"""What a job runs on, as the user asked for it."""

import re
from datetime import datetime

import msgspec

from runyard.domain.errors import Invalid


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One environment: an existing interpreter, or packages to build one from."""

    name: str
    version: str | None = None  # None: not registered
    user_managed: bool = False  # True: use `interpreter` as it is
    interpreter: str = "python"  # a path, or a name to find on PATH
    python: str | None = None  # the version asked for, "3.6.2"; None: the platform's own
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()  # conda packages beyond python and pip
    pip: tuple[str, ...] = ()  # requirement lines, and options such as --index-url
    variables: dict[str, str] = {}
    docker: bool = False
    base_image: str | None = None
    base_dockerfile: str | None = None
    docker_arguments: tuple[str, ...] = ()  # limits of the container, as `docker run` takes them
    shm_size: str | None = None  # of the container's /dev/shm; None: the machine's own


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True):
    """The environment a run really got."""

    key: str  # content key; equal keys share one build
    interpreter: str
    python: str  # the full version of that interpreter
    lock: tuple[str, ...] = ()  # name==version, one line each
    notes: tuple[str, ...] = ()  # what was chosen for the user, in words
    prefix: tuple[str, ...] = ()  # a container: what stands before a rank's command …
    remove: tuple[str, ...] = ()  # … and what ends it by name; see runyard_runtime.contained


class EnvironmentDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An environment to be registered: what the platform builds, and v1's JSON of it."""

    spec: EnvironmentSpec
    definition: dict[str, object] = {}  # empty: everything is in the spec


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a registered environment. Only its labels ever change."""

    id: str
    workspace: str
    spec: EnvironmentSpec  # with the version that it has in the workspace, "1", "2", …
    created: datetime
    version: int = 0  # the store's; see stores.base.Records.replace
    definition: dict[str, object] = {}
    labels: tuple[str, ...] = ()
    curated: bool = False  # True: one of the platform's own, not kept in the store
    tags: dict[str, str | None] = {}

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.spec.name


class EnvironmentOnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A built environment of the server's machine."""

    key: str
    name: str  # of the spec that it was first built for
    python: str
    lock: tuple[str, ...]
    requirements: tuple[str, ...]
    notes: tuple[str, ...] = ()
    size_bytes: int
    seconds: float  # that the build took
    last_used: datetime
    runs: tuple[str, ...] = ()  # unfinished runs that use it


class EnvironmentBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build that somebody asked for: how far it is, and its log from some point on."""

    id: str
    done: bool = False
    environment: EnvironmentUse | None = None  # None: not ready, or failed
    error: str = ""
    log: str = ""
    offset: int = 0  # where the log goes on: pass it to get what follows


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Which built environments may go; None does not limit."""

    keep_days: float | None = None  # those not used for longer go
    max_gb: float | None = None  # then the longest unused ones, until the rest fits
    dry_run: bool = False


def lock_text(name: str, use: EnvironmentUse | EnvironmentOnDisk) -> str:
    """An environment's lock as a file: `Environment.from_lock` builds the same from it again."""
    head = [f"# lock of '{name}', made by Runyard", f"# python {use.python}"]
    notes = [f"# {' '.join(note.split())}" for note in use.notes]
    return "".join(f"{line}\n" for line in (*head, *notes, *use.lock))


RESERVED_PREFIXES = ("AzureML", "Microsoft")

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,254}", re.ASCII)


def check_environment_name(name: str) -> str:
    """The name, or `Invalid` if nothing may be registered under it."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is not a valid environment name.",
            why="It needs 1 to 255 letters, digits, _, - or ., and starts with a letter or digit.",
            fix="Choose another name.",
        )
    if name.startswith(RESERVED_PREFIXES):
        raise Invalid(
            f"The environment '{name}' cannot be registered.",
            why=f"Names that begin with {' or '.join(RESERVED_PREFIXES)} are reserved for curated "
            "environments.",
            fix="Give your version a name of its own: env.clone('my-env').register(ws)",
        )
    return name
