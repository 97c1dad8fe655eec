"""Routes of environments: the registry of a workspace, and what is built on this machine."""

import msgspec

from runyard.conductor import environments
from runyard.domain.environments import (
    EnvironmentBuild,
    EnvironmentDraft,
    EnvironmentOnDisk,
    EnvironmentRecord,
    EnvironmentSpec,
    Eviction,
)
from runyard.domain.errors import NotFound
from runyard.domain.secrets import redact_all
from runyard.domain.tokens import Grant, Role
from runyard.environments.shelf import load_shelf, remove_built, remove_leftovers
from runyard.server.platform import Platform, utc_now
from runyard.server.routing import Call, NoQuery


class EnvironmentQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which version; without both the newest."""

    version: str | None = None
    label: str | None = None


class BuildQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on the log is wanted."""

    offset: int = 0


def register(call: Call[EnvironmentDraft, NoQuery]) -> EnvironmentRecord:
    """Keep an environment as the next version of its name."""
    return environments.register(
        call.platform.store, call.params["workspace"], call.body, utc_now()
    )


def list_environments(call: Call[None, NoQuery]) -> list[EnvironmentRecord]:
    """The newest version of every environment, the curated ones too."""
    found = environments.list_environments(call.platform.store, call.params["workspace"])
    return [_for_caller(call.grant, record) for record in found]


def get_environment(call: Call[None, EnvironmentQuery]) -> EnvironmentRecord:
    """One version of an environment."""
    record = environments.load_environment(
        call.platform.store,
        call.params["workspace"],
        call.params["environment"],
        call.query.version,
        call.query.label,
    )
    return _for_caller(call.grant, record)


def list_versions(call: Call[None, NoQuery]) -> list[EnvironmentRecord]:
    """Every version of an environment, newest first."""
    store, params = call.platform.store, call.params
    found = environments.list_versions(store, params["workspace"], params["environment"])
    return [_for_caller(call.grant, record) for record in found]


def set_labels(call: Call[list[str], NoQuery]) -> EnvironmentRecord:
    """Give a version labels; one that another version has moves."""
    return environments.set_labels(
        call.platform.store,
        call.params["workspace"],
        call.params["environment"],
        call.params["version"],
        call.body,
    )


def list_built(call: Call[None, NoQuery]) -> list[EnvironmentOnDisk]:
    """What is built on this machine, the last used first."""
    return _shelf(call.platform)


def get_built(call: Call[None, NoQuery]) -> EnvironmentOnDisk:
    """One built environment, by its key or the beginning of it."""
    key = call.params["key"]
    found = [one for one in _shelf(call.platform) if one.key.startswith(key)]
    if len(found) != 1:
        raise NotFound(
            f"There is {'more than one' if found else 'no'} built environment '{key}'.",
            fix="See what there is with: runyard env ls",
        )
    return found[0]


def find_built(call: Call[EnvironmentSpec, NoQuery]) -> EnvironmentBuild:
    """The environment that a spec stands for, if it is built."""
    return call.platform.builds.find(call.body)


def start_build(call: Call[EnvironmentSpec, NoQuery]) -> EnvironmentBuild:
    """Build an environment, or join whoever builds it."""
    return call.platform.builds.start(call.body)


def get_build(call: Call[None, BuildQuery]) -> EnvironmentBuild:
    """How far a build is, with its log from some point on."""
    return call.platform.builds.look(call.params["build"], call.query.offset)


def evict(call: Call[Eviction, NoQuery]) -> list[EnvironmentOnDisk]:
    """Remove built environments by age and space, never one in use; those that went."""
    platform, root = call.platform, call.platform.settings.home / "environments"
    going = environments.choose_eviction(_shelf(platform), call.body, utc_now())
    if call.body.dry_run:
        return going
    remove_leftovers(root)
    return [one for one in going if remove_built(root, one)]


def _for_caller(grant: Grant, record: EnvironmentRecord) -> EnvironmentRecord:
    """The passwords of private indexes are for the owner alone."""
    return record if grant.role is Role.OWNER else redact_all(record)


def _shelf(platform: Platform) -> list[EnvironmentOnDisk]:
    shelf = load_shelf(platform.settings.home / "environments")
    # The runs after the shelf: one that was handed out in between has been touched since.
    return environments.mark_use(platform.store, platform.builds.builders, shelf)
