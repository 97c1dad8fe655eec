"""What answers at an address may be no Ray, an old one, or one that refuses: in words."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.errors import Denied, EngineFailed, Invalid, Unavailable, Unsupported
from runyard.engines.base import JobId, JobPhase, NodeGroup, NodeResources
from runyard.engines.options import convert_options
from runyard.engines.ray import RayEngine, RayOptions, plan_need, quoted_program
from runyard.engines.ray_answers import has_orphans, last_state, plan_sweep, read_status
from runyard.engines.ray_api import RayApi
from runyard.engines.ray_driver import STATE
from runyard.testing.fake_server import wait_until

HTML = "<html><body>It works!</body></html>"
Answer = tuple[int, str, Mapping[str, str]]
Web = Callable[[Mapping[str, Answer]], str]


@contextmanager
def web_server(pages: Mapping[str, Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that answers so by path; "" stands for all others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text, headers = pages.get(self.path) or pages.get("") or (404, "nothing", {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    with ExitStack() as stack:
        yield lambda pages: stack.enter_context(web_server(pages))


def version(text: str) -> Answer:
    return 200, json.dumps({"version": "4", "ray_version": text}), {}


def test_a_ray_that_takes_jobs_passes(web: Web) -> None:
    RayApi(web({"/api/version": version("2.60.0"), "/api/jobs/": (200, "[]", {})}), "").check()


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ({"": (200, HTML, {})}, "no JSON"),
        ({"": (200, "{}", {})}, "does not say which version of Ray"),
        ({"": (200, "[]", {})}, "does not say which version of Ray"),
        ({}, "nothing for GET /api/version"),
        ({"": (302, "", {"Location": "https://sso.example/login"})}, "sso.example/login"),
        ({"/api/version": version("2.9.0"), "": (200, "{}", {})}, "no list of jobs"),
        ({"/api/version": version("2.9.0")}, "nothing for GET /api/jobs/"),
        ({"": (400, "Client sent an HTTP request to an HTTPS server.", {})}, "https://"),
    ],
)
def test_what_is_no_ray_is_not_taken_for_one(
    web: Web, pages: Mapping[str, Answer], why: str
) -> None:
    with pytest.raises(EngineFailed, match="not Ray's Jobs API") as told:
        RayApi(web(pages), "").check()
    assert why in told.value.why
    assert "8265" in told.value.fix


def test_a_ray_from_before_the_jobs_api_is_too_old(web: Web) -> None:
    with pytest.raises(Unsupported, match="too old") as told:
        RayApi(web({"/api/version": version("1.13.0")}), "").check()
    assert "Ray 1.13.0" in told.value.why


@pytest.mark.parametrize("status", [401, 403])
def test_who_gave_no_token_is_told_so_and_who_gave_a_wrong_one_too(web: Web, status: int) -> None:
    address = web({"": (status, "Unauthorized", {})})
    with pytest.raises(Denied, match="asks for a token, and none was given"):
        RayApi(address, "").check()
    with pytest.raises(Denied, match="refuses the token") as told:
        RayApi(address, "wrong").check()
    assert "ray get-auth-token" in told.value.fix
    assert "wrong" not in str(told.value)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_before_a_head_that_is_away_is_no_refusal(web: Web, status: int) -> None:
    with pytest.raises(Unavailable, match="No Ray answers"):
        RayApi(web({"": (status, "no upstream", {})}), "").jobs()


@pytest.mark.parametrize(
    ("text", "error", "what"),
    [
        ("Traceback: no such thing", EngineFailed, "failed to do POST /api/jobs/"),
        ("No available agent to submit job, please try again later.", Unavailable, "not work now"),
    ],
)
def test_what_fails_in_ray_is_told_in_its_words(
    web: Web, text: str, error: type[Exception], what: str
) -> None:
    api = RayApi(web({"": (500, text, {})}), "")
    with pytest.raises(error, match=what) as told:
        api.submit({})
    assert text in str(told.value)


def test_a_ray_that_cannot_tell_now_refuses_nothing(web: Web) -> None:
    with pytest.raises(Unavailable, match="does not work now") as told:
        RayApi(web({"": (500, "Traceback: GcsServer is gone", {})}), "").jobs()
    assert "GcsServer is gone" in told.value.why


def test_nodes_that_are_no_list_are_no_bug(web: Web) -> None:
    with pytest.raises(EngineFailed, match="not Ray's Jobs API"):
        RayApi(web({"": (200, '{"data": null}', {})}), "").living()


def test_tls_where_there_is_none_is_told(web: Web) -> None:
    address = web({"": (200, HTML, {})}).replace("http://", "https://")
    with pytest.raises(Unavailable, match="no trusted connection") as told:
        RayApi(address, "").check()
    assert "write http://" in told.value.fix


def test_a_certificate_that_nobody_signed_is_told(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    files = ("-keyout", "key", "-out", "cert", "-days", "2", "-subj", "/CN=127.0.0.1")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with web_server({"": (200, HTML, {})}, tls) as address:
        with pytest.raises(Unavailable, match="no trusted connection") as told:
            RayApi(address, "").check()
        assert "certificate" in told.value.why
        with pytest.raises((Unavailable, EngineFailed), match=r"No Ray answers|not Ray's"):
            RayApi(address.replace("https://", "http://"), "").check()


def test_an_address_nobody_answers_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        api = RayApi(f"127.0.0.1:{taken.getsockname()[1]}", "")
        with pytest.raises(Unavailable, match="No Ray answers"):
            api.check()


@pytest.mark.parametrize("address", ["", "ray head", "ftp://head:8265", "http://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match="not an address"):
        RayApi(address, "")


def ray_pages(
    seconds: float, nodes: Sequence[Mapping[str, float]], **job: Any
) -> dict[str, Answer]:
    """What a Ray answers that has a job since so long, and those nodes."""
    need = json.dumps({"nodes": 1, "cores": 2})
    told = {"runyard_need": need, "runyard_since": str(time.time() - seconds)}
    known = {"submission_id": "runyard-me-job", "status": "PENDING", "metadata": told, **job}
    found = [
        {"state": "ALIVE", "node_id": str(number), "resources_total": node}
        for number, node in enumerate(nodes)
    ]
    answer = {"data": {"result": {"result": found}}}
    return {
        "/api/jobs/": (200, json.dumps([known]), {}),
        "/api/v0/nodes?limit=10000&detail=false": (200, json.dumps(answer), {}),
    }


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., RayEngine]:
    (tmp_path / "ray-owner.json").write_text('"me"')
    return lambda **options: RayEngine(tmp_path, options, {})


JOB = JobId("job")
BUSY, SMALL = {"CPU": 2.0}, {"CPU": 1.0}


def test_the_clock_of_rays_head_does_not_matter(web: Web, engine: Callable[..., RayEngine]) -> None:
    of_head = (time.time() - 86400) * 1000
    address = web(ray_pages(0, [BUSY], start_time=of_head))
    status = engine(address=address).poll([JOB])[JOB]
    assert (status.phase, status.detail) == (JobPhase.PENDING, "Ray starts it")


def test_a_job_of_which_ray_lost_what_it_was_told_is_heard_of_all_the_same(
    web: Web, engine: Callable[..., RayEngine]
) -> None:
    address = web(ray_pages(0, [BUSY], metadata=None, start_time=0))
    status = engine(address=address).poll([JOB])[JOB]
    assert status.phase is JobPhase.PENDING


def test_a_job_waits_for_its_turn_however_long_that_takes(
    web: Web, engine: Callable[..., RayEngine]
) -> None:
    ray = engine(address=web(ray_pages(86400, [BUSY])), place_seconds="0.01")
    for _ in range(2):
        status = ray.poll([JOB])[JOB]
        assert status.phase is JobPhase.PENDING
        assert status.detail.startswith("waits for free nodes: needs 1 node with 2 cores; ")


def test_a_job_waits_only_so_long_for_nodes_that_the_cluster_lacks(
    web: Web, engine: Callable[..., RayEngine]
) -> None:
    pages = ray_pages(86400, [])
    ray = engine(address=web(pages), place_seconds="600")
    status = ray.poll([JOB])[JOB]
    assert status.phase is JobPhase.PENDING, "the time before it was seen to lack some is no matter"
    assert "nodes that the cluster lacks" in status.detail
    assert status.detail.endswith("the cluster has no nodes now.")
    ray = engine(address=web(pages), place_seconds="0.01")
    wait_until(lambda: ray.poll([JOB])[JOB].phase is JobPhase.EXITED)
    assert ray.poll([JOB])[JOB].exit_code is None
    pages |= ray_pages(86400, [BUSY])
    assert ray.poll([JOB])[JOB].phase is JobPhase.PENDING, "it came back"
    pages |= ray_pages(86400, [SMALL])
    assert ray.poll([JOB])[JOB].phase is JobPhase.PENDING, "the time counts from now"


def test_a_cluster_without_nodes_refuses_nothing(
    web: Web, engine: Callable[..., RayEngine]
) -> None:
    pages = {**ray_pages(0, []), "/api/version": version("2.60.0")}
    ray = engine(address=web(pages))
    group = NodeGroup(key="trial", plan=b"{}", resources=NodeResources(cores=2))
    ray.check(group)
    pages |= ray_pages(0, [SMALL])
    with pytest.raises(Unsupported, match="cannot hold this"):
        ray.check(group)


def test_a_job_that_had_not_begun_when_ray_was_restarted_is_submitted_anew(
    web: Web, engine: Callable[..., RayEngine]
) -> None:
    nothing: dict[str, Answer] = {"/api/jobs/": (200, "[]", {})}
    pages = ray_pages(0, [BUSY])
    ray = engine(address=web(pages))
    assert ray.poll([JOB])[JOB].phase is JobPhase.PENDING
    before = dict(pages)
    pages |= nothing
    status = ray.poll([JOB])[JOB]
    assert (status.phase, status.node_lost) == (JobPhase.GONE, False), "it is started again"
    pages |= before
    assert ray.poll([JOB])[JOB].phase is JobPhase.PENDING
    pages |= ray_pages(0, [BUSY], status="RUNNING", metadata={STATE: '{"phase": "active"}'})
    assert ray.poll([JOB])[JOB].phase is JobPhase.ACTIVE
    pages |= nothing
    status = ray.poll([JOB])[JOB]
    assert (status.phase, status.node_lost) == (JobPhase.GONE, True), "its ranks are lost"


@pytest.mark.parametrize(
    ("status", "kind", "state", "expected"),
    [
        ("SUCCEEDED", None, {"phase": "exited"}, False),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", {"phase": "active"}, True),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", {"phase": "lost", "is_there": False}, False),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", {"phase": "lost", "is_there": True}, True),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", {"phase": "killed"}, False),
        ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", None, False),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_DIED", {"phase": "active"}, True),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_DIED", {"phase": "waits"}, False),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_DIED", None, True),
        ("FAILED", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", None, False),
        ("STOPPED", None, None, False),
    ],
)
def test_a_driver_that_did_not_say_the_end_left_agents(
    status: str, kind: str | None, state: object, expected: bool
) -> None:
    told = {STATE: json.dumps(state)} if state else {}
    assert has_orphans({"status": status, "error_type": kind, "metadata": told}) is expected


def test_a_driver_that_died_soon_is_known_by_what_it_printed() -> None:
    text = "Job entrypoint command failed with exit code -9, last logs:\nStarting\nrunyard_state "
    info = {"status": "FAILED", "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR", "metadata": {}}
    info["message"] = text + json.dumps({"phase": "active", "hosts": ["a"]}) + "\n"
    assert has_orphans(info)
    status = read_status(info, last_state(info))
    assert (status.phase, status.node_lost, status.hosts) == (JobPhase.GONE, True, ("a",))


def test_what_ray_gave_up_before_it_had_a_node_is_started_again() -> None:
    for kind in ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "JOB_SUPERVISOR_ACTOR_START_FAILURE"):
        info = {"status": "FAILED", "error_type": kind, "message": "failed to start; it died"}
        status = read_status(info, None)
        assert (status.phase, status.node_lost) == (JobPhase.GONE, False)


def test_what_nobody_needs_is_swept_from_rays_list() -> None:
    known: dict[str, Any] = {"metadata": {"run": "1"}}
    listed = {
        name: known
        for name in ("mine", "mine.kill", "past", "past.kill", "just", "old.kill", "new.kill")
    }
    listed["revived"] = {"metadata": None}
    listed |= {"given up": known, "given up.kill": known}
    over = dict.fromkeys(listed, 0.0) | {"just": 995.0, "new.kill": 999.0}
    del over["given up"]  # Ray may still begin it
    forgotten = {"past": 100.0, "just": 996.0, "given up": 100.0}
    swept = plan_sweep(listed, over, forgotten, 1000.0)
    assert sorted(swept) == ["old.kill", "past", "past.kill", "revived"]


def test_of_jobs_that_are_over_ray_keeps_the_newest_only() -> None:
    over = {f"job-{number}": float(number) for number in range(100)}
    listed = {name: {"metadata": {"run": "1"}} for name in over}
    swept = plan_sweep(listed, over, over, 200.0)
    assert sorted(set(over) - set(swept)) == [f"job-{number}" for number in range(80, 100)]


@pytest.mark.parametrize("path", ["python", "/opt/my tools/python", "~/my env/bin/python"])
def test_the_program_on_the_cluster_may_have_blanks_in_its_path(path: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        ["sh", "-c", f"printf %s {quoted_program(path)}"],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == path.replace("~", str(tmp_path))


def test_nodes_are_told_where_environments_are_made(tmp_path: Path) -> None:
    options = {"address": "h", "environments": "/shared/made", "url": "http://yard:1"}
    engine = RayEngine(tmp_path, options, {})
    plan = {"url": "http://127.0.0.1:1", "agent_token": "t", "run_id": "r"}
    group = NodeGroup(key="k", plan=json.dumps(plan).encode())
    asked: Any = engine._request(group, plan_need(1, None))
    told = json.loads(asked["runtime_env"]["env_vars"]["RUNYARD_RAY_SPEC"])["environment"]
    assert told["RUNYARD_NODE_ENVIRONMENTS"] == "/shared/made"
    assert told["RUNYARD_NODE_URL"] == "http://yard:1"


@pytest.mark.parametrize(
    ("options", "finds"),
    [
        ({"address": "http://head:8265"}, False),
        ({"address": "http://127.0.0.1:8265"}, True),
        ({"address": "localhost:8265"}, True),
        ({"address": "http://head:8265", "url": "http://yard:1"}, True),
    ],
)
def test_nodes_find_the_server_if_they_are_here_or_told_where(
    tmp_path: Path, options: dict[str, str], finds: bool
) -> None:
    assert RayEngine(tmp_path, options, {}).capabilities.finds_server is finds


def test_options_are_read_as_they_are_meant() -> None:
    given = {"address": "h", "autoscale": "True", "place_seconds": "12", "url": ""}
    options = convert_options("Ray", RayOptions, given)
    assert (options.autoscale, options.place_seconds, options.python) == (True, 12.0, "python")
    assert not convert_options("Ray", RayOptions, {"autoscale": "no"}).autoscale


@pytest.mark.parametrize(
    ("name", "value"),
    [("adress", "h"), ("autoscale", "perhaps"), ("place_seconds", "long"), ("server_seconds", "0")],
)
def test_options_that_make_no_sense_are_named(name: str, value: str) -> None:
    with pytest.raises(Invalid, match=f"option '{name}'"):
        convert_options("Ray", RayOptions, {"address": "http://h:8265", name: value})
