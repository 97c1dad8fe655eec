"""`config.json`: which workspace a folder belongs to, found where v1 looked for it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runyard.sdk.exceptions import UserErrorException, user_error
from runyard.settings import Settings, default_home, load_settings

CONFIG_NAME = "config.json"
LEGACY_NAME = "project.json"
FOLDERS = (".azureml", "aml_config", "")  # in each folder on the way up, in this order


class WorkspaceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a config.json says. `home` and `url` are ours; a file of Azure's has neither."""

    workspace_name: str
    subscription_id: str = ""
    resource_group: str = ""
    home: str = ""
    url: str = ""


def candidates(start: Path, file_name: str | None = None) -> Iterator[Path]:
    """Every place to look, best first: the folder, then its parents."""
    names = (file_name,) if file_name else (CONFIG_NAME, LEGACY_NAME)
    for folder in (start, *start.parents):
        for below in FOLDERS:
            for name in names:
                yield folder / below / name


def find_config(path: str | os.PathLike[str] | None, file_name: str | None = None) -> Path:
    """The file that `Workspace.from_config(path)` means, or an error that says where it looked."""
    start = Path(os.fspath(path) if path is not None else ".").expanduser().absolute()
    if start.is_file():
        return start
    if not start.exists() and path is not None:
        raise user_error(
            f"There is no file or folder '{path}'.",
            why=f"It would be {start}.",
            fix="Give the path of a config.json, or of a folder below which it lies.",
        )
    for candidate in candidates(start, file_name):
        if candidate.is_file():
            return candidate
    raise user_error(
        f"No workspace configuration ({file_name or CONFIG_NAME}) was found.",
        why=f"Looked in {start} and its parents, each time also in .azureml/ and aml_config/.",
        fix="Make one with: runyard init NAME",
    )


def read_config(file: Path) -> WorkspaceConfig:
    """What the file says, a workspace's name at least; or an error that says what is wrong."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise _unreadable(file, str(error)) from None
    if not isinstance(data, dict):
        raise _unreadable(file, f"its content is of type {type(data).__name__}, not an object")
    if isinstance(data.get("Scope"), str):  # the legacy project.json: an Azure resource id
        data = {**_from_scope(data["Scope"]), **data}
    if not data.get("workspace_name"):
        raise _unreadable(file, "it has no 'workspace_name'")
    ours = data.get("runyard") or {}
    try:
        return msgspec.convert(
            {
                "workspace_name": data["workspace_name"],
                "subscription_id": data.get("subscription_id") or "",
                "resource_group": data.get("resource_group") or "",
                "home": ours.get("home", "") if isinstance(ours, dict) else ours,
                "url": ours.get("url", "") if isinstance(ours, dict) else ours,
            },
            WorkspaceConfig,
        )
    except msgspec.ValidationError as error:
        raise _unreadable(file, str(error)) from None


def _from_scope(scope: str) -> dict[str, str]:
    """The names inside `/subscriptions/S/resourceGroups/G/…/workspaces/W/projects/…`."""
    words = scope.split("/")
    pairs = dict(zip(words[1::2], words[2::2], strict=False))
    found = {
        "subscription_id": pairs.get("subscriptions"),
        "resource_group": pairs.get("resourceGroups"),
        "workspace_name": pairs.get("workspaces"),
    }
    return {key: value for key, value in found.items() if value}


def load_config(path: str | os.PathLike[str] | None, file_name: str | None) -> WorkspaceConfig:
    """Find and read the configuration."""
    return read_config(find_config(path, file_name))


def settings_for(config: WorkspaceConfig) -> Settings:
    """The settings with what the file adds. Variables of the environment win over the file."""
    settings = load_settings()
    if config.url and not settings.url:
        settings = msgspec.structs.replace(settings, url=config.url.rstrip("/"))
    if config.home and settings.home == default_home():
        home = Path(config.home).expanduser().absolute()
        settings = msgspec.structs.replace(settings, home=home)
    return settings


def config_for(name: str, subscription: str, group: str, settings: Settings) -> WorkspaceConfig:
    """What to write so that another process finds the same workspace. Never the token."""
    return WorkspaceConfig(
        workspace_name=name,
        subscription_id=subscription,
        resource_group=group,
        home="" if settings.url or settings.home == default_home() else str(settings.home),
        url=settings.url,
    )


def write_config(config: WorkspaceConfig, file: Path) -> Path:
    """Write the file, whole or not at all; returns its path."""
    data: dict[str, object] = {
        "subscription_id": config.subscription_id,
        "resource_group": config.resource_group,
        "workspace_name": config.workspace_name,
    }
    ours = {key: value for key, value in (("home", config.home), ("url", config.url)) if value}
    if ours:
        data["runyard"] = ours
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(json.dumps(data, indent=4) + "\n", encoding="utf-8")
        os.replace(draft, file)
    except OSError as error:
        raise user_error(
            f"'{file}' cannot be written.",
            why=f"{error.strerror or error}.",
            fix="Give another folder: ws.write_config(path=...)",
        ) from None
    return file


def _unreadable(file: Path, why: str) -> UserErrorException:
    return user_error(
        f"The workspace configuration '{file}' cannot be used.",
        why=f"{why[0].upper()}{why[1:].rstrip('.')}.",
        fix="Correct it, or write a new one in its folder with: runyard init NAME",
    )
