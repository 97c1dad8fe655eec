"""What Slurm, its nodes and its people take away: told in words, and nothing is left behind."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from runyard.domain.errors import EngineFailed
from runyard.engines import slurm
from runyard.engines.base import JobId, JobPhase, JobStatus
from runyard.engines.slurm import SlurmEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    agent_pid,
    ended,
    gang_group,
    job_group,
    lives,
    log_of,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.interpreters import interpreters
from runyard.testing.slurm_cluster import SlurmCluster
from runyard_runtime import processes
from runyard_runtime.node_watch import Outside

JOB = JobId("job")
PIDS = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n"
KEEPS = "import os\nopen('outputs/' + os.environ.get('RANK', '0'), 'w').write('x')\n"

Opened = Callable[..., SlurmEngine]


@pytest.fixture
def cluster(slurm_of_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whose nodes are free again after the test, with nothing on them."""
    yield slurm_of_session
    slurm_of_session.clear()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def opened(cluster: SlurmCluster, tmp_path: Path) -> Opened:
    """Opens an engine on the cluster, with further options."""

    def open_it(*, shared: bool = True, **more: str) -> SlurmEngine:
        options = {
            "conf": str(cluster.conf),
            "one_machine": "true",
            "shared": str(shared).lower(),
            "folder": str(tmp_path / "node"),
            "python": sys.executable,
        }
        jobs = tmp_path / ("jobs" if shared else "jobs apart")
        return SlurmEngine(jobs, {**options, **more})

    return open_it


def status_of(engine: SlurmEngine) -> JobStatus:
    return engine.poll([JOB])[JOB]


def is_over(engine: SlurmEngine) -> bool:
    return status_of(engine).phase in (JobPhase.EXITED, JobPhase.GONE)


def gone(engine: SlurmEngine) -> JobStatus:
    wait_until(lambda: status_of(engine).phase is JobPhase.GONE)
    return status_of(engine)


# ---- nodes -------------------------------------------------------------------------------------


def test_a_node_whose_daemon_died_ends_what_it_runs_when_the_server_says_so(
    cluster: SlurmCluster, opened: Opened
) -> None:
    with FakeServer() as server, FakeServer() as other:
        both = ((opened(), server), (opened(shared=False), other))
        for engine, its in both:
            engine.start(job_group(its, KEEPS + PIDS + FOREVER))
        pids = [pid for _, its in both for pid in printed_pids(its)]
        hosts = {status_of(engine).hosts[0] for engine, _ in both}
        for host in hosts:
            cluster.lose_daemon(host)
        for engine, _ in both:
            assert "a node of it failed" in gone(engine).detail
        assert all(lives(pid) for pid in pids), "Slurm itself has left them alone"
        for _, its in both:
            its.stop_ordered = True  # the attempt is over, so this is what the server answers
        wait_until(lambda: not cluster.running(*hosts))
        assert [its.file("outputs/0") for _, its in both] == [b"x", b"x"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_a_killed_job_leaves_nothing_where_the_server_can_see_it(
    cluster: SlurmCluster, opened: Opened, server: FakeServer, shared: bool
) -> None:
    engine = opened(shared=shared)
    engine.start(job_group(server, PIDS + FOREVER))
    pids = printed_pids(server)
    host = status_of(engine).hosts[0]
    cluster.lose_daemon(host)
    gone(engine)
    engine.kill(JOB)
    assert not any(lives(pid) for pid in pids)
    wait_until(lambda: not cluster.running(host))  # Slurm's own has nobody left to wait for


def test_a_node_that_hears_nobody_asks_slurm_and_ends_what_is_no_job_any_more(
    cluster: SlurmCluster, opened: Opened
) -> None:
    engines = [opened(shared=shared, silence_seconds="1") for shared in (True, False)]
    for engine in engines:
        with FakeServer() as server:
            engine.start(job_group(server, PIDS + FOREVER))
            printed_pids(server)
    hosts = {status_of(engine).hosts[0] for engine in engines}
    for host in hosts:
        cluster.lose_daemon(host)
    for engine in engines:
        gone(engine)
    wait_until(lambda: not cluster.running(*hosts))


class Asked:
    """A batch system that is asked for a job."""

    def __init__(self, *, is_over: bool) -> None:
        self.answer = is_over
        self.times = 0

    def is_over(self) -> bool:
        self.times += 1
        return self.answer


@pytest.mark.parametrize(
    ("since", "is_over", "times", "expected"),
    [(None, True, 0, False), (9e9, True, 0, False), (0, False, 1, False), (0, True, 1, True)],
    ids=["heard", "not for long", "still a job", "no job"],
)
def test_slurm_is_asked_only_after_a_long_silence(
    tmp_path: Path, since: float | None, is_over: bool, times: int, expected: bool
) -> None:
    if since is not None:
        (tmp_path / "silent").write_text(f'{{"at": {since}}}')
    job = Asked(is_over=is_over)
    outside = Outside(str(tmp_path), job, {})
    assert outside.is_over() is expected
    outside.is_over()
    assert job.times == times, "and not again at once"


def test_an_agent_that_cannot_reach_the_server_says_so_while_it_runs(
    opened: Opened, server: FakeServer
) -> None:
    engine = opened()
    engine.start(job_group(server, FOREVER))
    says(server, "running")
    server.go_down()
    wait_until(lambda: f"cannot reach the server at {server.url}" in status_of(engine).detail)
    server.come_back(same_port=True)
    wait_until(lambda: status_of(engine).detail == "")


def test_a_run_that_the_server_has_forgotten_ends(opened: Opened, server: FakeServer) -> None:
    engine = opened()
    group = job_group(server, PIDS + FOREVER, denied_seconds=0)
    engine.start(group)
    pids = printed_pids(server)
    server.refuse = ("/reports", 404)
    wait_until(lambda: not any(lives(pid) for pid in pids))


def test_an_agent_whose_watch_and_guard_were_killed_stops_by_itself(
    cluster: SlurmCluster, opened: Opened, server: FakeServer, tmp_path: Path
) -> None:
    engine = opened()
    with FakeServer() as away:
        keys = {"job": server, "away": away}
        for key, its in keys.items():
            engine.start(job_group(its, PIDS + FOREVER, key=key))
        for its in keys.values():
            printed_pids(its)
    killed = []
    for key in keys:
        agent = processes.stat(agent_pid(tmp_path / "jobs" / key))
        assert agent is not None
        guard = processes.stat(agent.parent)
        assert guard is not None
        killed += [agent.parent, guard.parent]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in killed:
            os.kill(pid, number)
    wait_until(lambda: not cluster.running())


# ---- what cannot be ended ----------------------------------------------------------------------


def test_a_job_that_cannot_be_ended_is_no_success_unless_its_nodes_are_lost(
    cluster: SlurmCluster, opened: Opened, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_KILL_SECONDS", 0.5)
    monkeypatch.setattr(slurm, "_END_SECONDS", 0.5)
    engine = opened()
    engine.start(job_group(server, PIDS + FOREVER))
    pids = printed_pids(server)
    steps = [pid for pid in cluster.running() if b"SLURM_JOB_ID" not in processes.environment(pid)]
    steps = [pid for pid in steps if pid not in pids]
    for pid in steps:  # as a disk that hangs would have it
        os.kill(pid, signal.SIGSTOP)
    host = status_of(engine).hosts[0]
    try:
        with pytest.raises(EngineFailed, match=r"(?s)could not be ended.*COMPLETING on n\d"):
            engine.kill(JOB)
        # Nobody need wait for a node that is lost: what runs there is refused by the server.
        cluster.freeze_daemon(host)
        engine.kill(JOB)
        assert "COMPLETING" in cluster.ask("squeue", "-h", "-o", "%T")
    finally:
        for pid in steps:
            os.kill(pid, signal.SIGCONT)


# ---- what people and partitions take away --------------------------------------------------------


def scancel(cluster: SlurmCluster) -> None:
    cluster.ask("scancel", "--user=root")


def preempt(cluster: SlurmCluster) -> None:
    wanted = ("--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null")
    cluster.ask("sbatch", *wanted, "--wrap=sleep 600")


def run_out_of_time(cluster: SlurmCluster) -> None:
    for number in cluster.ask("squeue", "--noheader", "--format=%A").split():
        cluster.ask("scontrol", "update", f"JobId={number}", "EndTime=now")


@pytest.mark.parametrize(
    ("take_away", "code", "words"),
    [
        (scancel, "CanceledInCluster", "it was cancelled in Slurm"),
        (preempt, "Preempted", "it was preempted by a job of higher priority"),
        (run_out_of_time, "ClusterTimeLimit", "its time limit, 00:0"),
    ],
    ids=["scancel", "preempted", "time limit"],
)
def test_who_takes_the_nodes_away_is_told_and_no_output_is_lost(
    cluster: SlurmCluster,
    opened: Opened,
    take_away: Callable[[SlurmCluster], None],
    code: str,
    words: str,
) -> None:
    with FakeServer() as server, FakeServer() as other:  # side by side: each takes its time
        both = ((opened(time_limit="5"), server), (opened(shared=False, time_limit="5"), other))
        for engine, its in both:
            engine.start(gang_group(engine, its, KEEPS + FOREVER))
            for rank in range(2):
                says(its, "running", log_of(rank))
        take_away(cluster)
        for engine, its in both:
            wait_until(its.finished)
            report = its.report("finished")
            assert report["stopped"] is True
            error = report["error"]
            assert isinstance(error, dict)
            assert error["code"] == code
            assert words in error["message"]
            assert sorted(its.files) == ["outputs/0", "outputs/1"]
            wait_until(partial(is_over, engine))


def test_a_stop_of_ours_is_nobody_elses(opened: Opened, server: FakeServer) -> None:
    engine = opened()
    engine.start(job_group(server, FOREVER))
    says(server, "running")
    engine.stop(JOB)
    ended(engine, JOB)
    assert server.report("finished").get("error") is None


def test_a_drained_node_lets_its_job_end(
    cluster: SlurmCluster, opened: Opened, server: FakeServer, tmp_path: Path
) -> None:
    engine = opened()
    gate = tmp_path / "gate"
    code = (
        "import os, time\n"
        "print('running', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    engine.start(job_group(server, code))
    says(server, "running")
    node = status_of(engine).hosts[0]
    cluster.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        assert status_of(engine).phase is JobPhase.ACTIVE
        gate.touch()
        assert ended(engine, JOB).exit_code == 0
    finally:
        cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")


# ---- nodes that cannot work ----------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_an_interpreter_that_is_not_there_is_told(
    opened: Opened, server: FakeServer, shared: bool, nodes: int
) -> None:
    engine = opened(shared=shared, python="/nowhere/python")
    group = job_group(server, "") if nodes == 1 else gang_group(engine, server, "")
    engine.start(group)
    status = gone(engine)
    assert status.code == "NodePython"
    assert "there is no interpreter '/nowhere/python' on this node (node n" in status.detail


def test_an_interpreter_that_is_too_old_is_told(opened: Opened, server: FakeServer) -> None:
    # Real old ones are rare, and this is all that is asked of them.
    engine = opened(shared=False, python="/bin/false")
    engine.start(job_group(server, ""))
    status = gone(engine)
    assert status.code == "NodePython"
    assert "does not start, or is older than Python 3.6" in status.detail


def test_a_server_that_refuses_the_node_is_told(opened: Opened, server: FakeServer) -> None:
    engine = opened(shared=False)
    group = job_group(server, "")
    server.refuse = ("/plan", 401)
    engine.start(group)
    status = gone(engine)
    assert status.code == "NodeRefused"
    assert "refused to order (the token is not valid there) (node n" in status.detail


def test_a_folder_of_the_node_that_cannot_be_written_is_told(
    opened: Opened, server: FakeServer
) -> None:
    engine = opened(shared=False, folder="/proc/nowhere")
    engine.start(job_group(server, ""))
    status = gone(engine)
    assert status.code == "NodeFull"
    assert "/proc/nowhere cannot be written: " in status.detail


def test_a_node_that_waits_for_the_server_says_so(opened: Opened, server: FakeServer) -> None:
    engine = opened(shared=False)
    group = job_group(server, "")
    server.go_down()
    engine.start(group)
    wait_until(lambda: "does not answer" in status_of(engine).detail)
    assert server.url in status_of(engine).detail
    assert status_of(engine).phase is JobPhase.ACTIVE
    engine.kill(JOB)


@pytest.mark.parametrize("interpreter", interpreters()[:1])
def test_the_oldest_python_watches_as_well(
    opened: Opened, server: FakeServer, interpreter: str
) -> None:
    engine = opened(python=interpreter)
    engine.start(job_group(server, KEEPS + FOREVER))
    says(server, "running", DRIVER_LOG)
    engine.stop(JOB)
    assert ended(engine, JOB).exit_code == -signal.SIGTERM
