"""Every setting, read from the environment in one place.

| variable | meaning | default |
|---|---|---|
| RUNYARD_HOME | the folder that everything is kept in | ~/.runyard |
| RUNYARD_URL | a remote server; unset: the embedded one is started for you | |
| RUNYARD_TOKEN | the token for RUNYARD_URL | |
| RUNYARD_HOST | where the server listens | 127.0.0.1 |
| RUNYARD_PORT | its port; 0: the last one used, or a free one | 0 |
| RUNYARD_ALLOWED_HOSTS | further Host names it answers to, with commas | |
| RUNYARD_DATABASE | SQLAlchemy URL of the metadata | SQLite in the home folder |
| RUNYARD_BLOBS | fsspec URL of the contents | a folder in the home folder |
| RUNYARD_LOCAL_SLOTS | runs at a time on the local target | the number of cores |
| RUNYARD_GRACE_SECONDS | between SIGTERM and SIGKILL of a rank | 10 |
| RUNYARD_SAMPLE_SECONDS | between two samples of CPU, memory and GPU use; 0: never | 10 |
| RUNYARD_BODY_LIMIT_MB | the largest request body but for blobs and logs | 64 |
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    home: Path
    url: str = ""
    token: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    allowed_hosts: tuple[str, ...] = ()
    database: str = ""
    blobs: str = ""
    local_slots: int = 0
    grace_seconds: float = 10.0
    sample_seconds: float = 10.0
    body_limit_mb: int = 64

    @property
    def database_url(self) -> str:
        """Where the metadata is."""
        return self.database or f"sqlite:///{self.home / 'runyard.db'}"

    @property
    def blobs_url(self) -> str:
        """Where the contents are."""
        return self.blobs or str(self.home / "blobs")

    @property
    def slots(self) -> int:
        """How many runs the local target works on at a time."""
        return self.local_slots or os.cpu_count() or 1


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings that the environment asks for."""
    hosts = environ.get("RUNYARD_ALLOWED_HOSTS", "")
    return Settings(
        home=Path(environ.get("RUNYARD_HOME") or Path.home() / ".runyard").expanduser().absolute(),
        url=environ.get("RUNYARD_URL", "").rstrip("/"),
        token=environ.get("RUNYARD_TOKEN", ""),
        host=environ.get("RUNYARD_HOST") or "127.0.0.1",
        port=int(environ.get("RUNYARD_PORT") or 0),
        allowed_hosts=tuple(name.strip() for name in hosts.split(",") if name.strip()),
        database=environ.get("RUNYARD_DATABASE", ""),
        blobs=environ.get("RUNYARD_BLOBS", ""),
        local_slots=int(environ.get("RUNYARD_LOCAL_SLOTS") or 0),
        grace_seconds=float(environ.get("RUNYARD_GRACE_SECONDS") or 10),
        sample_seconds=float(environ.get("RUNYARD_SAMPLE_SECONDS") or 10),
        body_limit_mb=int(environ.get("RUNYARD_BODY_LIMIT_MB") or 64),
    )
