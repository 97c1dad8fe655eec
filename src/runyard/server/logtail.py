"""The end of a log, for a page."""

import msgspec

from runyard.domain.logs import failed_log, log_to_follow
from runyard.domain.runs import RunRecord
from runyard.domain.states import TERMINAL
from runyard.server.events import Seen
from runyard.stores.base import Streams

_TAIL_BYTES = 1 << 18


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows of a run's logs."""

    names: list[str]
    name: str = ""  # the one that is shown; empty: there is none yet
    text: str = ""
    cut: bool = False  # the beginning is left out
    seen: str = ""  # where to go on, as the id of an event


def read_tail(streams: Streams, run: RunRecord, wanted: str) -> LogTail:
    """The end of the log that is wanted, of the rank that failed, or of the one to follow."""
    sizes = {info.path: info.size for info in streams.logs(run.id)}
    names = sorted(sizes)
    followed = log_to_follow(names, is_over=run.state in TERMINAL)
    failed = failed_log(run)
    if failed not in sizes:
        failed = None
    name = wanted if wanted in sizes else failed or followed or next(iter(names), "")
    if not name:
        return LogTail(names=names, seen=Seen(run.version).render())
    start = max(0, sizes[name] - _TAIL_BYTES)
    data = streams.read_log(run.id, name, start, _TAIL_BYTES)
    # A character may be half there yet: its first bytes are left to what follows.
    whole = data[: len(data) - _unfinished(data)]
    seen = Seen(run.version, start + len(whole), name)
    if start:
        whole = whole.partition(b"\n")[2] or whole
    return LogTail(
        names=names,
        name=name,
        text=whole.decode(errors="replace"),
        cut=start > 0,
        seen=seen.render(),
    )


def _unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # the first byte of a character of 2, 3 or 4 bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
        if byte < 0x80:
            return 0
    return 0
