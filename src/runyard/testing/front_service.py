"""A service for tests: a real front end and real small workers, each a process."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 30.0  # seconds until a condition that must come true is given up


def wait_for(check: Callable[[], object], what: str = "it") -> None:
    until = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < until, f"{what} did not happen"
        time.sleep(0.01)


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.body)
        return found


class Service:
    """Front end and workers in a folder; everything is ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, object] = {
            "name": "demo",
            "port": 0,
            "control_token": "control",
            "revisions": [{"revision": 1, "sockets": ["w0.sock"]}],
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.front: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def log(self) -> str:
        return (self.folder / "front.log").read_text()

    def write(self, **changes: object) -> None:
        """Replace front.json as the platform does."""
        self.config |= changes
        new = self.folder / "front.json.new"
        new.write_text(json.dumps(self.config))
        new.replace(self.folder / "front.json")

    def start(self, **changes: object) -> None:
        self.write(**changes)
        with (self.folder / "front.log").open("ab") as output:
            self.front = subprocess.Popen(
                [sys.executable, "-m", "runyard.serving.front", str(self.folder)],
                stdout=output,
                stderr=output,
            )
        wait_for(lambda: "serving" in self.log or self.front_ended(), "the start")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.log)
        assert found, self.log
        self.port = int(found[1])

    def front_ended(self) -> bool:
        return self.front is not None and self.front.poll() is not None

    def worker(self, name: str = "w0", **options: object) -> None:
        """Start a worker, or start it again."""
        words = [f"{key}={value}" for key, value in options.items()]
        path = str(self.folder / f"{name}.sock")
        command = [sys.executable, "-m", "runyard.testing.fake_worker", path, f"name={name}"]
        self.workers[name] = subprocess.Popen([*command, *words])

    def kill(self, name: str) -> None:
        self.workers[name].kill()
        self.workers[name].wait()

    def wait_ready(self, count: int = 1) -> None:
        wait_for(lambda: self.status()["ready_workers"] == count, f"{count} workers being ready")

    def status(self) -> dict[str, object]:
        found = self.ask("GET", "/_runyard/status", headers={"Authorization": "Bearer control"})
        assert found.status == 200, found.body
        return found.json()

    def revisions(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self.status()["revisions"]  # type: ignore[assignment]
        return found

    def ask(
        self,
        method: str = "POST",
        path: str = "/score",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def score(self, body: bytes = b"[1]", **headers: str) -> Answer:
        return self.ask("POST", "/score", body, {"Content-Type": "application/json"} | headers)

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """A bare connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as one:
            yield one

    def leave(self, one: socket.socket) -> None:
        """Close a connection as a client does that is killed: without a goodbye."""
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

    def exchange(self, data: bytes) -> bytes:
        """Send bytes and a half-close; everything that comes back."""
        with self.raw() as one:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            return read_all(one)

    @contextmanager
    def load_of(self, body: bytes, expected: bytes) -> Iterator["Load"]:
        """Clients that ask the same all the time."""
        with self.load(ask=lambda _: (body, expected)) as one:
            yield one

    @contextmanager
    def load(
        self, clients: int = 8, ask: Callable[[int], tuple[bytes, bytes]] | None = None
    ) -> Iterator["Load"]:
        """Clients that ask all the time; `ask` makes a body and what must come back."""
        one = Load(self.port, clients, ask or own_numbers)
        try:
            yield one
        finally:
            one.stop()

    def close(self) -> None:
        for process in [*self.workers.values(), *([self.front] if self.front else [])]:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()


class Load:
    """Threads with a kept connection each; what failed is in `failures`."""

    def __init__(self, port: int, clients: int, ask: Callable[[int], tuple[bytes, bytes]]) -> None:
        self.failures: list[str] = []
        self.workers_seen: dict[str, int] = {}
        self.done = 0
        self.slowest = 0.0  # seconds
        self._port = port
        self._make = ask
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def wait_more(self, count: int) -> None:
        """Until so many more have been answered."""
        goal = self.done + count
        wait_for(lambda: self.done >= goal or self.failures, f"{count} answers")

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        count = 0
        while not self._ended.is_set():
            count += 1
            text, expected = self._make(count)
            begun = time.monotonic()
            try:
                connection.request("POST", "/score", text, {"Content-Type": "application/json"})
                found = Answer(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                break
            with self._lock:
                self.done += 1
                self.slowest = max(self.slowest, time.monotonic() - begun)
                name = found.headers.get("X-Worker", "")
                self.workers_seen[name] = self.workers_seen.get(name, 0) + 1
            if found.status != 200 or found.body != expected:
                self.failures.append(f"{found.status} {found.body!r}")
        connection.close()


def own_numbers(count: int) -> tuple[bytes, bytes]:
    """A body that no other client sends, which must come back."""
    text = json.dumps([threading.get_ident(), count]).encode()
    return text, text


def read_all(one: socket.socket) -> bytes:
    found = b""
    while data := one.recv(1 << 16):
        found += data
    return found


def resident_mb(pid: int) -> float:
    """The memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1000


@contextmanager
def a_service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="ry-front-"))  # short: paths of sockets are limited
    one = Service(folder)
    try:
        yield one
    finally:
        one.close()
        shutil.rmtree(folder)
