"""The part of the server that agents speak to, in memory, with outages to order.

with FakeServer() as server:
    plan = server.plan(["-c", "print(1)"])
    …
    server.log("azureml-logs/70_driver_log.txt")
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import uv

import runyard_runtime
from runyard_runtime import bundle, wire

RUN_ID = "fake run/1"  # a name that must be quoted wherever it goes
TOKEN = "the token of the run"
AGENT_TOKEN = "agent-5c0ffee7"  # no words that a command line of others could have
_RUN_FILES = re.compile(r"/api/v1/runs/[^/]+/files(?:/(.+))?")
_FOR_AGENTS = ("/reports", "/plan", "/board")
_STREAM = re.compile(r"/api/v1/runs/([^/]+)/streams/(log|events)/(.+)")


class FakeServer:
    """Streams, blobs, files and reports of one run; `go_down` and `come_back` at will."""

    def __init__(self, address_file: Path | None = None, *, host: str = "127.0.0.1") -> None:
        self.streams: dict[tuple[str, str], bytearray] = {}
        self.blobs: dict[str, bytes] = {}
        self.files: dict[str, tuple[str, int, int]] = {}
        self.inputs: dict[str, object] = {}  # a ResolvedData of each input, as JSON has it
        self.stored: dict[str, tuple[str, int, int]] = {}  # files of the one datastore it has
        self.reports: list[dict[str, object]] = []
        self.plans: dict[int, dict[str, object]] = {}  # by attempt: what nodes may ask for
        self.notes: dict[int, list[object]] = {}  # by attempt: the boards
        self.requests: list[tuple[str, str]] = []
        self.stop_ordered = False
        self.fail_answers = 0  # this many requests are applied, but their answers are lost
        self.refuse: tuple[str, int] | None = None  # (part of the path, status)
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)  # there is another note, or it all ends
        self._address_file = address_file
        self._host = host
        self._http: _Http | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.go_down()

    def come_back(self, *, same_port: bool = False) -> None:
        """Answer again, on another port, and say so in the address file."""
        port = urlsplit(self.url).port or 0 if same_port else 0
        self._http = _Http((self._host, port), _Handler)
        self._http.state = self
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://{self._host}:{self._http.server_address[1]}"
        if self._address_file is not None:
            new = self._address_file.with_suffix(".new")
            new.write_text(json.dumps({"url": self.url}))
            new.rename(self._address_file)

    def go_down(self) -> None:
        """Vanish: the port is closed and connections are cut."""
        if self._http is not None:
            self._http.shutdown()
            self._http.cut()
            self._http.server_close()
            self._http = None
            with self.news:
                self.news.notify_all()

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self._http is not None

    def plan(self, arguments: Iterable[str], /, **changes: object) -> dict[str, object]:
        """A plan for a job of this server, as `runyard_runtime.wire` describes it."""
        files = changes.pop("files", {})
        assert isinstance(files, Mapping)
        plan: dict[str, object] = {
            "run_id": RUN_ID,
            "uid": "uid1",
            "attempt": 1,
            "workspace": "ws",
            "experiment": "exp",
            "subscription_id": "sub",
            "resource_group": "group",
            "url": self.url,
            "address_file": str(self._address_file) if self._address_file else None,
            "token": TOKEN,
            "agent_token": AGENT_TOKEN,
            "nodes": 1,
            "hosts": None,
            "launcher": {"kind": "single", "nodes": 1, "processes_per_node": 1},
            "interpreter": sys.executable,
            "arguments": list(arguments),
            "is_command": False,
            "variables": {},
            "runtime": str(Path(runyard_runtime.__file__).parents[1]),
            "snapshot": [self.add_file(name, text) for name, text in sorted(files.items())],
            "blobs": None,
            "max_run_duration_seconds": None,
            "grace_seconds": 5.0,
            "sample_seconds": 0,
        }
        return {**plan, **changes}

    def publish(self, key: str, plan: Mapping[str, object]) -> dict[str, object]:
        """Have the plan ready for nodes that ask for it: each key is an attempt of its own."""
        attempt = plan["attempt"]
        assert isinstance(attempt, int)
        with self.lock:
            while self.plans.get(attempt, {"uid": key})["uid"] != key:
                attempt += 1
            self.plans[attempt] = {**plan, "uid": key, "attempt": attempt}
            return self.plans[attempt]

    def add_file(self, path: str, content: str | bytes, mode: int = 0o644) -> list[object]:
        """Hold a content, as an upload would; its row of a manifest."""
        data = content.encode() if isinstance(content, str) else content
        digest = hashlib.sha256(data).hexdigest()
        with self.lock:
            self.blobs[digest] = data
        return [path, digest, len(data), mode]

    def log(self, name: str) -> str:
        """The text of a log as it arrived."""
        return self.stream("log", name).decode("utf-8", "replace")

    def stream(self, kind: str, name: str) -> bytes:
        """The bytes of a stream as they arrived."""
        with self.lock:
            return bytes(self.streams.get((kind, name), b""))

    def file(self, path: str) -> bytes:
        """The content of a file that the run kept."""
        with self.lock:
            return self.blobs[self.files[path][0]]

    def phases(self) -> list[object]:
        """The phases that were reported, in order, without signs of life and repetitions."""
        with self.lock:
            seen = [report["phase"] for report in self.reports if report["phase"] != "alive"]
        return [one for at, one in enumerate(seen) if at == 0 or seen[at - 1] != one]

    def report(self, phase: str) -> dict[str, object]:
        """The last report of that phase."""
        with self.lock:
            return [report for report in self.reports if report["phase"] == phase][-1]

    def finished(self) -> bool:
        """True when a last report came."""
        return bool({"finished", "failed"} & set(self.phases()))


def wait_until(check: Callable[[], object], timeout: float = 60.0) -> None:
    """Wait for a condition; AssertionError if it does not come true in time."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"nothing after {timeout:g} seconds"
        time.sleep(0.01)


class _Http(ThreadingHTTPServer):
    state: FakeServer
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[_Handler] = set()

    def cut(self) -> None:
        for handler in list(self.connections):
            handler.cut()

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that break are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http
    etag = ""  # of the answer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self)

    def finish(self) -> None:
        self.server.connections.discard(self)
        super().finish()

    def cut(self) -> None:
        try:
            os.set_blocking(self.connection.fileno(), False)
            self.connection.shutdown(2)
        except OSError:
            pass

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if len(body) < int(self.headers.get("Content-Length") or 0):
            return
        state = self.server.state
        where = urlsplit(self.path)
        self.etag = ""
        with state.lock:
            state.requests.append((self.command, unquote(where.path)))
            status, answer = self._decide(state, where.path, where.query, body)
            lost = state.fail_answers > 0
            state.fail_answers -= lost
        if lost:
            self.close_connection = True
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if self.etag:
            self.send_header("ETag", f'"{self.etag}"')
        self.end_headers()
        self.wfile.write(data)

    def _decide(self, state: FakeServer, path: str, query: str, body: bytes) -> tuple[int, object]:
        sent = self.headers.get("Authorization")
        if sent not in (f"Bearer {AGENT_TOKEN}", f"Bearer {TOKEN}"):
            return 401, {"what": "wrong token"}
        if sent == f"Bearer {TOKEN}" and path.endswith(_FOR_AGENTS):
            return 403, {"what": "this token is not the agent's"}
        if state.refuse is not None and state.refuse[0] in unquote(path):
            return state.refuse[1], {"what": "refused to order"}
        if found := _STREAM.fullmatch(path):
            return _stream(state, found, query, body if self.command == "POST" else None)
        if path == "/api/v1/blobs/missing":
            return 200, [digest for digest in json.loads(body) if digest not in state.blobs]
        if path.startswith("/api/v1/blobs/"):
            return _blob(state, path.rsplit("/", 1)[1], body if self.command == "PUT" else None)
        if "/inputs/" in path:
            name = unquote(path.rsplit("/", 1)[1])
            known = state.inputs.get(name)
            return (200, known) if known else (404, {"what": f"no input {name}"})
        if self.command == "GET" and (found := _RUN_FILES.fullmatch(path)):
            return _run_file(state, unquote(found[1] or ""), parse_qs(query))
        if path.endswith("/files"):
            kept = state.stored if "/datastores/" in path else state.files
            if self.command == "GET":
                return 200, [{"path": name, "size": size} for name, (_, size, _) in kept.items()]
            for name, digest, size, mode in json.loads(body):
                if digest not in state.blobs:
                    return 424, {"what": "upload first"}
                kept[name] = (digest, size, mode)
            return 200, {}
        if path in ("/api/v1/runtime", "/api/v1/uv"):
            content = _runtime() if path.endswith("/runtime") else _uv()
            self.etag = hashlib.sha256(content).hexdigest()
            return 200, content
        if path.endswith("/plan"):
            return _plan(state, parse_qs(query))
        if path.endswith("/board"):
            return _board(state, parse_qs(query), body if self.command == "POST" else None)
        if path.endswith("/reports"):
            state.reports.append(json.loads(body))
            return 200, {"stop": state.stop_ordered}
        return 404, {"what": f"nothing at {path}"}


def _stream(
    state: FakeServer, found: re.Match[str], query: str, data: bytes | None
) -> tuple[int, object]:
    if unquote(found[1]) != RUN_ID:
        return 404, {"what": "no such run"}
    stream = state.streams.setdefault((found[2], unquote(found[3])), bytearray())
    if data is None:
        return 200, {"end": len(stream)}
    if len(data) > wire.CHUNK_LIMIT_BYTES:
        return 413, {"what": "too large"}
    offset = int(parse_qs(query)["offset"][0])
    if offset > len(stream):
        return 409, {"what": "a gap"}
    stream.extend(data[len(stream) - offset :])
    return 200, {"end": len(stream)}


def _runtime() -> bytes:
    digest_and_content: tuple[str, bytes] = bundle.archive()
    return digest_and_content[1]


def _uv() -> bytes:
    return Path(uv.find_uv_bin()).read_bytes()


def _plan(state: FakeServer, query: Mapping[str, list[str]]) -> tuple[int, object]:
    """A plan as nodes get it that see nothing of ours."""
    plan = state.plans.get(int(query["attempt"][0]))
    if plan is None:
        return 404, {"what": "that attempt is not going on"}
    own = {"user_managed": True, "interpreter": plan["interpreter"], "name": "own", "key": "own"}
    apart = {"runtime": bundle.archive()[0], "interpreter": None, "address_file": None}
    return 200, {**plan, **apart, "environment": plan.get("environment") or own}


def _board(
    state: FakeServer, query: Mapping[str, list[str]], data: bytes | None
) -> tuple[int, object]:
    notes = state.notes.setdefault(int(query["attempt"][0]), [])
    if data is not None:
        notes.append(json.loads(data))
        state.news.notify_all()
    since, wait = int(query["since"][0]), float(query.get("wait", ["0"])[0])
    deadline = time.monotonic() + wait
    while len(notes) <= since and time.monotonic() < deadline and state.is_up:
        state.news.wait(deadline - time.monotonic())
    return 200, {"notes": notes[since:], "next": len(notes)}


def _run_file(state: FakeServer, name: str, query: Mapping[str, list[str]]) -> tuple[int, object]:
    """The list of the run's files, or the content of one."""
    logs = {path: bytes(data) for (kind, path), data in state.streams.items() if kind == "log"}
    if name:
        if name in state.files:
            return _blob(state, state.files[name][0], None)
        return (200, logs[name]) if name in logs else (404, {"what": f"no file {name}"})
    prefix = query.get("prefix", [""])[0]
    rows = [{"path": path, "size": len(data), "digest": None} for path, data in logs.items()]
    rows += [
        {"path": path, "size": size, "digest": digest}
        for path, (digest, size, _) in state.files.items()
    ]
    return 200, [row for row in rows if str(row["path"]).startswith(prefix)]


def _blob(state: FakeServer, digest: str, data: bytes | None) -> tuple[int, object]:
    if data is None:
        return (200, state.blobs[digest]) if digest in state.blobs else (404, {"what": "none"})
    if hashlib.sha256(data).hexdigest() != digest:
        return 400, {"what": "the content has another digest"}
    state.blobs[digest] = data
    return 200, {}


def largest_file(folder: Path) -> int:
    """The size of the largest file below a folder where files come and go."""
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)
