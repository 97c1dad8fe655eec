"""Which of a run's logs a person wants to follow, and how it is told."""

import re
from collections.abc import Iterable

import msgspec

from runyard.domain.errors import NotFound
from runyard.domain.runs import LauncherSpec, RunRecord, failed_process, process_names

_NUMBERED = re.compile(r"azureml-logs/(\d\d).*\.txt")
_FIRST = re.compile(r"(?<!_ps)_(?:rank_|worker_)?0\.txt$")
_SUFFIXED = re.compile(r"_\d+\.txt$")


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """Some text of a log, as it arrives; `offset` is where it begins, in bytes."""

    name: str
    offset: int
    text: str


def rank_log(launcher: LauncherSpec, rank: str) -> str:
    """The log of a rank, given as a number or as the name of a TensorFlow task (`ps_0`)."""
    names = process_names(launcher)
    names = names if len(names) > 1 else [""]
    if rank.isdecimal() and int(rank) < len(names):
        rank = names[int(rank)]
    if rank not in names:
        first, last = names[0] or "0", names[-1] or "0"
        raise NotFound(
            f"The run has no rank '{rank}'.",
            why=f"It has {len(names)}: {first} to {last}."
            if len(names) > 1
            else "It has one process.",
            fix="Name one of these with --rank; runyard logs RUN --list names all logs.",
        )
    return f"azureml-logs/70_driver_log{'_' + rank if rank else ''}.txt"


def failed_log(run: RunRecord) -> str | None:
    """The log of the process that made the run fail, where it has several."""
    failed = failed_process(run)
    return rank_log(run.spec.script.launcher, failed) if failed and run.spec.script else None


def find_log(names: Iterable[str], wanted: str) -> str | None:
    """The log that a person means: its path, or a base name that only one has; None if none."""
    known = list(names)
    if wanted in known:
        return wanted
    found = [name for name in known if name.rpartition("/")[2] == wanted]
    return found[0] if len(found) == 1 else None


def log_to_follow(names: Iterable[str], *, is_over: bool = True) -> str | None:
    """The log with the highest number, as v1 chose it; of several ranks', the first one's.

    While the run goes on, another rank's is not taken for it: the first one's may come yet.
    """
    numbered = [(match[1], name) for name in names if (match := _NUMBERED.fullmatch(name))]
    if not numbered:
        return None
    for number in sorted({number for number, _ in numbered}, reverse=True):
        candidates = sorted(name for known, name in numbered if known == number)
        preferred = [name for name in candidates if _FIRST.search(name)]
        plain = [name for name in candidates if not _SUFFIXED.search(name)]
        chosen = plain or preferred or (candidates if is_over else [])
        if chosen:
            return chosen[0]
    return None
