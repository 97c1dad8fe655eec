"""The route that follows a run: its record and its log as server-sent events, until it is over.

Nobody asks again and again: a follower sleeps until `Changes` says that there is news. An event's
id says all that a client has seen, so that it can go on behind it after a cut.
"""

import asyncio
import codecs
from typing import Annotated, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from starlette.types import Receive, Scope, Send

from runyard.domain.errors import NotFound
from runyard.domain.logs import LogText, log_to_follow
from runyard.domain.states import TERMINAL
from runyard.server.platform import Platform
from runyard.server.routing import Call
from runyard.server.waiting import attending

KEEP_ALIVE_SECONDS = 15.0

_CHUNK = 1 << 18
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # proxies: pass events on at once
]


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which log to follow, and from where."""

    log: str | None = None  # None: the one v1 would follow, changing when a later one appears
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    after: str = ""  # an event's id, for those who cannot send Last-Event-ID


class Seen(NamedTuple):
    """What a client has seen: a version of the record, and a log up to an offset."""

    version: int = 0
    offset: int = 0
    log: str = ""

    def render(self) -> str:
        """As the id of an event."""
        return f"{self.version}/{self.offset}/{quote(self.log, safe='')}"


def parse_seen(text: str) -> Seen | None:
    """The inverse of `Seen.render`; None for a text that is none of ours."""
    version, _, rest = text.partition("/")
    offset, _, log = rest.partition("/")
    if not (version.isascii() and version.isdigit() and offset.isascii() and offset.isdigit()):
        return None
    return Seen(int(version), int(offset), unquote(log))


class News(NamedTuple):
    """What one look at a run found."""

    frames: bytes
    drained: bool  # nothing more for now
    over: bool = False


class Follower:
    """Looks at a run and its log, and remembers what was seen. `look` blocks."""

    def __init__(self, platform: Platform, run_id: str, fixed: str | None, seen: Seen) -> None:
        self._platform = platform
        self._run_id = run_id
        self._fixed = fixed
        self._version = seen.version
        self._first_offset = seen.offset
        self._switch(fixed or seen.log, seen.offset)

    def _switch(self, name: str, offset: int) -> None:
        self._name = name
        self._read = offset  # how far bytes were read
        self._told = offset  # how far text was sent: a character may be cut in two
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def look(self) -> News:
        """Everything new, a chunk of the log at a time."""
        run = self._platform.load_run(self._run_id)
        # The record is read before the log: what an ended run wrote is all there by then.
        over = run.state in TERMINAL
        frames = [] if over else self._record_frames(run.version, run)
        data = self._read_chunk()
        if data:
            return News(b"".join([*frames, *self._text_frames(data)]), drained=False)
        later = None if self._fixed else self._later_log(is_over=over)
        if later is not None:
            frames += self._text_frames(b"", final=True)
            self._switch(later, 0 if self._name else self._first_offset)
            return News(b"".join(frames), drained=False)
        if not over:
            return News(b"".join(frames), drained=True)
        frames += self._text_frames(b"", final=True)
        frames += self._record_frames(run.version, run)
        frames.append(self._frame("end", b"{}"))
        return News(b"".join(frames), drained=True, over=True)

    def _read_chunk(self) -> bytes:
        if not self._name:
            return b""
        try:
            streams = self._platform.store.streams
            return streams.read_log(self._run_id, self._name, self._read, _CHUNK)
        except NotFound:
            return b""  # it may appear yet

    def _later_log(self, *, is_over: bool) -> str | None:
        logs = self._platform.store.streams.logs(self._run_id)
        chosen = log_to_follow((info.path for info in logs), is_over=is_over)
        return chosen if chosen != self._name else None

    def _record_frames(self, version: int, record: msgspec.Struct) -> list[bytes]:
        if version <= self._version:
            return []
        self._version = version
        return [self._frame("run", msgspec.json.encode(record))]

    def _text_frames(self, data: bytes, *, final: bool = False) -> list[bytes]:
        begin = self._told
        text = self._decoder.decode(data, final)
        self._read += len(data)
        self._told = self._read - len(self._decoder.getstate()[0])
        if not text:
            return []
        event = LogText(name=self._name, offset=begin, text=text)
        return [self._frame("log", msgspec.json.encode(event))]

    def _frame(self, event: str, data: bytes) -> bytes:
        seen = Seen(self._version, self._told, self._name).render()
        return b"event: %s\nid: %s\ndata: %s\n\n" % (event.encode(), seen.encode(), data)


class EventStream:
    """Server-sent events of one run."""

    def __init__(self, platform: Platform, run_id: str, follower: Follower) -> None:
        self._platform = platform
        self._run_id = run_id
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the run is over, the caller hangs up or the server stops."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._follow(receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _follow(self, receive: Receive, send: Send) -> None:
        platform, changes = self._platform, self._platform.changes
        clock = asyncio.get_running_loop().time
        said_at = clock()
        with changes.watch(self._run_id) as watcher, attending(receive) as caller:
            while not changes.closed:
                caller.check()
                news = await platform.in_thread(self._follower.look)
                frames = news.frames
                if not frames and news.drained:
                    # Not all that is heard is news here: an agent that says it lives, say.
                    left = said_at + KEEP_ALIVE_SECONDS - clock()
                    await caller.waits_for(watcher.wait(max(left, 0)))
                    if clock() >= said_at + KEEP_ALIVE_SECONDS and not changes.closed:
                        frames = b": still here\n\n"
                if frames:
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
                    said_at = clock()
                if news.over:
                    return


async def follow(call: Call[None, EventsQuery]) -> EventStream:
    """Follow a run: its record and its log as they change, until it is over."""
    platform, run_id = call.platform, call.params["run"]
    run = await platform.in_thread(platform.load_run, run_id)
    seen = parse_seen(call.header(b"last-event-id") or call.query.after)
    if seen is None:
        seen = Seen(offset=call.query.offset)
    return EventStream(platform, run.id, Follower(platform, run.id, call.query.log, seen))
