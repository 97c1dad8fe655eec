"""What stays on a node that shares nothing with the server, and how it comes up there."""

import fcntl
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runyard_runtime import boot, node_environment, node_storage, remote
from runyard_runtime.server_link import Refused

KEY, OTHER = "a" * 32, "b" * 32
DIGEST = "d" * 64
MONTHS = 100 * 86400.0


def make_old(*paths: Path) -> None:
    then = time.time() - MONTHS
    for path in paths:
        os.utime(path, (then, then))


def environment(folder: Path, key: str) -> Path:
    place = folder / key
    (place / "bin").mkdir(parents=True)
    (place / node_storage.WHOLE).write_text("{}")
    return place


# ---- what is old goes ----------------------------------------------------------------------------


def test_what_nobody_has_used_for_long_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "environments"
    old, used = environment(folder, KEY), environment(folder, OTHER)
    runtimes = [tmp_path / "runtime" / digest for digest in (DIGEST, "e" * 64)]
    packages, theirs = folder / node_storage.PACKAGES, folder / ".cache"
    for one in (*runtimes, packages, theirs, folder / "a project of somebody"):
        one.mkdir(parents=True)
    uv, left = folder / f".uv-{DIGEST}", folder / f"{KEY}.making-host-1"
    uv.touch()
    left.mkdir()
    make_old(old / node_storage.WHOLE, runtimes[0], packages, theirs, uv, left)
    make_old(folder / "a project of somebody")
    node_storage.clear(str(tmp_path))
    gone = [old, runtimes[0], packages, uv, left]
    assert not any(one.exists() for one in gone), "nobody needs them"
    assert all(
        one.exists() for one in (used, runtimes[1], theirs, folder / "a project of somebody")
    )
    assert not list(folder.glob("*.going-*"))


def test_a_job_that_goes_on_says_what_it_uses(tmp_path: Path) -> None:
    place = environment(tmp_path / "shared", KEY)
    runtime = tmp_path / "runtime" / DIGEST
    runtime.mkdir(parents=True)
    make_old(place / node_storage.WHOLE, runtime)
    plan = {"runtime": str(runtime), "environments": str(tmp_path / "shared")}
    node_storage.touch({**plan, "environment": {"key": KEY}})
    node_storage.touch({**plan, "environment": {"user_managed": True}})
    node_storage.clear(str(tmp_path), str(tmp_path / "shared"))
    assert place.exists()
    assert runtime.exists()


def _hold(path: str, ready: Any, done: Any) -> None:
    with open(path, "a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        ready.set()
        done.wait(60)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process has that lock."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(path), ready, done))
    other.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        done.set()
        other.join(60)


def test_what_another_job_is_about_to_make_is_left_alone(tmp_path: Path) -> None:
    place = environment(tmp_path / "environments", KEY)
    make_old(place / node_storage.WHOLE)
    with held(Path(f"{place}.lock")):
        node_storage.clear(str(tmp_path))
        assert place.exists()
    node_storage.clear(str(tmp_path))
    assert not place.exists()


def test_what_a_job_takes_while_it_is_being_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = environment(tmp_path / "environments", KEY)
    mark = place / node_storage.WHOLE
    make_old(mark)
    rename = os.rename

    def take_first(source: str, target: str) -> None:
        if target.endswith(f".going-{os.getpid()}"):
            os.utime(mark)
        rename(source, target)

    monkeypatch.setattr(os, "rename", take_first)
    node_storage.clear(str(tmp_path))
    assert mark.exists()


class Waiting:
    """The agent of a node, as far as an environment needs it."""

    def pause(self, seconds: float) -> None:
        raise AssertionError("it waits, though nobody has the lock")


def test_a_folder_without_locks_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with (tmp_path / "lock").open("w") as lock:
        assert node_environment._wait_for(lock, Waiting()) is False
        boot.wait_for(lock, 60, [])  # returns at once
    place = environment(tmp_path / "environments", KEY)
    make_old(place / node_storage.WHOLE)
    node_storage.clear(str(tmp_path))
    assert place.exists(), "without locks nobody knows who uses it"


# ---- coming up -----------------------------------------------------------------------------------


def test_an_agent_that_waits_for_another_says_so_and_hears_a_stop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, stops = tmp_path / "lock", list[int]()
    with held(path), path.open("w") as lock:
        waiter = threading.Thread(target=boot.wait_for, args=(lock, 60.0, stops))
        waiter.start()
        said = ""
        while "waiting for another agent of this node" not in said:
            said += capfd.readouterr().err
            assert waiter.is_alive()
            time.sleep(0.01)
        stops.append(1)
        waiter.join(30)
        assert not waiter.is_alive()


def test_who_is_told_to_stop_does_not_try_to_reach_a_server_for_long() -> None:
    with pytest.raises(boot.Stop) as told:
        boot.fetch("http://127.0.0.1:1", "/x", "token", 900, [1])
    assert told.value.args[0] == boot.UNREACHABLE
    assert "told to stop" in told.value.args[1]


@contextmanager
def refusing(status: int, body: dict[str, str]) -> Iterator[str]:
    """The address of a server that refuses everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("status", "is_token"), [(401, True), (403, False)])
def test_only_401_is_told_as_a_wrong_token(status: int, is_token: bool) -> None:
    name = {"what": "It does not answer to 'yard'.", "fix": "Add it to RUNYARD_ALLOWED_HOSTS."}
    with refusing(status, name) as url, pytest.raises(boot.Stop) as told:
        boot.fetch(url, "/api/v1/runtime", "token", 1)
    assert told.value.args[0] == boot.REFUSED
    assert "does not answer to 'yard'. Add it to RUNYARD_ALLOWED_HOSTS." in told.value.args[1]
    assert ("the token is not valid" in told.value.args[1]) is is_token


def test_a_refusal_knows_whether_a_server_of_ours_said_it() -> None:
    assert Refused(404, b'{"code": "NotFound", "what": "There is no run."}').is_told
    assert not Refused(404, b"<html>404 Not Found</html>").is_told
    assert not Refused(404, b"[]").is_told


@pytest.mark.parametrize("code", [*sorted(remote.WORDS), 245])
def test_a_script_cannot_end_as_if_there_had_been_no_agent(code: int) -> None:
    assert remote.exit_status(code) == 1
    assert not remote.is_lost(remote.exit_status(code))


def test_other_ends_of_scripts_are_told_as_they_are() -> None:
    assert [remote.exit_code(remote.exit_status(one)) for one in (0, 1, 3, 120, -9)] == [
        0, 1, 3, 120, -9,
    ]  # fmt: skip
