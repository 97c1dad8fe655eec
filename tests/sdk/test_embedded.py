"""The embedded server with real processes: found, started once, replaced, and never a riddle."""

import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runyard import __version__
from runyard.domain.errors import (
    Denied,
    EngineFailed,
    Invalid,
    RunyardError,
    TimedOut,
    Unavailable,
)
from runyard.domain.server import ServerInfo
from runyard.sdk import embedded
from runyard.sdk.client import Client
from runyard.settings import Settings, load_settings, to_environ

CONNECT = """
import sys
from pathlib import Path
from runyard.sdk.embedded import connect
from runyard.domain.server import ServerInfo
from runyard.settings import Settings
client = connect(Settings(home=Path(sys.argv[1])))
print(client.request("GET", "/api/v1/server", answer=ServerInfo).pid)
"""
SERVE_AS = """
import sys, runyard
runyard.__version__ = sys.argv[1]
from runyard.server.main import main
sys.exit(main())
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    made = Settings(home=tmp_path / "a home", sample_seconds=0)
    yield made
    for pid in servers_of(made.home):
        os.kill(pid, signal.SIGKILL)


def servers_of(home: Path) -> list[int]:
    """Every server process of a home folder, by its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"runyard" in command and f"RUNYARD_HOME={home}".encode() in environ:
                found.append(int(entry.name))
    return found


def ask(client: Client) -> ServerInfo:
    return client.request("GET", "/api/v1/server", answer=ServerInfo)


def test_ten_racing_processes_start_one_server(settings: Settings) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", CONNECT, str(settings.home)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(10)
    ]
    pids = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 10
    assert len(pids) == 1
    assert servers_of(settings.home) == [int(pids.pop())]


def test_a_killed_server_comes_back_for_the_same_client(settings: Settings) -> None:
    client = embedded.connect(settings)
    first = ask(client)
    os.kill(first.pid, signal.SIGKILL)
    second = ask(client)
    assert second.pid != first.pid
    assert ask(embedded.connect(settings)).pid == second.pid


def test_a_port_that_was_taken_meanwhile_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "PROBE_SECONDS", 0.3)  # its new owner does not answer
    client = embedded.connect(settings)
    first = ask(client)
    assert embedded.stop(settings)
    port = int(first.url.rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        taken.settimeout(0)
        second = embedded.ensure_running(settings)
    assert second.url != first.url
    assert ask(client).pid == second.pid


def test_stop_ends_it_and_says_whether_there_was_one(settings: Settings) -> None:
    assert not embedded.stop(settings)
    server = embedded.ensure_running(settings)
    assert embedded.status(settings).server is not None
    assert embedded.stop(settings)
    assert not servers_of(settings.home)
    assert embedded.status(settings).reason == f"process {server.pid} has ended"
    assert not embedded.stop(settings)


def test_a_server_that_is_about_to_end_is_followed_by_another(settings: Settings) -> None:
    client = embedded.connect(settings)
    for _ in range(3):
        ending = ask(client).pid
        client.request("POST", "/api/v1/server/stop", answer=dict)
        deadline = time.monotonic() + 20
        while ask(client).pid == ending:  # it may answer a few more times; nobody sees a failure
            assert time.monotonic() < deadline


def test_a_lock_that_is_held_a_little_longer_is_waited_for(settings: Settings) -> None:
    write_address(settings.home, pid=2**22 + 1)
    lock = (settings.home / "server.lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    release = threading.Timer(1.0, lock.close)
    release.start()
    assert embedded.ensure_running(settings).pid
    release.join()


def test_a_server_can_be_stopped_while_the_process_that_started_it_lives(
    settings: Settings,
) -> None:
    # That process does not take notice of the end, so the server stays as a zombie.
    with subprocess.Popen(
        [sys.executable, "-c", CONNECT + "\nsys.stdout.flush(); input()", str(settings.home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        begin = time.monotonic()
        assert embedded.stop(settings)
        assert time.monotonic() - begin < 10
        assert embedded.status(settings).reason == f"process {pid} has ended"
        starter.communicate("\n")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_a_garbled_address_is_no_server(settings: Settings, text: str) -> None:
    embedded.prepare_home(settings.home)
    (settings.home / "server.json").write_text(text)
    found = embedded.status(settings)
    assert found.server is None
    assert "server.json cannot be read" in found.reason


def write_address(home: Path, **changes: object) -> None:
    info = {"pid": 1, "url": "http://127.0.0.1:9", "version": __version__, "home": str(home)}
    started = {"started": "2026-01-01T00:00:00Z"}
    embedded.prepare_home(home)
    (home / "server.json").write_text(json.dumps({**info, **started, **changes}))
    (home / "token").write_text("t" * 20)
    (home / "token").chmod(0o600)


def test_an_address_of_the_past_is_no_server(settings: Settings) -> None:
    # The pid is another program's by now: this one's.
    write_address(settings.home, pid=os.getpid())
    assert "does not answer" in embedded.status(settings).reason
    assert not embedded.stop(settings)  # and this process lives
    server = embedded.ensure_running(settings)
    assert server.pid in servers_of(settings.home)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 10**12])
def test_an_absurd_pid_is_nobody(settings: Settings, pid: int) -> None:
    write_address(settings.home, pid=pid)
    assert embedded.status(settings).server is None
    assert not embedded.stop(settings)


def test_the_server_of_another_home_is_not_ours(settings: Settings, tmp_path: Path) -> None:
    other = Settings(home=tmp_path / "other", sample_seconds=0)
    try:
        theirs = embedded.ensure_running(other)
        write_address(settings.home, pid=theirs.pid, url=theirs.url)
        (settings.home / "token").write_text(embedded.load_token(other.home))
        assert f"is now the server of {other.home}" in embedded.status(settings).reason
        ours = embedded.ensure_running(settings)
        assert ours.pid != theirs.pid
    finally:
        embedded.stop(other)


def test_a_pid_that_is_another_homes_server_now_is_left_alone(
    settings: Settings, tmp_path: Path
) -> None:
    other = Settings(home=tmp_path / "other", sample_seconds=0)
    try:
        theirs = embedded.ensure_running(other)
        write_address(settings.home, pid=theirs.pid)  # at an address where nobody answers
        assert not embedded.stop(settings)
        assert embedded.status(other).server is not None
    finally:
        embedded.stop(other)


def test_a_token_without_an_address_is_said_to_be_ignored(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    lonely = msgspec.structs.replace(settings, token="t" * 20)
    with caplog.at_level(logging.WARNING):
        ask(embedded.connect(lonely))
    assert "RUNYARD_TOKEN is ignored" in caplog.text


def test_a_damaged_token_file_says_how_to_have_a_new_one(settings: Settings) -> None:
    embedded.ensure_running(settings)
    (settings.home / "token").write_text("")
    with pytest.raises(RunyardError, match="is empty") as caught:
        embedded.ensure_running(settings)
    assert f"rm '{settings.home / 'token'}' && runyard down" in caught.value.fix
    (settings.home / "token").unlink()
    assert embedded.stop(settings)
    assert ask(embedded.connect(settings))


def test_a_token_that_does_not_fit_is_said_at_once(settings: Settings) -> None:
    server = embedded.ensure_running(settings)
    (settings.home / "token").write_text("x" * 30)
    with pytest.raises(RunyardError) as caught:
        embedded.ensure_running(settings)
    assert "does not accept our token" in caught.value.what
    assert "runyard down && runyard up --detach" in caught.value.fix
    with pytest.raises(Denied):
        ask(Client(server.url, "wrong"))


def test_a_token_open_to_others_is_closed_and_said(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.prepare_home(settings.home)
    token = settings.home / "token"
    token.write_text("secret-secret-secret\n")
    token.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert embedded.load_token(settings.home) == "secret-secret-secret"
    assert token.stat().st_mode & 0o777 == 0o600
    assert "was open to other users (mode 644)" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("content", [None, "", "\u00e4"])
def test_a_token_that_cannot_be_used_is_said(settings: Settings, content: str | None) -> None:
    embedded.prepare_home(settings.home)
    if content is not None:
        (settings.home / "token").write_text(content)
    with pytest.raises(Denied, match=re.escape(str(settings.home / "token"))):
        embedded.load_token(settings.home)


def serve_as(version: str, settings: Settings) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", SERVE_AS, version, "runyard.server"],
        env=to_environ(settings),
        stderr=subprocess.DEVNULL,
    )


def wait_for_server(settings: Settings) -> ServerInfo:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if (server := embedded.status(settings).server) is not None:
            return server
        time.sleep(0.01)
    raise AssertionError("no server came up")


def test_an_older_server_is_replaced_and_that_is_said(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_as("0.0.1", settings):
        old = wait_for_server(settings)
        assert old.version == "0.0.1"
        with caplog.at_level(logging.WARNING):
            new = embedded.ensure_running(settings)
    assert (new.version, new.pid == old.pid) == (__version__, False)
    assert "replacing the server of version 0.0.1" in caplog.text


def test_a_newer_server_serves_an_older_client(settings: Settings) -> None:
    with serve_as("99.0.0", settings) as process:
        newer = wait_for_server(settings)
        assert embedded.ensure_running(settings).pid == newer.pid
        process.terminate()


def test_a_server_that_hangs_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PROBE_SECONDS", 0.2)
    server = embedded.ensure_running(settings)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(TimedOut) as caught:
        embedded.ensure_running(settings, within_seconds=3)
    assert f"process {server.pid}" in caught.value.what
    assert f"kill -9 {server.pid}" in caught.value.fix


def test_a_server_that_cannot_start_says_why(settings: Settings) -> None:
    bad = Settings(home=settings.home, database="mysql://nowhere/x")
    with pytest.raises(EngineFailed) as caught:
        embedded.ensure_running(bad)
    assert "exit code" in caught.value.why
    assert "mysql" in caught.value.why
    assert str(caught.value).count("fix: ") == 1


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="RUNYARD_HOME"):
        embedded.connect(Settings(home=tmp_path / "file" / "home"))


def test_a_folder_of_the_user_cannot_shadow_the_server(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runyard.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "logging.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert embedded.ensure_running(settings).pid


def test_the_server_takes_the_settings_and_nothing_of_a_job(tmp_path: Path) -> None:
    mine = Settings(home=tmp_path, allowed_hosts=("a", "b"), local_slots=3, sample_seconds=0)
    given = {
        "PATH": "/bin",
        "PYTHONPATH": "src",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RUNYARD_URL": "http://elsewhere",
        "RUNYARD_JOB_KEY": "job",
        "AZUREML_RUN_ID": "run",
    }
    passed = to_environ(mine, given)
    assert load_settings(passed) == mine
    assert passed["PYTHONPATH"] == str(Path("src").absolute())
    ours = {name for name in passed if name.startswith("RUNYARD_")}
    assert set(passed) - ours == {"PATH", "PYTHONPATH"}
    assert "RUNYARD_JOB_KEY" not in passed


def test_a_remote_server_needs_a_token_and_is_never_started(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="RUNYARD_TOKEN"):
        embedded.connect(Settings(home=tmp_path / "home", url="http://127.0.0.1:9"))
    remote = Settings(home=tmp_path / "home", url="http://127.0.0.1:9", token="t")
    assert embedded.connect(remote).url == "http://127.0.0.1:9"
    assert "refused" in embedded.status(remote).reason
    assert not (tmp_path / "home").exists()


def test_a_remote_client_gives_up_in_words() -> None:
    client = Client("http://127.0.0.1:9", "t", patience_seconds=0)
    with pytest.raises(Unavailable, match="connection refused"):
        ask(client)
