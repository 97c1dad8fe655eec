"""Following a run: in order, nothing twice, nothing lost, and no waiting for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
import urllib3

from runyard.domain.runs import RunRecord
from runyard.server import events
from runyard.server.events import Seen, parse_seen
from runyard.server.platform import STORE_THREADS

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

DRIVER = "azureml-logs/70_driver_log.txt"
BUILD = "azureml-logs/20_image_build_log.txt"


class Event(NamedTuple):
    name: str
    data: dict[str, object]
    id: str


class Stream:
    """An open stream of events; ends by itself or when it is closed."""

    def __init__(self, server: LiveServer, path: str, last: str = "") -> None:
        headers = {"Last-Event-ID": last} if last else {}
        self.answer = server.request("GET", path, stream=True, headers=headers)
        assert self.answer.status == 200
        self._lines = self._read(self.answer)

    def _read(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        rest = b""
        while piece := answer.read1(65536):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines

    def __iter__(self) -> Iterator[Event]:
        name, data, id = "", b"", ""
        for line in self._lines:
            field, _, value = line.partition(b": ")
            if field == b"event":
                name = value.decode()
            elif field == b"data":
                data = value
            elif field == b"id":
                id = value.decode()
            elif not line and name:
                yield Event(name, msgspec.json.decode(data), id)
                name, data, id = "", b"", ""

    def close(self) -> None:
        self.answer.close()


def follow(server: LiveServer, run: RunRecord, query: str = "", last: str = "") -> Stream:
    return Stream(server, f"/api/v1/runs/{run.id}/events{query}", last)


def text_of(found: list[Event]) -> str:
    return "".join(str(event.data["text"]) for event in found if event.name == "log")


def test_a_finished_run_is_told_log_first_then_state_then_end(server: LiveServer) -> None:
    run = server.make_run()
    server.append_log(run.id, DRIVER, b"one\ntwo\n")
    server.complete(run.id)
    found = list(follow(server, run))
    assert [event.name for event in found] == ["log", "run", "end"]
    assert found[0].data == {"name": DRIVER, "offset": 0, "text": "one\ntwo\n"}
    assert found[1].data["state"] == "Completed"


def test_news_arrives_while_the_run_goes_on(server: LiveServer) -> None:
    run = server.make_run()
    stream = follow(server, run)
    arriving = iter(stream)
    assert next(arriving).data["state"] == "Running"
    server.append_log(run.id, BUILD, b"building\n")
    assert next(arriving).data == {"name": BUILD, "offset": 0, "text": "building\n"}
    server.append_log(run.id, BUILD, b"built\n")
    assert next(arriving).data == {"name": BUILD, "offset": 9, "text": "built\n"}
    server.append_log(run.id, DRIVER, b"training\n")
    assert next(arriving).data == {"name": DRIVER, "offset": 0, "text": "training\n"}
    server.append_log(run.id, BUILD, b"too late\n")  # the later log is the one to follow
    answer = server.request("PATCH", f"/api/v1/runs/{run.id}", json={"set_tags": {"a": "b"}})
    assert answer.status == 200
    assert next(arriving).data["tags"] == {"a": "b"}
    server.complete(run.id)
    assert [event.name for event in arriving] == ["run", "end"]


def test_the_rest_of_a_log_is_told_before_the_next_one(server: LiveServer) -> None:
    run = server.make_run()
    server.append_log(run.id, BUILD, b"b" * 600_000)
    stream = follow(server, run)
    arriving = iter(stream)
    next(arriving)
    server.append_log(run.id, DRIVER, b"d")
    server.complete(run.id)
    names = [str(event.data["name"]) for event in arriving if event.name == "log"]
    assert names == [BUILD, BUILD, BUILD, DRIVER]


def test_a_cut_stream_goes_on_where_it_was(server: LiveServer) -> None:
    run = server.make_run()
    server.append_log(run.id, DRIVER, b"first\n")
    stream = follow(server, run)
    arriving = iter(stream)
    seen = [next(arriving), next(arriving)]
    stream.close()
    server.append_log(run.id, DRIVER, b"second\n")
    server.complete(run.id)
    rest = list(follow(server, run, last=seen[-1].id))
    assert text_of(seen) == "first\n"
    assert text_of(rest) == "second\n"
    assert [event.name for event in rest] == ["log", "run", "end"]
    assert [event.name for event in follow(server, run, last=rest[-2].id)] == ["end"]
    by_query = list(follow(server, run, query=f"?after={seen[-1].id}"))
    assert text_of(by_query) == "second\n"


def test_one_log_can_be_chosen_before_it_exists(server: LiveServer) -> None:
    run = server.make_run()
    stream = follow(server, run, "?log=logs/extra.txt&offset=2")
    arriving = iter(stream)
    next(arriving)
    server.append_log(run.id, DRIVER, b"not this\n")
    server.append_log(run.id, "logs/extra.txt", b"abcd")
    assert next(arriving).data == {"name": "logs/extra.txt", "offset": 2, "text": "cd"}
    server.complete(run.id)
    assert [event.name for event in arriving] == ["run", "end"]


def test_characters_that_arrive_in_halves_are_put_together(server: LiveServer) -> None:
    run = server.make_run()
    data = "aé€😀z".encode() + b"\xff\xfe" + "ü".encode()[:1]
    stream = follow(server, run)
    arriving = iter(stream)
    next(arriving)
    for byte in data:
        server.append_log(run.id, DRIVER, bytes([byte]))
    server.complete(run.id)
    found = list(arriving)
    assert text_of(found) == data.decode(errors="replace")
    offsets = [event.data["offset"] for event in found if event.name == "log"]
    assert offsets == sorted(offsets)  # type: ignore[type-var]


def test_silence_is_broken_by_comments(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.02)
    run = server.make_run()
    answer = server.request("GET", f"/api/v1/runs/{run.id}/events", stream=True)
    received = b""
    while b": still here\n\n: still here\n\n" not in received:
        received += answer.read1(1000)
    answer.close()


def test_silence_is_broken_also_while_the_run_is_touched_all_the_time(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an agent does that says it lives: nothing to send, and yet something is heard."""
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.2)
    run = server.make_run()
    done = threading.Event()

    def touch() -> None:
        while not done.wait(0.01):
            server.platform.changes.notify(run.id)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        answer = server.request("GET", f"/api/v1/runs/{run.id}/events", stream=True)
        received = b""
        while b": still here\n\n: still here\n\n" not in received:
            received += answer.read1(1000)
        answer.close()
    finally:
        done.set()
        thread.join()


def test_an_unknown_run_has_no_events(server: LiveServer) -> None:
    assert server.request("GET", "/api/v1/runs/nobody/events").status == 404


@pytest.mark.parametrize("seen", [Seen(), Seen(3, 99, "a/b ü%.txt"), Seen(1, 0, "x")])
def test_an_id_says_what_was_seen(seen: Seen) -> None:
    assert parse_seen(seen.render()) == seen


@pytest.mark.parametrize("text", ["", "x", "1/x/y", "-1/2/x", "²/1/x"])
def test_a_strange_id_is_ignored(text: str) -> None:
    assert parse_seen(text) is None


def test_a_long_poll_ends_with_the_change_it_waits_for(server: LiveServer) -> None:
    run = server.make_run()
    path = f"/api/v1/runs/{run.id}?newer_than={run.version}&wait=30"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(server.request, "GET", path)
        _until(lambda: len(server.changes._watchers.get(run.id, ())) == 1)
        assert not waiting.done()
        server.append_log(run.id, DRIVER, b"news of another kind")
        changed = server.change(
            run.id, lambda now: msgspec.structs.replace(now, waiting="for a test")
        )
        answer = msgspec.json.decode(waiting.result(10).data, type=RunRecord)
    assert answer == changed


def test_a_long_poll_answers_at_once_if_there_is_news_or_when_its_time_is_up(
    server: LiveServer,
) -> None:
    run = server.make_run()
    began = time.monotonic()
    for query in (f"newer_than={run.version - 1}&wait=30", "wait=30", "newer_than=0"):
        assert server.request("GET", f"/api/v1/runs/{run.id}?{query}").status == 200
    path = f"/api/v1/runs/{run.id}?newer_than={run.version}&wait=0.05"
    assert msgspec.json.decode(server.request("GET", path).data)["version"] == run.version
    assert time.monotonic() - began < 5


def test_waiting_clients_take_no_threads_and_end_with_the_server(own_server: LiveServer) -> None:
    server = own_server
    run = server.make_run()
    server.http = urllib3.PoolManager(maxsize=200)
    path = f"/api/v1/runs/{run.id}?newer_than={run.version}&wait=60"
    many = 3 * STORE_THREADS
    with ThreadPoolExecutor(many) as threads:
        polls = [threads.submit(server.request, "GET", path) for _ in range(many)]
        streams = [follow(server, run) for _ in range(many)]
        for stream in streams:
            assert next(iter(stream)).name == "run"
        _until(lambda: len(server.changes._watchers.get(run.id, ())) == 2 * many)
        began = time.monotonic()
        assert server.request("GET", f"/api/v1/runs/{run.id}").status == 200
        assert time.monotonic() - began < 5
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 3
        assert {poll.result().status for poll in polls} == {200}
        # No `end`: the run is not over, and the client comes back.
        assert all("end" not in [event.name for event in stream] for stream in streams)


def test_a_client_that_hangs_up_is_forgotten(server: LiveServer) -> None:
    run = server.make_run()
    stream = follow(server, run)
    next(iter(stream))
    _until(lambda: len(server.changes._watchers.get(run.id, ())) == 1)
    stream.close()
    _until(lambda: run.id not in server.changes._watchers)


def _until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    deadline, tick = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        tick.wait(0.005)
