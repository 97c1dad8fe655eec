"""Workspaces and experiments."""

import re
from datetime import datetime

import msgspec

from runyard.domain.errors import Invalid


class WorkspaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A place that holds experiments, and all that belongs to them."""

    id: str
    name: str
    created: datetime
    version: int = 0
    subscription_id: str = ""
    resource_group: str = ""
    location: str = "local"
    friendly_name: str = ""
    description: str = ""
    tags: dict[str, str | None] = {}
    default_datastore: str = "workspaceblobstore"  # its name


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a new workspace."""

    name: str
    subscription_id: str = ""
    resource_group: str = ""
    location: str = "local"
    friendly_name: str = ""
    exist_ok: bool = True
    tags: dict[str, str | None] = {}


class ExperimentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A named series of runs."""

    id: str
    workspace: str
    name: str
    created: datetime
    version: int = 0
    tags: dict[str, str | None] = {}


_WORKSPACE = re.compile(r"[A-Za-z0-9][\w-]{1,32}")
_EXPERIMENT = re.compile(r"[A-Za-z0-9][\w-]{0,254}")
_RUN = re.compile(r"[A-Za-z0-9][\w.-]{0,255}")


def check_workspace_name(name: str) -> str:
    """The name, or `Invalid` if v1 would refuse it."""
    return _check(_WORKSPACE, name, "workspace", "2 to 33 letters, digits, _ or -")


def check_experiment_name(name: str) -> str:
    """The name, or `Invalid` if v1 would refuse it."""
    return _check(_EXPERIMENT, name, "experiment", "1 to 255 letters, digits, _ or -")


def check_run_id(name: str) -> str:
    """The id, or `Invalid` if v1 would refuse it."""
    return _check(_RUN, name, "run id", "1 to 256 letters, digits, _, - or .")


def _check(pattern: re.Pattern[str], name: str, noun: str, rule: str) -> str:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise Invalid(
            f"{name!r} is not a valid {noun} name.",
            why=f"It needs {rule}, and starts with a letter or digit.",
            fix="Choose another name.",
        )
    return name
