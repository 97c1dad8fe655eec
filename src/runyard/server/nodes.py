"""Routes for nodes that share no disk with the server: what they fetch, and where they meet."""

import hashlib
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from runyard.domain.errors import NotFound
from runyard.domain.runs import RunRecord
from runyard.domain.states import TERMINAL
from runyard.environments.uv_tool import find_uv
from runyard.server.downloads import Download
from runyard.server.platform import Platform
from runyard.server.routing import Call, NoQuery
from runyard.server.waiting import attending
from runyard_runtime import bundle

LONGEST_WAIT = 30
LARGEST_NOTE = 1 << 20
_PIECE = 1 << 20

_Attempt = Annotated[int, msgspec.Meta(ge=1)]


class AttemptQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attempt of the run."""

    attempt: _Attempt


class BoardQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From where on to read, and how long to wait for news, in seconds."""

    attempt: _Attempt
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    wait: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT)] = 0


class NotesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Notes, and the place behind them."""

    notes: list[msgspec.Raw]
    next: int


def runtime(call: Call[None, NoQuery]) -> Download:
    """The package that agents are made of, as a zip; its ETag is the digest."""
    digest, content = bundle.archive()

    def open_range(start: int, end: int) -> Iterator[bytes]:
        yield content[start:end]

    return Download(call.platform, open_range, size=len(content), etag=digest, name="runtime.zip")


def uv(call: Call[None, NoQuery]) -> Download:
    """The program uv of the server, with which nodes make environments; its ETag is the digest."""
    path = Path(find_uv())
    size = path.stat().st_size

    def open_range(start: int, end: int) -> Iterator[bytes]:
        with path.open("rb") as stream:
            stream.seek(start)
            while start < end and (piece := stream.read(min(_PIECE, end - start))):
                start += len(piece)
                yield piece

    etag = _digest(path, path.stat().st_mtime_ns)
    return Download(call.platform, open_range, size=size, etag=etag, name="uv")


@lru_cache(maxsize=4)
def _digest(path: Path, changed_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def plan(call: Call[None, AttemptQuery]) -> msgspec.Raw:
    """What the agent of a node is told: the plan of an attempt that is going on."""
    platform = call.platform
    run = platform.store.records.get(RunRecord, call.params["run"])
    is_ready = run.spec.script is not None and run.environment is not None
    if run.attempt != call.query.attempt or run.state in TERMINAL or not is_ready:
        raise NotFound(
            f"Attempt {call.query.attempt} of run '{run.id}' is not going on.",
            why=f"The run is {run.state}, in attempt {run.attempt}.",
            fix="End the agent: there is nothing for it to do.",
        )
    return msgspec.Raw(platform.conductor.plan_of(run))


def post_note(call: Call[dict[str, object], BoardQuery]) -> NotesPage:
    """Leave a note for the other agents of the attempt; the answer has it, and all since a place.

    So who posts has seen all that came before their note, and need not ask again.
    """
    platform, run_id, asked = call.platform, call.params["run"], call.query
    platform.store.notes.add(run_id, asked.attempt, msgspec.json.encode(call.body))
    platform.changes.notify(_board(run_id))
    found = _read(platform, run_id, asked)
    return NotesPage(notes=found, next=asked.since + len(found))


async def read_notes(call: Call[None, BoardQuery]) -> NotesPage:
    """The notes of an attempt from a place on; waits for the next if there are none."""
    platform, run_id, asked = call.platform, call.params["run"], call.query
    deadline = time.monotonic() + asked.wait
    with platform.changes.watch(_board(run_id)) as watcher, attending(call.receive) as caller:
        while True:
            found = await platform.in_thread(_read, platform, run_id, asked)
            left = deadline - time.monotonic()
            if found or left <= 0 or platform.changes.closed:
                break
            await caller.waits_for(watcher.wait(left))
    return NotesPage(notes=found, next=asked.since + len(found))


def _read(platform: Platform, run_id: str, asked: BoardQuery) -> list[msgspec.Raw]:
    notes = platform.store.notes.read(run_id, asked.attempt, asked.since)
    return [msgspec.Raw(note) for note in notes]


def _board(run_id: str) -> str:
    """What `Changes` knows the board by: it has news of its own, that nobody else waits for."""
    return f"{run_id}\0board"
