"""Every setting, read from the environment in one place.

| variable | meaning | default |
|---|---|---|
| RUNYARD_HOME | the folder that everything is kept in | ~/.runyard |
| RUNYARD_URL | a remote server; unset: the embedded one is started for you | |
| RUNYARD_TOKEN | the token for RUNYARD_URL | |
| RUNYARD_HOST | where the server listens | 127.0.0.1 |
| RUNYARD_PORT | its port; 0: the last one used, or a free one | 0 |
| RUNYARD_ALLOWED_HOSTS | further Host names it answers to, with commas | |
| RUNYARD_PUBLIC_URL | where nodes of clusters reach it | the address it listens on |
| RUNYARD_COMPUTE | what AmlCompute is made of: local, ray:ADDRESS, slurm, slurm:PARTITION | local |
| RUNYARD_COMPUTE_OPTIONS | its options, as in a shell: account=team-a shared=false | |
| RUNYARD_COMPUTE_TOKEN_FILE | holds the token that the cluster of RUNYARD_COMPUTE asks for | |
| RUNYARD_DATABASE | SQLAlchemy URL of the metadata | SQLite in the home folder |
| RUNYARD_BLOBS | fsspec URL of the contents | a folder in the home folder |
| RUNYARD_LOCAL_SLOTS | runs at a time on the local target | the number of cores |
| RUNYARD_GRACE_SECONDS | between SIGTERM and SIGKILL of a rank | 10 |
| RUNYARD_GROUP_SECONDS | for all nodes of a run to come up, before it fails | 300 |
| RUNYARD_SERVICE_START_SECONDS | for a service to load its model, before it fails | 600 |
| RUNYARD_SAMPLE_SECONDS | between two samples of CPU, memory and GPU use; 0: never | 10 |
| RUNYARD_BODY_LIMIT_MB | the largest request body but for blobs and logs | 64 |
| RUNYARD_CONTAINERS | auto, require or never: may runs use docker or podman | auto |
| RUNYARD_CACHE_GB | how large a node's cache of fetched data may grow | 50 |
| RUNYARD_FETCH_LIMIT_GB | the largest file that is fetched from the web; 0: any | 0 |
| RUNYARD_MIRRORS | JSON object: beginnings of web addresses, and what to fetch instead | {} |
| RUNYARD_ALLOW_PRIVATE_ADDRESSES | 0 or 1: may data come from there | 1 on loopback, else 0 |
| AML_SNAPSHOT_NO_FILE_LIMIT | v1's own: if set, a source folder may hold any number of files | |
"""

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from runyard.domain.compute import CLUSTERS
from runyard.domain.errors import Invalid

Containers = Literal["auto", "require", "never"]
GIGABYTE = 10**9
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    home: Path
    url: str = ""
    token: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    allowed_hosts: tuple[str, ...] = ()
    public_url: str = ""
    compute: str = "local"
    compute_options: dict[str, str] = {}
    compute_token_file: str = ""
    database: str = ""
    blobs: str = ""
    local_slots: int = 0
    grace_seconds: float = 10.0
    group_seconds: float = 300.0
    service_start_seconds: float = 600.0
    sample_seconds: float = 10.0
    body_limit_mb: int = 64
    containers: Containers = "auto"
    cache_gb: float = 50.0
    fetch_limit_gb: float = 0.0
    mirrors: dict[str, str] = {}
    allow_private_addresses: bool | None = None  # None: as the host says, see `allows_private`
    snapshot_any_count: bool = False

    @property
    def database_url(self) -> str:
        """Where the metadata is."""
        return self.database or f"sqlite:///{self.home / 'runyard.db'}"

    @property
    def blobs_url(self) -> str:
        """Where the contents are."""
        return self.blobs or str(self.home / "blobs")

    @property
    def compute_engine(self) -> tuple[str, dict[str, str]] | None:
        """The kind and the options of the engine that AmlCompute comes from; None: this machine."""
        kind, _, rest = self.compute.partition(":")
        if kind == "local":
            return None
        return kind, {**self.compute_options, **({CLUSTERS[kind].main: rest} if rest else {})}

    @property
    def slots(self) -> int:
        """How many runs the local target works on at a time."""
        return self.local_slots or os.cpu_count() or 1

    @property
    def allows_private(self) -> bool:
        """Whether data may come from private addresses: on one's own machine it may."""
        if self.allow_private_addresses is not None:
            return self.allow_private_addresses
        return self.host in LOOPBACK

    @property
    def fetch_limit_bytes(self) -> int | None:
        """The largest file that is fetched from the web; None: any."""
        return int(self.fetch_limit_gb * GIGABYTE) or None


def near(host: str) -> str:
    """The address by which this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def default_home() -> Path:
    """Where everything is kept when RUNYARD_HOME is not set."""
    return Path.home() / ".runyard"


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings that the environment asks for."""
    hosts = environ.get("RUNYARD_ALLOWED_HOSTS", "")
    return Settings(
        home=Path(environ.get("RUNYARD_HOME") or default_home()).expanduser().absolute(),
        url=environ.get("RUNYARD_URL", "").rstrip("/"),
        token=environ.get("RUNYARD_TOKEN", ""),
        host=environ.get("RUNYARD_HOST") or "127.0.0.1",
        port=int(_number(environ, "RUNYARD_PORT", 0, most=65535)),
        allowed_hosts=tuple(name.strip() for name in hosts.split(",") if name.strip()),
        public_url=environ.get("RUNYARD_PUBLIC_URL", "").rstrip("/"),
        compute=_compute(environ.get("RUNYARD_COMPUTE", "")),
        compute_options=_options(environ.get("RUNYARD_COMPUTE_OPTIONS", "")),
        compute_token_file=environ.get("RUNYARD_COMPUTE_TOKEN_FILE", ""),
        database=environ.get("RUNYARD_DATABASE", ""),
        blobs=environ.get("RUNYARD_BLOBS", ""),
        local_slots=int(_number(environ, "RUNYARD_LOCAL_SLOTS", 0)),
        grace_seconds=_number(environ, "RUNYARD_GRACE_SECONDS", 10),
        group_seconds=_number(environ, "RUNYARD_GROUP_SECONDS", 300),
        service_start_seconds=_number(environ, "RUNYARD_SERVICE_START_SECONDS", 600),
        sample_seconds=_number(environ, "RUNYARD_SAMPLE_SECONDS", 10),
        body_limit_mb=int(_number(environ, "RUNYARD_BODY_LIMIT_MB", 64)),
        containers=_containers(environ.get("RUNYARD_CONTAINERS", "")),
        cache_gb=_number(environ, "RUNYARD_CACHE_GB", 50),
        fetch_limit_gb=_number(environ, "RUNYARD_FETCH_LIMIT_GB", 0),
        mirrors=_mirrors(environ.get("RUNYARD_MIRRORS", "")),
        allow_private_addresses=_choice(
            "RUNYARD_ALLOW_PRIVATE_ADDRESSES", environ.get("RUNYARD_ALLOW_PRIVATE_ADDRESSES", "")
        ),
        snapshot_any_count=bool(environ.get("AML_SNAPSHOT_NO_FILE_LIMIT")),
    )


def _number(
    environ: Mapping[str, str], name: str, default: float, *, most: int | None = None
) -> float:
    text = environ.get(name) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf or (most is not None and number > most):
        limit = "" if most is None else f", {most} at most"
        raise Invalid(
            f"The setting {name}={text!r} makes no sense.",
            why=f"It must be a number that is not negative{limit}.",
            fix=f"Correct it, or unset it (the default is {default:g}).",
        )
    return number


def _compute(text: str) -> str:
    given = text.strip() or "local"
    kind, _, rest = given.partition(":")
    known = CLUSTERS.get(kind)
    is_whole = known is not None and (rest or (not known.is_needed and given == kind))
    if given != "local" and not is_whole:
        forms = [f"{name}:{one.main.upper()}" for name, one in CLUSTERS.items()]
        alone = [name for name, one in CLUSTERS.items() if not one.is_needed]
        raise Invalid(
            f"The setting RUNYARD_COMPUTE={text!r} makes no sense.",
            why=f"It is {', '.join(['local', *forms])} or {' or '.join(alone)}.",
            fix="Correct it, or unset it (the default is local: this machine).",
        )
    return given


def _options(text: str) -> dict[str, str]:
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:  # a quotation mark without its other half
        pairs, why = [("", "", "")], f"{error}."
    else:
        why = "It is name=value, further ones after blanks; quote a value that has blanks itself."
    if not all(name and sign for name, sign, _ in pairs):
        raise Invalid(
            f"The setting RUNYARD_COMPUTE_OPTIONS={text!r} makes no sense.",
            why=why,
            fix="Write for example: account=team-a 'arguments=--constraint=a100 --exclusive'",
        )
    return {name: value for name, _, value in pairs}


def _containers(text: str) -> Containers:
    try:
        mode: Containers = msgspec.convert(text.strip().lower() or "auto", Containers)
    except msgspec.ValidationError:
        raise Invalid(
            f"The setting RUNYARD_CONTAINERS={text!r} makes no sense.",
            why="It is auto (where it is possible), require (or fail) or never.",
            fix="Correct it, or unset it (the default is auto).",
        ) from None
    return mode


def _mirrors(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        mirrors = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise Invalid(
            "The setting RUNYARD_MIRRORS makes no sense.",
            why=f"{error}.",
            fix='Write {"http://old.example/": "https://new.example/copy/"}, or unset it.',
        ) from None
    for address in (*mirrors, *mirrors.values()):
        if not address.startswith(("http://", "https://")):
            raise Invalid(
                f"RUNYARD_MIRRORS has {address!r}, which is not the beginning of an address.",
                fix="Begin it with http:// or https://.",
            )
    return mirrors


def _choice(name: str, text: str) -> bool | None:
    known = {
        "": None,
        "0": False,
        "false": False,
        "no": False,
        "1": True,
        "true": True,
        "yes": True,
    }
    if text.strip().lower() not in known:
        raise Invalid(f"The setting {name}={text!r} makes no sense.", fix="Set it to 0 or 1.")
    return known[text.strip().lower()]


def to_environ(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a server with these settings, started from this one.

    The server runs in its home folder, so relative entries of PYTHONPATH are made absolute. It
    may keep bytecode, whatever this process was told: it starts often. And what marks the
    processes of a job is left out: a server that a job starts must not end with that job.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("RUNYARD_", "AZUREML_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    folders = [
        os.path.abspath(path) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path
    ]
    if folders:
        kept["PYTHONPATH"] = os.pathsep.join(folders)
    return {
        **kept,
        "RUNYARD_HOME": str(settings.home),
        "RUNYARD_HOST": settings.host,
        "RUNYARD_PORT": str(settings.port),
        "RUNYARD_ALLOWED_HOSTS": ",".join(settings.allowed_hosts),
        "RUNYARD_PUBLIC_URL": settings.public_url,
        "RUNYARD_COMPUTE": settings.compute,
        "RUNYARD_COMPUTE_OPTIONS": shlex.join(
            f"{name}={value}" for name, value in settings.compute_options.items()
        ),
        "RUNYARD_COMPUTE_TOKEN_FILE": settings.compute_token_file,
        "RUNYARD_DATABASE": settings.database,
        "RUNYARD_BLOBS": settings.blobs,
        "RUNYARD_LOCAL_SLOTS": str(settings.local_slots),
        "RUNYARD_GRACE_SECONDS": str(settings.grace_seconds),
        "RUNYARD_GROUP_SECONDS": str(settings.group_seconds),
        "RUNYARD_SERVICE_START_SECONDS": str(settings.service_start_seconds),
        "RUNYARD_SAMPLE_SECONDS": str(settings.sample_seconds),
        "RUNYARD_BODY_LIMIT_MB": str(settings.body_limit_mb),
        "RUNYARD_CONTAINERS": settings.containers,
        "RUNYARD_CACHE_GB": str(settings.cache_gb),
        "RUNYARD_FETCH_LIMIT_GB": str(settings.fetch_limit_gb),
        "RUNYARD_MIRRORS": msgspec.json.encode(settings.mirrors).decode(),
        "RUNYARD_ALLOW_PRIVATE_ADDRESSES": {None: "", True: "1", False: "0"}[
            settings.allow_private_addresses
        ],
    }
