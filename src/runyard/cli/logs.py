"""What a run prints: the command `logs`, and following a run until it is over."""

import io
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO
from urllib.parse import quote

import click
import msgspec

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option, workspace_options
from runyard.cli.render import error_text, remark, size_text
from runyard.cli.scope import Scope, open_scope, run_path
from runyard.domain.errors import NotFound, RunyardError
from runyard.domain.files import FileInfo
from runyard.domain.logs import LogText, failed_log, find_log, log_to_follow, rank_log
from runyard.domain.runs import RunRecord, log_command, process_names
from runyard.domain.states import TERMINAL
from runyard_runtime import records

ALL = "all"  # the word for every rank


@click.command()
@click.argument("run_name", metavar="[RUN]", default="latest")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
@click.option("--log", "log_name", metavar="NAME", help="This log; see --list.")
@click.option(
    "--rank",
    metavar="RANK|all",
    help="The log of this rank of a distributed run: 1, or a task's name, worker_1; or all.",
)
@click.option("--list", "list_them", is_flag=True, help="Name the logs of the run.")
@workspace_options
@json_option
def logs(
    run_name: str,
    follow: bool,
    log_name: str | None,
    rank: str | None,
    list_them: bool,
    workspace: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """Print what a run prints.

    RUN is an id, the beginning of one, or `latest`, which is the default.

    \b
    Example:
      runyard logs -f latest
      runyard logs tf-mnist_17 --log 20_image_build_log.txt
      runyard logs -f latest --rank all
    """
    if log_name is not None and rank is not None:
        raise click.UsageError("Give either --log or --rank, not both.")
    scope = open_scope(workspace, every=every)
    run = scope.find_run(run_name)
    if list_them:
        _list_logs(scope, run, as_json=as_json)
        return
    try:
        _print_logs(scope, run, log_name, rank, follow=follow, as_json=as_json)
    except KeyboardInterrupt:
        if follow:
            say_it_goes_on(run)
        raise


def _print_logs(
    scope: Scope,
    run: RunRecord,
    log_name: str | None,
    rank: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    names = _names_of_ranks(run)
    if rank == ALL and names:
        _print_all(scope, run, names, follow=follow, as_json=as_json)
        return
    if rank is not None and run.spec.script is not None:
        log_name = rank_log(run.spec.script.launcher, "0" if rank == ALL else rank)
    elif log_name is not None:
        log_name = _find_log(scope, run, log_name)
    if follow:
        run = follow_run(scope, run, log_name, quiet=as_json)
        if not as_json:
            return
    name = log_name or log_to_follow(file.path for file in _logs_of(scope, run))
    if name is None and not as_json:
        console.note(f"Run {run.id} has printed nothing yet. {remark(run)}".rstrip())
        return
    if as_json:
        printed = "" if name is None else _read(scope, run, name)
        console.document({"run": run.id, "state": run.state, "log": name, "text": printed})
    elif name is not None:
        _fetch(scope, run, name, console.binary_output())
        if log_name is None:
            console.binary_output().flush()
            _say_others(run)


def _names_of_ranks(run: RunRecord) -> list[str]:
    """What its processes are called; empty if it has one."""
    names = [] if run.spec.script is None else process_names(run.spec.script.launcher)
    return names if len(names) > 1 else []


def _say_others(run: RunRecord) -> None:
    """A word on the logs that are not shown, where there are several."""
    if names := _names_of_ranks(run):
        first = f"rank {names[0]}" if names[0].isdecimal() else names[0]
        text = f"That was {first}, of {len(names)}."
        failed = failed_log(run)
        seen = f"; the one that failed: {log_command(run)}" if failed else ""
        console.note(f"{text} Another: --rank {names[1]}; all: --rank all{seen}", "dim")


def _find_log(scope: Scope, run: RunRecord, wanted: str) -> str:
    """The path of a log that may be given by its base name."""
    found = find_log((file.path for file in _logs_of(scope, run)), wanted)
    return found or (wanted if "/" in wanted else f"azureml-logs/{wanted}")


def _logs_of(scope: Scope, run: RunRecord) -> list[FileInfo]:
    """The run's logs: the platform's, and what the script wrote below ./logs."""
    files = scope.client.request("GET", f"{run_path(run.id)}/files", answer=list[FileInfo])
    return [file for file in files if records.is_log(file.path)]


def _list_logs(scope: Scope, run: RunRecord, *, as_json: bool) -> None:
    found = _logs_of(scope, run)
    if as_json:
        console.document([{"path": file.path, "size": file.size} for file in found])
    elif found:
        rows = [[Cell(size_text(file.size)), Cell(file.path)] for file in found]
        console.table(("SIZE", "LOG"), rows)
    else:
        console.note(f"Run {run.id} has no logs yet.")


def _read(scope: Scope, run: RunRecord, name: str) -> str:
    text = io.BytesIO()
    _fetch(scope, run, name, text)
    return text.getvalue().decode(errors="replace")


def _fetch(scope: Scope, run: RunRecord, name: str, target: BinaryIO) -> None:
    try:
        scope.client.download(f"{run_path(run.id)}/files/{quote(name)}", target)
    except NotFound as error:
        known = ", ".join(file.path for file in _logs_of(scope, run)) or "none yet"
        raise NotFound(
            f"Run '{run.id}' has no log '{name}'.",
            why=f"It has: {known}.",
            fix="Name one of these with --log.",
        ) from error


# ---- the logs of all ranks -----------------------------------------------------------------


def _print_all(
    scope: Scope, run: RunRecord, names: list[str], *, follow: bool, as_json: bool
) -> None:
    assert run.spec.script is not None
    paths = {rank_log(run.spec.script.launcher, name): name for name in names}
    if follow:
        run = _follow_all(scope, run, paths, quiet=as_json)
        if not as_json:
            return
    there = {file.path for file in _logs_of(scope, run)} & paths.keys()
    found = {path: _read(scope, run, path) for path in paths if path in there}
    if as_json:
        texts = [{"log": path, "text": text} for path, text in found.items()]
        console.document({"run": run.id, "state": run.state, "logs": texts})
        return
    for path, text in found.items():
        for line in text.splitlines(keepends=True):
            console.write(_prefixed(paths[path], names, line))
    if not found:
        console.note(f"Run {run.id} has printed nothing yet. {remark(run)}".rstrip())


def _prefixed(name: str, names: Iterable[str], line: str) -> str:
    width = max(len(one) for one in names)
    return f"[{name:>{width}}] {line.rstrip()}\n"


def _follow_all(
    scope: Scope, run: RunRecord, paths: dict[str, str], *, quiet: bool = False
) -> RunRecord:
    """Print the logs of all ranks, line by line as they come; the run's last record."""
    heard: queue.SimpleQueue[_Piece] = queue.SimpleQueue()
    for path in paths:
        arguments = (scope, run.id, path, heard)
        threading.Thread(target=_listen, args=arguments, daemon=True).start()
    unfinished = dict.fromkeys(paths, "")  # the last line of each, until its end comes
    listening = set(paths)
    while listening:
        path, kind, data = heard.get()
        if isinstance(data, RunyardError):
            raise data
        if kind == "log":
            text = unfinished[path] + msgspec.json.decode(data, type=LogText).text
            *lines, unfinished[path] = text.split("\n")
        else:
            lines = [unfinished[path]] if kind == "over" and unfinished[path] else []
            if kind == "over":
                listening.discard(path)
            elif kind == "run":
                run = msgspec.json.decode(data, type=RunRecord)
        if not quiet:
            for line in lines:
                console.write(_prefixed(paths[path], paths.values(), line))
    if not quiet:
        _say_end(run)
    return run


_Piece = tuple[str, str, bytes | RunyardError]


def _listen(scope: Scope, run_id: str, path: str, heard: "queue.SimpleQueue[_Piece]") -> None:
    try:
        for kind, data in _events(scope, run_id, path):
            heard.put((path, kind, data))
    except RunyardError as error:
        heard.put((path, "error", error))
    finally:
        heard.put((path, "over", b""))  # also after a fault of ours, or all would wait for ever


# ---- one log, as it grows ------------------------------------------------------------------


def _events(scope: Scope, run_id: str, log_name: str | None) -> Iterator[tuple[str, bytes]]:
    return scope.client.events(f"{run_path(run_id)}/events", query={"log": log_name})


def follow_run(
    scope: Scope,
    run: RunRecord,
    log_name: str | None = None,
    *,
    quiet: bool = False,
    says_end: bool = True,
) -> RunRecord:
    """Print what the run prints until it is over; returns its last record.

    What it waits for, and how it ended, goes to stderr beside it.
    """
    names = _names_of_ranks(run) if log_name is None else []
    shown, waiting = "", ""
    for event, data in _events(scope, run.id, log_name):
        if event == "log" and not quiet:
            piece = msgspec.json.decode(data, type=LogText)
            if piece.name != shown:
                shown = piece.name
                console.note(f"── {console.plain(shown)}{_others(shown, names)}", "dim")
            console.write(piece.text)
        elif event == "run":
            run = msgspec.json.decode(data, type=RunRecord)
            if not quiet and run.waiting and run.waiting != waiting:
                console.note(console.plain(f"{run.state}: {run.waiting}"))
            waiting = run.waiting
    if says_end and not quiet:
        _say_end(run, shown)
    return run


def _others(shown: str, names: list[str]) -> str:
    if not names or not shown.endswith(f"_{names[0]}.txt"):
        return ""
    return f" (of {len(names)} ranks; --rank {names[1]} shows another, --rank all every one)"


def _say_end(run: RunRecord, shown: str = "") -> None:
    """How the run ended, and where to read on if that is in another log."""
    if run.state not in TERMINAL:
        return
    why = f": {error_text(run)}" if run.error is not None else "."
    console.note(console.plain(f"Run {run.id} is {run.state}{why}", keep_lines=True))
    failed = failed_log(run)
    if failed and shown and failed != shown:
        console.note(f"Its log: {log_command(run)}")


def say_it_goes_on(run: RunRecord) -> None:
    """For who stops to follow a run: that does not stop it."""
    console.note(
        f"\nThe run goes on. Follow it with: runyard logs -f {run.id}\n"
        f"Stop it with: runyard cancel {run.id}"
    )
