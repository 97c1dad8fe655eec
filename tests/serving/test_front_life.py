"""The life of a front end: start, switches of revisions, many clients, the end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from runyard.testing.front_service import Service, read_all, resident_mb, wait_for


def revision(number: int, name: str) -> dict[str, object]:
    return {"revision": number, "sockets": [f"{name}.sock"]}


def test_a_front_end_is_small(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    assert service.front is not None
    assert resident_mb(service.front.pid) < 60


def test_a_front_end_imports_little() -> None:
    script = "import sys, runyard.serving.front; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {"starlette", "sqlalchemy", "uvicorn", "click", "urllib3", "jinja2", "yaml", "fsspec"}
    assert not heavy & set(found.stdout.split())


@pytest.mark.parametrize("loading", [0, 0.4], ids=["ready", "still loading"])
def test_switching_revisions_under_load_fails_no_request(service: Service, loading: float) -> None:
    service.worker("old")
    service.start(revisions=[revision(1, "old")])
    service.wait_ready()
    with service.load() as load:
        load.wait_more(100)
        service.worker("new", load=loading)
        service.write(revisions=[revision(2, "new")])
        wait_for(lambda: set(service.revisions()) == {"2"}, "the switch")
        service.kill("old")  # as the platform does once the status has no use of it
        load.wait_more(100)
        assert load.workers_seen["new"] >= 100 - 8
    assert not load.failures
    assert load.workers_seen.keys() == {"old", "new"}


def test_an_old_worker_that_dies_during_the_switch_loses_nothing(service: Service) -> None:
    service.worker("old")
    service.start(revisions=[revision(1, "old")])
    service.wait_ready()
    with service.load() as load:
        load.wait_more(100)
        service.write(revisions=[revision(2, "new")])
        wait_for(lambda: "2" in service.revisions())
        service.kill("old")
        service.worker("new", load=0.2)
        wait_for(lambda: set(service.revisions()) == {"2"}, "the switch")
        load.wait_more(100)
    assert not load.failures


def test_an_old_revision_is_in_use_until_it_has_answered(service: Service) -> None:
    service.worker("old")
    service.worker("new")
    service.start(revisions=[revision(1, "old")])
    service.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(service.score, b'{"sleep": 0.6}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        service.write(revisions=[revision(2, "new")])
        wait_for(lambda: service.score().headers["X-Worker"] == "new")
        assert (
            service.revisions()["1"] | {"listed": False, "in_flight": 1} == service.revisions()["1"]
        )
        assert slow.result().headers["X-Worker"] == "old"
    wait_for(lambda: "1" not in service.revisions())


def test_without_any_revision_nothing_is_served(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(service.score, b'{"sleep": 0.4}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        service.write(revisions=[])
        wait_for(lambda: service.score().status == 503)
        assert slow.result().status == 200
    wait_for(lambda: not service.revisions())


def test_workers_come_and_go_within_a_revision(service: Service) -> None:
    service.worker("w0")
    service.worker("w1")
    service.start(revisions=[{"revision": 1, "sockets": ["w0.sock"]}])
    service.wait_ready(1)
    with service.load() as load:
        load.wait_more(50)
        service.write(revisions=[{"revision": 1, "sockets": ["w0.sock", "w1.sock"]}])
        service.wait_ready(2)
        service.write(revisions=[{"revision": 1, "sockets": ["w1.sock"]}])
        service.wait_ready(1)
        service.kill("w0")
        load.wait_more(50)
    assert not load.failures


def test_of_several_revisions_the_newest_that_is_ready_answers(service: Service) -> None:
    service.worker("a")
    service.worker("b")
    service.start(revisions=[revision(2, "b"), revision(1, "a")])
    service.wait_ready(2)
    assert {service.score().headers["X-Worker"] for _ in range(10)} == {"b"}
    service.kill("b")
    wait_for(lambda: service.status()["ready_workers"] == 1)
    assert {service.score().headers["X-Worker"] for _ in range(10)} == {"a"}


def test_a_file_that_makes_no_sense_changes_nothing(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    (service.folder / "front.json").write_text('{"name": ')
    wait_for(lambda: "is not taken over" in service.log)
    (service.folder / "front.json").unlink()
    assert service.score().status == 200
    assert service.front is not None
    service.write(name="renamed")
    service.front.send_signal(signal.SIGHUP)
    wait_for(lambda: service.status()["name"] == "renamed")


def test_two_thousand_idle_clients_do_no_harm(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    assert service.front is not None
    with ExitStack() as stack:
        idle = [stack.enter_context(service.raw()) for _ in range(2000)]
        wait_for(lambda: service.status()["connections"] == 2001)
        assert service.score().status == 200
        for one in idle[::200]:
            one.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n[1]")
            assert one.recv(4096).endswith(b"[1]")
        assert resident_mb(service.front.pid) < 60
    wait_for(lambda: service.status()["connections"] == 1)


def test_above_the_limit_of_connections_the_next_is_told_so(service: Service) -> None:
    service.worker()
    service.start(limits={"max_connections": 3})
    service.wait_ready()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(service.raw())
        wait_for(lambda: service.status()["connections"] == 3)
        stack.enter_context(service.raw())
        with service.raw() as late:
            assert late.recv(4096).startswith(b"HTTP/1.1 503 ")


def test_a_stop_finishes_what_was_asked(service: Service) -> None:
    service.worker(max_batch=1)
    service.start()
    service.wait_ready()
    assert service.front is not None
    request = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
    body = b'{"sleep": 0.4}'
    with service.raw() as busy, service.raw() as waiting, service.raw() as idle:
        for one in (busy, waiting):
            one.sendall(request % (len(body), body))
        wait_for(lambda: service.revisions()["1"]["waiting"] == 1)
        service.front.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", service.port))
        for one in (busy, waiting):
            answer = read_all(one)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"Connection: close" in answer
    assert service.front.wait(30) == 0


def test_a_port_that_is_taken_is_said_in_words(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        service.write(port=port)
        ended = subprocess.run(
            [sys.executable, "-m", "runyard.serving.front", str(service.folder)],
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "fix:" in ended.stderr


def test_what_fails_is_logged_without_its_query(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    assert service.score().status == 200
    service.ask("POST", "/score?password=1", json.dumps({"status": 503}).encode())
    wait_for(lambda: "POST /score" in service.log)
    assert re.search(r"^POST /score 503 0\.\d+$", service.log, re.MULTILINE)
    assert service.log.count("POST /score") == 1


def test_a_stop_closes_after_the_answer_that_is_due(service: Service) -> None:
    """Clients send what they pipelined behind it to whoever comes next."""
    service.worker()
    service.start()
    service.wait_ready()
    assert service.front is not None
    request = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
    body = b'{"sleep": 0.4}'
    with service.raw() as one:
        one.sendall(request % (len(body), body) + request % (3, b"[1]"))
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        service.front.send_signal(signal.SIGTERM)
        answer = read_all(one)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in answer
    assert service.front.wait(30) == 0


def test_descriptors_do_not_pile_up(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    assert service.front is not None
    folder = f"/proc/{service.front.pid}/fd"
    before = len(os.listdir(folder))
    for _ in range(3):
        service.kill("w0")
        service.worker()
        service.wait_ready()
        service.score()
    wait_for(lambda: len(os.listdir(folder)) <= before, "the count going back")
