"""Workers that are slow, busy, late, dying or broken: nobody loses a request."""

import base64
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from runyard.testing.front_service import Service, wait_for

TWO = [{"revision": 1, "sockets": ["w0.sock", "w1.sock"]}]


def test_requests_that_wait_go_as_one_batch(service: Service) -> None:
    service.worker(max_batch=16)
    service.start()
    service.wait_ready()
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(service.score, b'{"sleep": 0.3}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        others = [pool.submit(service.score, b'{"batch": true}') for _ in range(10)]
        wait_for(lambda: service.revisions()["1"]["waiting"] == 10)
        assert first.result().status == 200
        assert [one.result().body for one in others] == [b"10"] * 10


def test_a_request_waits_for_company_when_told_to(service: Service) -> None:
    service.worker(max_batch=3)
    service.start(limits={"max_batch_delay_ms": 20_000})
    service.wait_ready()
    with ThreadPoolExecutor(3) as pool:
        all_three = [pool.submit(service.score, b'{"batch": true}') for _ in range(3)]
        assert [one.result().body for one in all_three] == [b"3"] * 3
    service.write(limits={"max_batch_delay_ms": 5})
    wait_for(lambda: service.log.count("taken over") == 1)
    assert service.score(b'{"batch": true}').body == b"1"


def test_two_workers_share_the_work(service: Service) -> None:
    service.worker("w0")
    service.worker("w1")
    service.start(revisions=TWO)
    service.wait_ready(2)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(service.score, b'{"sleep": 0.3}') for _ in range(2)]
        assert {one.result().headers["X-Worker"] for one in both} == {"w0", "w1"}


def test_a_full_queue_says_come_back_later(service: Service) -> None:
    service.worker()
    service.start(limits={"queue": 2})
    service.wait_ready()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(service.score, b'{"sleep": 0.5}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        waiting = [pool.submit(service.score) for _ in range(2)]
        wait_for(lambda: service.revisions()["1"]["waiting"] == 2)
        refused = service.score()
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert {one.result().status for one in [first, *waiting]} == {200}


def test_before_the_model_is_loaded_the_answer_is_not_yet(service: Service) -> None:
    service.start()
    for answer in (service.score(), service.ask("GET", "/"), service.ask("GET", "/healthz")):
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["fix"]
    assert service.ask("GET", "/v2/health/live").status == 200
    service.worker()
    service.wait_ready()
    assert service.score().status == 200


def test_a_model_that_takes_too_long_is_given_up(service: Service) -> None:
    service.worker()
    service.start(limits={"timeout_seconds": 0.3})
    service.wait_ready()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(service.score, b'{"sleep": 1.5}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        behind = pool.submit(service.score)
        assert first.result().status == 504
        assert behind.result().status == 504
    wait_for(lambda: service.revisions()["1"]["in_flight"] == 0)
    assert service.score(b"[2]").body == b"[2]"


def test_killing_a_worker_under_load_fails_no_request(service: Service) -> None:
    service.worker("w0")
    service.worker("w1")
    service.start(revisions=TWO)
    service.wait_ready(2)
    with service.load() as load:
        load.wait_more(200)
        for name in ("w0", "w1"):
            service.kill(name)
            load.wait_more(200)
            service.worker(name)
            service.wait_ready(2)
            load.wait_more(50)
    assert not load.failures
    assert "is gone" in service.log


def test_with_a_single_worker_requests_wait_for_its_successor(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    with service.load() as load:
        load.wait_more(100)
        service.kill("w0")
        wait_for(lambda: service.status()["ready_workers"] == 0)
        wait_for(lambda: service.revisions()["1"]["waiting"] == 8)
        service.worker(load=0.3)
        load.wait_more(100)
    assert not load.failures


def test_a_request_that_kills_workers_does_not_take_others_with_it(service: Service) -> None:
    service.worker("w0")
    service.worker("w1")
    service.start(revisions=TWO)
    service.wait_ready(2)
    ended = threading.Event()

    def bring_back() -> None:
        while not ended.wait(0.02):
            for name, process in list(service.workers.items()):
                if process.poll() is not None:
                    service.worker(name)

    thread = threading.Thread(target=bring_back)
    thread.start()
    try:
        with ThreadPoolExecutor(12) as pool:
            busy = [pool.submit(service.score, b'{"sleep": 0.3}') for _ in range(2)]
            wait_for(lambda: service.revisions()["1"]["in_flight"] == 2)
            poison = pool.submit(service.score, b'{"die": true}')
            others = [pool.submit(service.score, b"[%d]" % index) for index in range(9)]
            assert poison.result().status == 502
            assert poison.result().json()["code"] == "engine_failed"
            assert [one.result().status for one in busy + others] == [200] * 11
    finally:
        ended.set()
        thread.join()


def test_what_a_dead_worker_had_is_given_to_another_once(service: Service) -> None:
    mark = service.folder / "died"
    service.worker("w0", once=mark)
    service.worker("w1", once=mark)
    service.start(revisions=TWO)
    service.wait_ready(2)
    assert service.score(b'{"die": true}').status == 200
    figures = service.ask("GET", "/metrics").body.decode()
    assert 'runyard_given_again_total{service="demo"} 1' in figures
    assert 'runyard_workers_lost_total{service="demo"} 1' in figures


def test_something_else_at_the_socket_is_left_alone(service: Service) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(service.folder / "w1.sock"))
        stranger.listen()
        service.worker("w0")
        service.start(revisions=TWO)
        service.wait_ready(1)
        connection, _ = stranger.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            wait_for(lambda: "does not speak as one" in service.log)
        assert service.score().status == 200


def test_a_script_that_looks_at_headers_gets_them_always(service: Service) -> None:
    service.worker(headers="yes", methods="POST,GET,OPTIONS")
    service.start()
    service.wait_ready()
    head = json.loads(base64.b64decode(service.score(b"[1]", **{"X-Own": "1"}).headers["X-Head"]))
    assert head["headers"]["x-own"] == "1"
    answer = service.ask("GET", "/score?a=b")
    assert json.loads(base64.b64decode(answer.headers["X-Head"]))["query"] == "a=b"
    assert service.ask("DELETE", "/score").headers["Allow"] == "POST, GET, OPTIONS"


def test_large_bodies_reach_the_worker_and_come_back(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    body = bytes(range(256)) * (20 << 12)  # 20 MiB
    with ThreadPoolExecutor(3) as pool:
        for answer in [pool.submit(service.score, body) for _ in range(3)]:
            assert answer.result().body == body
