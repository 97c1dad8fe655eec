"""What a job runs on, as the user asked for it."""

import msgspec


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True):
    """The environment a run really got."""

    key: str  # content key; equal keys share one build
    interpreter: str
    python: str  # the full version of that interpreter
    lock: tuple[str, ...] = ()  # name==version, one line each
    notes: tuple[str, ...] = ()  # what was chosen for the user, in words
