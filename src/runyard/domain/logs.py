"""Which of a run's logs a person wants to follow, and how it is told."""

import re
from collections.abc import Iterable

import msgspec

_NUMBERED = re.compile(r"azureml-logs/(\d\d).*\.txt")
_FIRST = re.compile(r"(?<!_ps)_(?:rank_|worker_)?0\.txt$")
_SUFFIXED = re.compile(r"_\d+\.txt$")


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """Some text of a log, as it arrives; `offset` is where it begins, in bytes."""

    name: str
    offset: int
    text: str


def log_to_follow(names: Iterable[str]) -> str | None:
    """The log with the highest number, as v1 chose it; of several ranks', the first one's."""
    numbered = [(match[1], name) for name in names if (match := _NUMBERED.fullmatch(name))]
    if not numbered:
        return None
    highest = max(number for number, _ in numbered)
    candidates = sorted(name for number, name in numbered if number == highest)
    preferred = [name for name in candidates if _FIRST.search(name)]
    plain = [name for name in candidates if not _SUFFIXED.search(name)]
    return (plain or preferred or candidates)[0]
