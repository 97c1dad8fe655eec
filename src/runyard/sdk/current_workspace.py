"""The workspace that is meant where v1's calls take none: `Dataset.File.from_files(urls)`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

_opened: list["Workspace"] = []  # the last one opened in this process, if any


def note_workspace(workspace: "Workspace") -> None:
    """Remember the workspace that was opened last."""
    _opened[:] = [workspace]


def last_workspace() -> "Workspace | None":
    """The workspace that was opened last in this process."""
    return _opened[0] if _opened else None


def current_workspace() -> "Workspace":
    """The workspace that was opened last, or the one that `config.json` names."""
    from runyard.sdk.workspace import Workspace

    return last_workspace() or Workspace.from_config()
