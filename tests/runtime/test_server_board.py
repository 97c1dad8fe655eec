"""The board that the server keeps: before there are threads, with them, and while it is away."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.testing.fake_server import FakeServer, wait_until
from runyard_runtime import board, supervision


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
        (tmp_path / "plan.json").unlink()  # nobody wants the job any more
    wait_until(lambda: "board" not in [one.name for one in threading.enumerate()])


def opened(server: FakeServer, folder: Path) -> board.ServerBoard:
    (folder / "plan.json").write_text(json.dumps(server.plan([])))
    return board.ServerBoard(str(folder), supervision.Wake())


def kinds(notes: list[dict[str, object]]) -> list[object]:
    return [note["kind"] for note in notes]


def test_who_posts_sees_the_note_and_who_comes_later_sees_all(
    server: FakeServer, tmp_path: Path
) -> None:
    one, two = opened(server, tmp_path), opened(server, tmp_path)
    one.post({"kind": "a"})
    assert kinds(one.read(0)[0]) == ["a"]
    two.post({"kind": "b"})
    assert kinds(two.read(0)[0]) == ["a", "b"]
    one.wait(1)
    assert one.read(1) == ([{"kind": "b"}], 2)
    assert kinds(opened(server, tmp_path).read(0)[0]) == ["a", "b"]


def test_without_threads_nothing_is_sent_that_could_block(
    server: FakeServer, tmp_path: Path
) -> None:
    one = opened(server, tmp_path)
    assert one.try_to_post({"kind": "failed"}) is False


def test_news_come_by_themselves_once_it_listens(server: FakeServer, tmp_path: Path) -> None:
    one, two = opened(server, tmp_path), opened(server, tmp_path)
    one.listen()
    two.post({"kind": "a"})
    wait_until(lambda: kinds(one.read(0)[0]) == ["a"])
    one.post({"kind": "b"})
    assert kinds(one.read(0)[0]) == ["a", "b"], "what it posted itself is there at once"


def test_a_server_that_is_away_keeps_nobody_from_looking(
    server: FakeServer, tmp_path: Path
) -> None:
    one = opened(server, tmp_path)
    one.listen()
    one.post({"kind": "a"})
    server.go_down()
    assert one.try_to_post({"kind": "failed"})
    assert kinds(one.read(0)[0]) == ["a"], "what it posted itself it knows, without an answer"
    server.come_back(same_port=True)
    wait_until(lambda: kinds(one.read(0)[0]) == ["a", "failed"])


def test_a_stop_ends_the_waiting_for_a_server_that_is_away(
    server: FakeServer, tmp_path: Path
) -> None:
    one = opened(server, tmp_path)
    server.go_down()
    threading.Timer(0.1, one._wake.stop).start()
    assert one.read(0) == ([], 0)
