"""Commands that look at runs: ls, show, open."""

from datetime import UTC, datetime
from urllib.parse import quote

import click
import msgspec

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option, workspace_options
from runyard.cli.render import (
    attempt_line,
    command_line,
    duration,
    environment_line,
    error_text,
    last_values,
    nodes_line,
    render_span,
    run_headers,
    run_row,
    size_text,
    state_cell,
    target_line,
)
from runyard.cli.scope import Scope, open_scope, run_path
from runyard.domain.files import FileInfo
from runyard.domain.metrics import Series
from runyard.domain.models import ModelPage, model_label
from runyard.domain.runs import (
    RunPage,
    RunRecord,
    all_warnings,
    attempt_words,
    launcher_words,
    log_command,
)
from runyard.domain.states import RunState
from runyard_runtime import records, wire

LARGEST_PAGE = 1000


@click.command("ls")
@click.option("--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in RunState], case_sensitive=False),
    help="Only runs in this state; may be repeated.",
)
@click.option("--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="Only runs so tagged.")
@click.option("--children", is_flag=True, help="Child runs, too; they are marked with an arrow.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="At most so many."
)
@workspace_options
@json_option
def list_runs(
    experiment: str | None,
    states: tuple[str, ...],
    tags: tuple[str, ...],
    children: bool,
    limit: int,
    workspace: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """List runs, newest first.

    \b
    Example:
      runyard ls --experiment digits --state Failed
    """
    scope = open_scope(workspace, every=every)
    query: dict[str, object] = {"experiment": experiment, "state": states, "tag": tags}
    query["top_level"] = not children
    page = scope.page(limit=min(limit, LARGEST_PAGE), query=query)
    runs = list(page.runs)
    while page.next is not None and len(runs) < limit:
        more = min(limit - len(runs), LARGEST_PAGE)
        page = scope.page(limit=more, after=page.next, query=query)
        runs += page.runs
    if as_json:
        console.document(RunPage(runs=tuple(runs), next=page.next))
        return
    if not runs:
        narrowed = experiment or states or tags or scope.workspace
        console.note(f"No runs{' that fit' if narrowed else ''}. Submit one: runyard submit SCRIPT")
        return
    now = datetime.now(UTC)
    everywhere = scope.workspace is None
    console.table(
        run_headers(everywhere=everywhere),
        [run_row(run, now, everywhere=everywhere) for run in runs],
        shrink=("NOTE", "EXPERIMENT"),
    )
    if page.next is not None:
        console.note(f"There are more; see them with --limit {limit * 5}.")


@click.command()
@click.argument("run_name", metavar="RUN")
@workspace_options
@json_option
def show(run_name: str, workspace: str | None, every: bool, as_json: bool) -> None:
    """Show everything about a run: state and reason, times, metrics, files.

    RUN is an id, the beginning of one, or `latest`.

    \b
    Example:
      runyard show latest
    """
    scope = open_scope(workspace, every=every)
    run = scope.find_run(run_name)
    path = run_path(run.id)
    by_run = scope.client.request("GET", f"{path}/metrics", answer=dict[str, list[Series]])
    files = scope.client.request("GET", f"{path}/files", answer=list[FileInfo])
    made = scope.client.request(
        "GET", "/api/v1/models", query={"run": run.id, "limit": 1000}, answer=ModelPage
    )
    models = [model_label(model) for model in made.models]
    series = by_run.get(run.id, [])
    if as_json:
        shown = wire.to_json_value(records.metrics_view(msgspec.to_builtins(series)))
        page = page_url(scope, run)
        console.document(
            {"run": run, "metrics": shown, "files": files, "models": models, "page": page}
        )
        return
    _say_run(run, page_url(scope, run))
    if run.error is not None:
        console.heading("Error")
        console.say(console.paint(console.plain(error_text(run), keep_lines=True), "red"))
        if run.error.rank is not None:
            console.say(f"  fix: Read its log with: {log_command(run)}")
    _say_pairs(
        "Earlier attempts",
        {str(attempt.attempt): attempt_line(attempt) for attempt in run.attempts},
    )
    for warning in all_warnings(run):
        console.say(console.paint(console.plain(f"warning: {warning}"), "yellow"))
    _say_history(run)
    _say_environment(run)
    _say_pairs("Tags", {key: value or "" for key, value in run.tags.items()})
    _say_pairs("Properties", run.properties)
    _say_pairs("Metrics", last_values(series))
    if files:
        console.heading("Files")
        rows = [[Cell(size_text(file.size)), Cell(file.path)] for file in files]
        console.table(("SIZE", "PATH"), rows)
    if models:
        console.heading("Models")
        for name in models:
            console.say(name)


def _say_run(run: RunRecord, page: str) -> None:
    spent = duration(run, datetime.now(UTC))
    console.fields(
        {
            "run": Cell(run.id, "bold"),
            "name": run.display_name if run.display_name != run.id else "",
            "experiment": f"{run.spec.experiment} #{run.number}",
            "workspace": run.spec.workspace,
            "state": state_cell(run.state),
            "waits for": run.waiting,
            "parent": run.spec.parent,
            "command": command_line(run),
            "processes": launcher_words(run.spec.script.launcher) if run.spec.script else "",
            "target": target_line(run),
            "nodes": nodes_line(run),
            "duration": "" if spent is None else render_span(spent),
            "attempt": attempt_words(run).removeprefix("attempt "),
            "page": page,
        }
    )


def _say_history(run: RunRecord) -> None:
    if not run.history:
        return
    console.heading("History")
    before = run.history[0].at
    rows = []
    for step in run.history:
        local = step.at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        rows.append(
            [Cell(local), Cell(f"+{render_span(step.at - before)}"), state_cell(step.state)]
        )
        before = step.at
    console.table(("TIME", "AFTER", "STATE"), rows)


def _say_environment(run: RunRecord) -> None:
    if run.spec.script is None:
        return
    console.heading("Environment")
    use = run.environment
    console.fields(
        {
            "asked": environment_line(run.spec.script.environment),
            "python": "" if use is None else f"{use.python} ({use.interpreter})",
            "key": "" if use is None else use.key,
            "notes": "" if use is None else "\n".join(use.notes),
            "packages": "" if use is None else "\n".join(use.lock),
        }
    )


def _say_pairs(title: str, pairs: dict[str, str]) -> None:
    if pairs:
        console.heading(title)
        console.fields({name: value or "-" for name, value in pairs.items()})


@click.command("open")
@click.argument("run_name", metavar="[RUN]", required=False)
@click.option("--browser", is_flag=True, help="Open the page in the browser, too.")
@workspace_options
@json_option
def open_page(
    run_name: str | None, browser: bool, workspace: str | None, every: bool, as_json: bool
) -> None:
    """Print a link to a run's page, or to the list of runs.

    RUN is an id, the beginning of one, or `latest`. The link opens that run and its children
    alone, so it can be passed on; without RUN it opens everything.

    \b
    Example:
      runyard open latest --browser
    """
    scope = open_scope(workspace, every=every)
    url = list_url(scope) if run_name is None else page_url(scope, scope.find_run(run_name))
    if as_json:
        console.document({"page": url})
    else:
        console.say(url)
    if browser:
        import webbrowser

        webbrowser.open(url)


class Ticket(msgspec.Struct, frozen=True):
    """The address of a page, with a ticket that opens it."""

    url: str


def list_url(scope: Scope) -> str:
    """A link to the list of runs, with which a browser can see everything for some hours."""
    path = "/api/v1/ticket"
    ticket = scope.client.request("POST", path, answer=Ticket, safe_to_repeat=True)
    chosen = f"&workspace={quote(scope.workspace)}" if scope.workspace else ""
    return scope.client.url + ticket.url + chosen


def page_url(scope: Scope, run: RunRecord) -> str:
    """A link that a browser can open for some hours."""
    ticket = scope.client.request(
        "POST", f"{run_path(run.id)}/ticket", answer=Ticket, safe_to_repeat=True
    )
    return scope.client.url + ticket.url
