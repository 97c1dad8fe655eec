"""The server as a process: ready quickly, alone in its home, and gone when it is told."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

import msgspec
import pytest
import urllib3

from runyard.domain.server import DATABASE_TAKEN, LOCK_TAKEN, ServerInfo
from runyard.server import home as home_files


class Process:
    """A server process on a home folder."""

    def __init__(self, home: Path, **variables: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RUNYARD_")}
        self.home = home
        self.output: IO[bytes] = open(home.with_suffix(".out"), "wb")  # noqa: SIM115 - closed in end
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runyard.server"],
            env={**kept, "RUNYARD_HOME": str(home), **variables},
            stderr=self.output,
        )
        self.http = urllib3.PoolManager()

    def wait_ready(self) -> ServerInfo:
        deadline, tick = time.monotonic() + 20, threading.Event()
        while time.monotonic() < deadline:
            info = home_files.read_address(self.home)
            if info is not None and info.pid == self.process.pid:
                return info
            assert self.process.poll() is None, self.said()
            tick.wait(0.01)
        raise AssertionError(f"the server is not ready: {self.said()}")

    def said(self) -> str:
        return self.home.with_suffix(".out").read_text()

    def request(self, verb: str, path: str, **more: object) -> urllib3.BaseHTTPResponse:
        info = home_files.read_address(self.home)
        assert info is not None
        token = (self.home / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        return self.http.request(
            verb,
            info.url + path,
            headers=headers,
            retries=False,
            **more,  # type: ignore[arg-type]
        )

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.http.clear()
        self.output.close()


class Start(Protocol):
    def __call__(self, **variables: str) -> Process: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(**variables: str) -> Process:
        started.append(Process(tmp_path / "the home", **variables))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_server_lives_alone_and_comes_back_to_its_port(start: Start) -> None:
    first = start()
    info = first.wait_ready()
    home = first.home
    assert mode(home) == 0o700
    assert [mode(home / name) for name in ("token", "secret", "server.json")] == [0o600] * 3
    assert len((home / "token").read_text()) > 30
    answer = first.request("GET", "/api/v1/server")
    served = msgspec.json.decode(answer.data, type=ServerInfo)
    assert (served.pid, served.url, served.database) == (info.pid, info.url, "sqlite")

    second = start()
    assert second.process.wait(20) == LOCK_TAKEN
    assert f"already running at {info.url}, process {info.pid}" in second.said()

    token = (home / "token").read_text()
    first.process.kill()  # a stale lock file, a stale address, a dead pid
    first.process.wait()
    third = start()
    assert third.wait_ready().url == info.url
    assert (home / "token").read_text() == token
    assert third.request("POST", "/api/v1/server/stop").status == 200
    assert third.process.wait(10) == 0
    assert "listens on" in (home / "logs" / "server.log").read_text()


def test_two_homes_do_not_share_a_database(start: Start, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    first = start(RUNYARD_DATABASE=database)
    first.wait_ready()
    second = start(RUNYARD_DATABASE=database, RUNYARD_HOME=str(tmp_path / "another home"))
    assert second.process.wait(20) == DATABASE_TAKEN
    assert "shared.db" in (tmp_path / "the home.out").read_text()


def test_a_taken_port_is_left_to_its_owner(start: Start) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        refused = start(RUNYARD_PORT=str(port))
        assert refused.process.wait(20) == 4
        assert f"127.0.0.1:{port}" in refused.said()
        info = ServerInfo(
            pid=1, url=f"http://127.0.0.1:{port}", version="0", started=datetime.now(UTC), home="x"
        )
        home_files.write_address(refused.home, info)
        elsewhere = start()
        assert elsewhere.wait_ready().url != info.url
        assert f"port {port}, used last time, cannot be used" in elsewhere.said()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_all_who_wait(start: Start, number: signal.Signals) -> None:
    server = start()
    server.wait_ready()
    assert server.request("POST", "/api/v1/workspaces", json={"name": "yard"}).status == 200
    spec = {"workspace": "yard", "experiment": "trials", "id": "waiting"}
    assert server.request("POST", "/api/v1/runs", json={"spec": spec}).status == 200
    stream = server.request("GET", "/api/v1/runs/waiting/events", preload_content=False)
    assert stream.read1(10)
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(10) == 0
    assert time.monotonic() - began < 4
    while stream.read1(65536):  # it ends, and not by a broken connection
        pass
    assert "Traceback" not in server.said()


def test_bad_settings_are_said_and_not_traced(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    server = start(RUNYARD_HOME=str(tmp_path / "file" / "home"))
    assert server.process.wait(20) == 4
    assert "RUNYARD_HOME" in server.said()
    assert "Traceback" not in server.said()
    server = start(RUNYARD_DATABASE="nonsense")
    assert server.process.wait(20) == 4
    assert "RUNYARD_DATABASE" in server.said()


def test_a_home_that_was_open_to_others_is_closed(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "the home"
    home.mkdir(mode=0o755)
    server = start()
    server.wait_ready()
    assert mode(home) == 0o700
    assert "was open to other users (mode 755)" in server.said()


def test_a_damaged_token_file_is_said(start: Start, tmp_path: Path) -> None:
    (tmp_path / "the home").mkdir()
    (tmp_path / "the home" / "token").write_text("")
    server = start()
    assert server.process.wait(20) == 4
    assert "damaged" in server.said()
