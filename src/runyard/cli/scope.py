"""Which server and workspace a command speaks of, and which run a word names."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from runyard.domain.errors import Conflict, NotFound
from runyard.domain.runs import RunPage, RunRecord
from runyard.sdk.client import Client
from runyard.sdk.config_file import candidates, read_config, settings_for
from runyard.sdk.exceptions import AzureMLException
from runyard.settings import Settings, load_settings

LATEST = "latest"
PAGES_SEARCHED = 20  # 20,000 runs; who has more can type a longer name


def find_settings() -> tuple[Settings, str | None]:
    """The settings that hold in this folder, and the workspace its config.json names, if any."""
    settings = load_settings()
    for file in candidates(Path.cwd()):
        if file.is_file():
            config = read_config(file)
            return settings_for(config), config.workspace_name
    return settings, None


def find_settings_anyhow() -> tuple[Settings, str | None, AzureMLException | None]:
    """The same for commands that a damaged config.json must not stop; what is wrong with it."""
    try:
        return *find_settings(), None
    except AzureMLException as error:
        return load_settings(), None, error


class Scope:
    """A client, and the workspace whose runs are meant; None: those of all workspaces."""

    def __init__(self, client: Client, workspace: str | None) -> None:
        self.client = client
        self.workspace = workspace

    def page(
        self, *, limit: int, after: str | None = None, query: Mapping[str, object] | None = None
    ) -> RunPage:
        """Some runs, newest first."""
        wanted = {"workspace": self.workspace, "limit": limit, "after": after, **(query or {})}
        return self.client.request("GET", "/api/v1/runs", query=wanted, answer=RunPage)

    def find_run(self, name: str) -> RunRecord:
        """The run of that id, or the only one whose id or last part begins so, or the `latest`."""
        if name == LATEST:
            return self._latest()
        try:
            return self.client.request("GET", run_path(name), answer=RunRecord)
        except NotFound:
            return self._by_prefix(name)

    def _latest(self) -> RunRecord:
        runs = self.page(limit=1, query={"top_level": True}).runs
        if not runs:
            raise NotFound(
                "There is no run yet.",
                why=f"Workspace: {self.workspace}." if self.workspace else "",
                fix="Submit one with: runyard submit SCRIPT",
            )
        return runs[0]

    def _by_prefix(self, name: str) -> RunRecord:
        found: list[RunRecord] = []
        after: str | None = None
        for _ in range(PAGES_SEARCHED):
            page = self.page(limit=1000, after=after)
            found += [run for run in page.runs if is_called(run.id, name)]
            after = page.next
            if after is None:
                break
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(run.id for run in found[:5])
            raise Conflict(
                f"'{name}' may be any of {len(found)} runs.",
                why=f"{some}{', …' if len(found) > 5 else ''}.",
                fix="Type more of the id.",
            )
        raise NotFound(
            f"There is no run '{name}'.",
            why="No id, and no last part of an id, begins so.",
            fix="See the runs with: runyard ls",
        )


def open_scope(workspace: str | None = None, *, every: bool = False) -> Scope:
    """Connect to the server of this folder, starting it if need be."""
    from runyard.sdk.embedded import connect

    settings, named = find_settings()
    return Scope(connect(settings), None if every else workspace or named)


def is_called(run_id: str, name: str) -> bool:
    """True if the word may stand for the run."""
    return bool(name) and (run_id.startswith(name) or run_id.rpartition("_")[2].startswith(name))


def run_path(run_id: str) -> str:
    """Where the API has the run."""
    return f"/api/v1/runs/{quote(run_id, safe='')}"
