"""What a job writes arrives once and whole, whatever happens to server and agent."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobPhase
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    agent_pid,
    ended,
    job_group,
    says,
)
from runyard.testing.fake_server import AGENT_TOKEN, TOKEN, FakeServer, wait_until
from runyard_runtime import wire
from runyard_runtime.outputs import Outputs
from runyard_runtime.server_link import Abandoned, Refused, ServerLink
from runyard_runtime.shipping import Shipper

WRITER = """
import json, os, sys, time
events = os.open(os.path.join(os.environ["RUNYARD_JOB_DIR"], "events", "0.jsonl"),
                 os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for i in range(%d):
    print("line", i)
    os.write(events, (json.dumps({"e": "metric", "n": "m", "v": i}) + "\\n").encode())
    open("logs/user.txt", "a").write("user %%d\\n" %% i)
    time.sleep(0.002)
open("outputs/last", "w").write("end")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "address.json") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(tmp_path / "jobs")
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def assert_whole(server: FakeServer, count: int) -> None:
    """What WRITER wrote is there once."""
    assert server.log(DRIVER_LOG).splitlines() == [f"line {i}" for i in range(count)]
    events = server.stream("events", "0.jsonl").decode().splitlines()
    assert [json.loads(line)["v"] for line in events] == list(range(count))
    assert server.log("logs/user.txt").splitlines() == [f"user {i}" for i in range(count)]
    assert server.file("outputs/last") == b"end"


def test_a_server_that_goes_and_comes_back_elsewhere_misses_nothing(
    engine: LocalEngine, server: FakeServer
) -> None:
    job = engine.start(job_group(server, WRITER % 400))
    for _ in range(3):
        seen = len(server.log(DRIVER_LOG))
        wait_until(lambda seen=seen: len(server.log(DRIVER_LOG)) > seen)  # type: ignore[misc]
        server.fail_answers = 2
        wait_until(lambda: server.fail_answers == 0)
        server.go_down()
        server.come_back()
    ended(engine, job)
    assert_whole(server, 400)


def test_a_job_that_ends_while_the_server_is_away_waits_for_it(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    group = job_group(server, "", arguments=["-c", WRITER % 20], files={})
    server.go_down()
    job = engine.start(group)
    wait_until((tmp_path / "jobs" / "job" / "agent-0" / "rank-0.exit").exists)
    assert engine.poll([job])[job].phase is JobPhase.ACTIVE
    server.come_back()
    ended(engine, job)
    assert_whole(server, 20)


@pytest.mark.parametrize("seed", range(3))
def test_agents_killed_at_any_moment_lose_and_double_nothing(
    engine: LocalEngine, server: FakeServer, tmp_path: Path, seed: int
) -> None:
    moments = random.Random(seed)
    group = job_group(server, WRITER % 300)
    job = engine.start(group)
    deadline = time.monotonic() + 60
    while engine.poll([job])[job].phase is not JobPhase.EXITED:
        assert time.monotonic() < deadline
        threading.Event().wait(moments.choice([0.001, 0.01, 0.03, 0.1, 0.3]))
        with contextlib.suppress(OSError, ValueError):
            os.kill(agent_pid(tmp_path / "jobs" / "job"), signal.SIGKILL)
        # Twice as often as not the agent gets no further than its first steps.
        wait_until(lambda: engine.poll([job])[job].phase in (JobPhase.GONE, JobPhase.EXITED))
        assert engine.start(group) == job
    assert engine.poll([job])[job].exit_code == 0
    assert_whole(server, 300)


def test_an_outage_does_not_delay_a_stop(engine: LocalEngine, server: FakeServer) -> None:
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    server.go_down()
    engine.stop(job)
    folder = Path(engine._folder) / job / "agent-0"
    wait_until((folder / "rank-0.exit").exists, timeout=5)
    server.come_back()
    assert ended(engine, job).exit_code == -signal.SIGTERM


def test_two_hundred_megabytes_do_not_fill_the_agents_memory(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    code = "import sys\nfor _ in range(200): sys.stdout.write('x' * 1048575 + '\\n')\nprint('end')"
    peak = 0
    job = engine.start(job_group(server, code))
    while not server.finished():
        with contextlib.suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{agent_pid(tmp_path / 'jobs' / 'job')}/status").read_text()
            line = next(one for one in status.splitlines() if one.startswith("VmHWM"))
            peak = max(peak, int(line.split()[1]))
        threading.Event().wait(0.02)
    ended(engine, job)
    assert len(server.stream("log", DRIVER_LOG)) == 200 * 1048576 + 4
    assert 0 < peak < 60_000  # kB


def test_an_event_longer_than_a_chunk_stays_whole(engine: LocalEngine, server: FakeServer) -> None:
    code = """
import os
with open(os.path.join(os.environ["RUNYARD_JOB_DIR"], "events", "0.jsonl"), "w") as events:
    events.write('{"e":"metric","n":"long","v":"' + "x" * (9 << 20) + '"}\\n{"e":"torn"')
"""
    ended(engine, engine.start(job_group(server, code)))
    lines = server.stream("events", "0.jsonl").split(b"\n")
    assert len(json.loads(lines[0])["v"]) == 9 << 20
    assert lines[1] == b'{"e":"torn"'
    posts = [path for verb, path in server.requests if verb == "POST" and "/events/" in path]
    assert len(posts) <= 2


def test_an_event_that_is_too_long_does_not_cost_the_later_ones(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = """
import os
with open(os.path.join(os.environ["RUNYARD_JOB_DIR"], "events", "0.jsonl"), "w") as events:
    events.write('{"e":"metric","n":"long","v":"' + "x" * (70 << 20) + '"}\\n')
    events.write('{"e":"metric","n":"later","v":1}\\n')
"""
    ended(engine, engine.start(job_group(server, code)))
    lines = server.stream("events", "0.jsonl").split(b"\n")
    assert lines[1] == b'{"e":"metric","n":"later","v":1}'
    account = server.log(wire.CONTROL_LOG)
    assert account.count("a line of 0.jsonl is not kept: it is longer than 33554432 bytes") == 1


def test_a_log_that_is_rotated_goes_on_under_a_new_name(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = f"""
import os, time
open("logs/a.txt", "w").write("the first, long text\\n")
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
os.rename("logs/a.txt", "logs/a.txt.1")
open("logs/a.txt", "w").write("second\\n")
"""
    job = engine.start(job_group(server, code))
    wait_until(lambda: server.log("logs/a.txt"))
    gate.touch()
    ended(engine, job)
    assert server.log("logs/a.txt") == "the first, long text\n"
    assert server.log("logs/a.txt.1") == "the first, long text\n"
    assert server.log("logs/a.txt~2") == "second\n"


def test_a_second_attempt_goes_on_where_the_logs_of_the_first_end(
    engine: LocalEngine, server: FakeServer
) -> None:
    ended(engine, engine.start(job_group(server, WRITER % 3, key="one")))
    ended(engine, engine.start(job_group(server, WRITER % 2, key="two", attempt=2)))
    lines = ["line 0", "line 1", "line 2", "line 0", "line 1"]
    assert server.log(DRIVER_LOG).splitlines() == lines
    assert server.stream("events", "0.jsonl").count(b"\n") == 3
    assert server.stream("events", "attempt-2/0.jsonl").count(b"\n") == 2


def test_outputs_are_kept_while_the_job_runs(engine: LocalEngine, server: FakeServer) -> None:
    code = "open('outputs/checkpoint', 'w').write('early')\n" + FOREVER
    job = engine.start(job_group(server, code, checkpoint_seconds=0.1))
    wait_until(lambda: "outputs/checkpoint" in server.files)
    assert server.file("outputs/checkpoint") == b"early"
    engine.stop(job)
    ended(engine, job)
    puts = [path for verb, path in server.requests if verb == "PUT"]
    assert len(puts) == 1


def test_a_file_is_kept_early_once_nobody_writes_it(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    done, begun = tmp_path / "outputs" / "done", tmp_path / "outputs" / "begun"
    outputs = Outputs("run", str(tmp_path), pytest.fail)
    for path in (done, begun):
        path.write_text("whole")
    os.utime(done, (time.time() - 10, time.time() - 10))
    assert outputs.pending(only_stable=True) == [("outputs/done", str(done))]
    done.write_text("the next checkpoint")
    os.utime(done, (time.time() - 9, time.time() - 9))
    begun.write_text("longer than before")
    # Other than at the last look, both: only one of them is being written.
    assert [name for name, _ in outputs.pending(only_stable=True)] == ["outputs/done"]
    names = [name for name, _ in outputs.pending(only_stable=True)]
    assert names == ["outputs/begun", "outputs/done"]


def test_odd_outputs_are_kept_or_said(engine: LocalEngine, server: FakeServer) -> None:
    code = """
import os
os.chdir("outputs")
for name in ["with space", "new\\nline", "-dash", "ünï–čode", "%41", "a?b#c"]:
    open(name, "w").write(name)
os.makedirs("sub/deep")
open("sub/deep/x", "w").write("deep")
open("empty", "w").close()
os.symlink("with space", "inside")
os.symlink("/etc/hostname", "outside")
os.symlink("sub", "linked")
os.symlink(".", "loop")
os.symlink("nowhere", "dangling")
os.mkfifo("pipe")
open(b"bad\\xff", "w").write("not utf-8")
"""
    ended(engine, engine.start(job_group(server, code)))
    for name in ["with space", "new\nline", "-dash", "ünï–čode", "%41", "a?b#c"]:
        assert server.file("outputs/" + name).decode() == name
    assert server.file("outputs/inside") == b"with space"
    assert server.file("outputs/empty") == b""
    assert server.file("outputs/sub/deep/x") == b"deep"
    assert server.file("outputs/bad\ufffd") == b"not utf-8"
    account = server.log(wire.CONTROL_LOG)
    for name in ("outside", "dangling", "pipe"):
        assert f"outputs/{name}" not in server.files
        assert f"'outputs/{name}' is not kept" in account


def test_an_attempt_that_was_superseded_sends_nothing_more_and_ends(
    engine: LocalEngine, server: FakeServer
) -> None:
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    server.refuse = ("/streams/", 410)
    server.stop_ordered = True  # what its report is answered with
    assert ended(engine, job).exit_code == -signal.SIGTERM
    refused = [path for verb, path in server.requests if verb == "POST" and "/streams/" in path]
    assert len(refused) < 20, "it is not tried again and again"


@pytest.mark.parametrize(("refusal", "is_given_up"), [(401, False), (403, False), (404, True)])
def test_logs_go_on_when_a_server_that_took_no_token_is_mended(
    server: FakeServer, tmp_path: Path, refusal: int, is_given_up: bool
) -> None:
    (tmp_path / "azureml-logs").mkdir()
    (tmp_path / "azureml-logs" / "a.txt").write_text("kept\n")
    notes: list[str] = []
    link = ServerLink(server.url, AGENT_TOKEN, patience=0)
    plan = server.plan([])
    shipper = Shipper(link, plan, str(tmp_path), str(tmp_path), frozenset(), note=notes.append)
    server.refuse = ("/streams/", refusal)
    shipper.start()
    wait_until(lambda: notes)
    server.refuse = None
    if not is_given_up:
        wait_until(lambda: server.log("azureml-logs/a.txt") == "kept\n")
    shipper.finish()
    link.close()
    assert (shipper.given_up is not None) is is_given_up
    assert len(notes) == 1


def test_one_refused_name_does_not_cost_the_others(server: FakeServer, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    for name in ("a", "b"):
        (work / "outputs" / name).write_text(name)
    notes: list[str] = []
    outputs = Outputs("fake run/1", str(work), notes.append)
    link = ServerLink(server.url, TOKEN)
    server.refuse = ("/files", 400)
    outputs.upload(link, outputs.pending())
    link.close()
    assert outputs.kept == 0
    assert len(notes) == 2


def test_a_file_that_changes_between_reading_and_sending_is_read_again(
    server: FakeServer, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    target = work / "outputs" / "model"
    target.write_text("first")

    class Changing(ServerLink):
        def call(self, method, path, body=b"", patience=None):  # type: ignore[no-untyped-def]
            if path.endswith("missing") and target.read_text() == "first":
                target.write_text("second, longer")
            return super().call(method, path, body, patience)  # type: ignore[no-untyped-call]

    link: ServerLink = Changing(server.url, TOKEN)  # type: ignore[no-untyped-call]
    outputs = Outputs("fake run/1", str(work), pytest.fail)
    outputs.upload(link, outputs.pending())
    link.close()
    assert server.file("outputs/model") == b"second, longer"
    assert outputs.pending() == []


def test_a_file_that_vanishes_before_it_is_sent_does_not_hold_up_the_others(
    server: FakeServer, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    for name in ("checkpoint-1", "checkpoint-2"):
        (work / "outputs" / name).write_text(name)

    class Vanishing(ServerLink):
        def call(self, method, path, body=b"", patience=None):  # type: ignore[no-untyped-def]
            if path.endswith("missing"):
                (work / "outputs" / "checkpoint-1").unlink(missing_ok=True)
            return super().call(method, path, body, patience)  # type: ignore[no-untyped-call]

    def never(seconds: float) -> None:
        raise AssertionError("it took the file's trouble for the server's and waited")

    link: ServerLink = Vanishing(server.url, TOKEN, sleep=never)  # type: ignore[no-untyped-call]
    notes: list[str] = []
    outputs = Outputs("fake run/1", str(work), notes.append)
    outputs.upload(link, outputs.pending())
    link.close()
    assert server.file("outputs/checkpoint-2") == b"checkpoint-2"
    assert notes == ["warning: 'outputs/checkpoint-1' is not kept: it vanished before it was sent"]


def test_a_run_that_is_no_more_is_given_up_after_a_while(server: FakeServer) -> None:
    link = ServerLink(server.url, "another token", patience=0.2)
    with pytest.raises(Refused, match="401: wrong token"):
        link.call("GET", "/api/v1/runs/x")
    link.close()
    assert len(server.requests) > 1


def test_a_call_that_nobody_waits_for_can_be_abandoned(server: FakeServer) -> None:
    server.go_down()
    link = ServerLink(server.url, TOKEN)
    threading.Timer(0.1, link.abandon).start()
    with pytest.raises(Abandoned):
        link.call("GET", "/anything")


def test_a_closed_keep_alive_connection_is_opened_again_without_waiting(
    server: FakeServer,
) -> None:
    def never(seconds: float) -> None:
        raise AssertionError("it waited")

    link = ServerLink(server.url, TOKEN, sleep=never)
    link.call_json("POST", "/api/v1/blobs/missing", [])
    assert server._http is not None
    server._http.cut()
    assert link.call_json("POST", "/api/v1/blobs/missing", ["x"]) == ["x"]
    link.close()
