"""What Slurm's answers mean, and what is handed to it."""

from pathlib import Path

import pytest

from runyard.domain.errors import EngineFailed, Invalid, RunyardError, Unavailable
from runyard.engines.base import JobPhase, NodeGroup, NodeResources
from runyard.engines.slurm_answers import (
    QUEUE_FORMAT,
    QueueRow,
    choose,
    expand_hosts,
    explain_refusal,
    explain_wait,
    is_only_on_lost,
    judge,
    parse_nodes,
    parse_queue,
    with_words,
)
from runyard.engines.slurm_script import (
    SlurmOptions,
    job_name,
    marker_in,
    plan_batch,
    read_options,
    render_script,
)

PLAN = b'{"runtime": "/the runtime", "url": "http://s:1", "agent_token": "hush", "run_id": "r"}'


def line(*cells: str) -> str:
    widths = [int(one.partition(":")[2]) for one in QUEUE_FORMAT.split(",")]
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def row(state: str, **facts: object) -> QueueRow:
    known: dict[str, object] = {
        "id": "7",
        "exit_status": 0,
        "nodes": 1,
        "reason": "None",
        "hosts": ("n1",),
    }
    return QueueRow(state=state, **{**known, **facts})  # type: ignore[arg-type]


def test_the_queue_is_read_by_columns_and_jobs_are_found_by_their_marker() -> None:
    text = "\n".join(
        [
            line("10", "PENDING", "0", "1-4", "Nodes required, are DOWN", "", "exp_7:a-1", "x y"),
            line("9", "FAILED", "768", "2", "NonZeroExitCode", "gpu[1-2]", "exp_7:a-1", ""),
            line("3", "RUNNING", "0", "1", "None", "head", "some name", ""),
        ]
    )
    found = parse_queue(text)
    assert [one.id for one in found["a-1"]] == ["9", "10"], "the oldest first"
    assert found["a-1"][1].reason == "Nodes required, are DOWN"
    assert found["a-1"][1].comment == "x y"
    assert found["some name"][0].hosts == ("head",)


@pytest.mark.parametrize(
    ("states", "known", "expected"),
    [
        ({}, "", None),
        ({}, "9", None),
        ({"9": "RUNNING"}, "9", "9"),
        ({"9": "PENDING", "10": "RUNNING"}, "", "9"),
        ({"9": "PENDING", "10": "RUNNING"}, "10", "9"),
        ({"9": "COMPLETED", "10": "PENDING"}, "9", "9"),
        ({"9": "CANCELLED", "10": "PENDING"}, "10", "10"),
        ({"9": "CANCELLED", "10": "COMPLETED"}, "", "10"),
        ({"10": "PENDING"}, "9", None),
    ],
)
def test_of_several_jobs_of_one_marker_the_oldest_is_ours(
    states: dict[str, str], known: str, expected: str | None
) -> None:
    found = choose([row(state, id=number) for number, state in states.items()], known)
    assert (found.id if found is not None else None) == expected


@pytest.mark.parametrize(
    ("found", "states", "expected"),
    [
        ([row("COMPLETING")], "n1 down\n", True),
        ([row("COMPLETING")], "n1 down*\nn1 down*\n", True),
        ([row("COMPLETING")], "n1 completing*\n", True),
        ([row("COMPLETING", hosts=("n1", "n2"))], "n1 down\nn2 completing\n", False),
        ([row("COMPLETING", hosts=("n1", "n2"))], "n1 down\nn2 idle*\n", True),
        ([row("COMPLETING", hosts=())], "n1 down\n", False),
        ([row("COMPLETING")], "", False),
        ([row("RUNNING")], "n1 mixed*\n", False),
        ([row("COMPLETED"), row("COMPLETING", hosts=("n2",))], "n2 drained*\n", True),
        ([row("PENDING", hosts=()), row("COMPLETING")], "n1 down\n", False),
    ],
)
def test_a_job_that_only_lost_nodes_have_is_let_go(
    found: list[QueueRow], states: str, expected: bool
) -> None:
    assert is_only_on_lost(found, parse_nodes(states)) is expected


def test_a_job_is_named_by_its_run_and_found_by_its_marker() -> None:
    name = job_name("Größe, 50% of:it " + "x" * 500, "k-1-00aa")
    assert name.startswith("Gr__e__50__of_it_xxx")
    assert marker_in(name) == "k-1-00aa"
    assert len(job_name("x" * 500, "k" * 209)) <= 300, "squeue shows no more"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("gpu[1-2,07],head", ("gpu1", "gpu2", "gpu07", "head")),
        ("r[08-10]-ib", ("r08-ib", "r09-ib", "r10-ib")),
    ],
)
def test_short_forms_of_host_names_are_spelled_out(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("found", "is_stopping", "phase", "code", "words"),
    [
        (None, False, JobPhase.GONE, None, "no longer knows its job 7"),
        (row("PENDING", reason="Resources"), False, JobPhase.PENDING, None, "no nodes are free"),
        (row("PENDING", reason="PartitionConfig"), False, JobPhase.GONE, None, "asks for more"),
        (row("CONFIGURING"), False, JobPhase.PENDING, None, ""),
        (row("RUNNING"), False, JobPhase.ACTIVE, None, ""),
        (row("COMPLETING"), False, JobPhase.ACTIVE, None, "completing"),
        (row("COMPLETING", reason="NodeDown"), False, JobPhase.GONE, None, "a node of it failed"),
        (row("COMPLETED"), False, JobPhase.EXITED, 0, ""),
        (row("FAILED", exit_status=3 << 8), False, JobPhase.EXITED, 3, ""),
        (row("FAILED", exit_status=143 << 8), False, JobPhase.EXITED, -15, ""),
        (row("FAILED", exit_status=121 << 8), False, JobPhase.GONE, None, "agents were lost"),
        (row("FAILED", exit_status=9), False, JobPhase.GONE, None, "agents were lost"),
        (row("FAILED", exit_status=241 << 8), False, JobPhase.GONE, None, "cannot reach"),
        (row("FAILED", reason="BadConstraints"), False, JobPhase.GONE, None, "no node has"),
        (row("NODE_FAIL"), False, JobPhase.GONE, None, "on n1: a node of it failed (NODE_FAIL)"),
        (row("PREEMPTED"), False, JobPhase.GONE, None, "preempted"),
        (row("TIMEOUT"), False, JobPhase.GONE, None, "its time limit is over"),
        (row("OUT_OF_MEMORY"), False, JobPhase.GONE, None, "more memory"),
        (row("CANCELLED", hosts=()), True, JobPhase.EXITED, -15, "before Slurm had started it"),
        (row("CANCELLED", hosts=()), False, JobPhase.GONE, None, "cancelled in Slurm"),
        (row("CANCELLED"), True, JobPhase.GONE, None, "cancelled in Slurm"),
        (row("A_NEW_STATE"), False, JobPhase.GONE, None, "it is A_NEW_STATE"),
    ],
)
def test_how_a_job_is(
    found: QueueRow | None, is_stopping: bool, phase: JobPhase, code: int | None, words: str
) -> None:
    status = judge(found, is_stopping=is_stopping, number="7")
    assert (status.phase, status.exit_code) == (phase, code)
    assert words in status.detail
    assert status.node_lost is (phase is JobPhase.GONE)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (row("PREEMPTED"), "Preempted"),
        (row("TIMEOUT"), "ClusterTimeLimit"),
        (row("CANCELLED"), "CanceledInCluster"),
        (row("NODE_FAIL"), ""),
        (row("PENDING", reason="PartitionConfig"), "CannotBePlaced"),
        (row("PENDING", reason="Job's account not known, so it can't use"), "CannotBePlaced"),
        (row("FAILED", exit_status=241 << 8), "ServerUnreachable"),
        (row("FAILED", exit_status=242 << 8), "NodeRefused"),
        (row("FAILED", exit_status=243 << 8), "NodeFull"),
        (row("FAILED", exit_status=245 << 8), "NodePython"),
    ],
)
def test_what_ended_a_job_is_the_code_of_its_runs_error(found: QueueRow, code: str) -> None:
    assert judge(found, is_stopping=False, number="7").code == code


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_a_node_that_cannot_work_speaks_for_the_job(state: str) -> None:
    found = row(state, comment="Runyard 243: n2: /scratch cannot be written: no room")
    status = judge(found, is_stopping=False, number="7")
    assert status.phase is JobPhase.GONE
    assert status.code == "NodeFull"
    assert status.detail == "/scratch cannot be written: no room (node n2, Slurm's job 7)"


def test_a_node_that_is_still_trying_says_so() -> None:
    found = row("RUNNING", comment="Runyard 0: n2: the server http://s does not answer")
    status = judge(found, is_stopping=False, number="7")
    assert status.phase is JobPhase.ACTIVE
    assert status.detail == "node n2 says: the server http://s does not answer"
    plain = judge(row("RUNNING", comment="Runyard job k"), is_stopping=False, number="7")
    assert plain.detail == ""


def test_the_jobs_own_log_says_which_node_it_was() -> None:
    status = judge(row("NODE_FAIL"), is_stopping=False, number="7")
    assert with_words(status, "srun: error: Node failure on n2\nmore").detail.endswith(": n2")
    assert with_words(status, "something else") == status
    lost = judge(row("FAILED", exit_status=9), is_stopping=False, number="7")
    assert with_words(lost, "no python").detail.endswith("; its last words: no python")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "it waits for jobs of higher priority (Priority)"),
        ("(ReqNodeNotAvail, UnavailableNodes:n1)", "are down, drained or reserved"),
        ("AssocGrpCpuLimit", "a limit of its account or QOS is reached (AssocGrpCpuLimit)"),
        ("QOSMaxJobsPerUserLimit", "a limit of its account"),
        ("SomethingNew", "it waits (SomethingNew)"),
        ("", "does not say why"),
    ],
)
def test_why_a_job_waits(reason: str, words: str) -> None:
    assert words in explain_wait(reason)


AWAY = "controller does not answer"
POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)
MUNGE = (
    "sbatch: error: If munged is up, restart with --num-threads=10\n"
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such '
    "file or directory\n"
    "sbatch: error: slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has "
    "authentication error: Invalid authentication credential\n"
    "sbatch: error: Batch job submission failed: Protocol authentication error"
)


def failed(words: str) -> str:
    return f"sbatch: error: Batch job submission failed: {words}"


@pytest.mark.parametrize(
    ("said", "kind", "what"),
    [
        (failed("Unable to contact slurm controller (connect failure)"), Unavailable, AWAY),
        (failed("Unable to contact slurm controller (receive failure)"), Unavailable, AWAY),
        (failed("Socket timed out on send/recv operation"), Unavailable, AWAY),
        (failed("Zero Bytes were transmitted or received"), Unavailable, AWAY),
        (failed("Slurm backup controller in standby mode"), Unavailable, AWAY),
        (failed("Resource temporarily unavailable"), Unavailable, AWAY),
        (failed("Unable to create job record, try again"), Unavailable, AWAY),
        (failed("Message receive failure"), Unavailable, AWAY),
        ("slurm_load_jobs error: Communication connection failure", Unavailable, AWAY),
        ("sbatch: error: AssocMaxSubmitJobLimit\n" + POLICY, Unavailable, "no further job"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + POLICY, Unavailable, "no further job"),
        ("sbatch: error: QOSGrpSubmitJobsLimit\n" + POLICY, Unavailable, "no further job"),
        (POLICY, Unavailable, "no further job"),
        ("sbatch: error: QOSMaxCpuPerJobLimit\n" + POLICY, EngineFailed, "limits do not allow"),
        (
            "sbatch: error: AssocMaxWallDurationPerJobLimit\n" + POLICY,
            EngineFailed,
            "limits do not allow",
        ),
        (MUNGE, EngineFailed, "cannot be used"),
        (
            "sbatch: fatal: Could not establish a configuration source",
            EngineFailed,
            "cannot be used",
        ),
        (
            "sbatch: error: invalid partition specified: x\n"
            + failed("Invalid partition name specified"),
            Invalid,
            "that partition",
        ),
        (
            failed("Invalid account or account/partition combination specified"),
            Invalid,
            "that account",
        ),
        (failed("Invalid qos specification"), Invalid, "QOS"),
        (failed("Requested node configuration is not available"), Invalid, "No node"),
        (failed("Invalid generic resource (gres) specification"), Invalid, "No node"),
        (
            failed("Requested time limit is invalid (missing or exceeds some limit)"),
            Invalid,
            "that time limit",
        ),
        (failed("Time limit specification required, but not provided"), Invalid, "time limit"),
        ("", EngineFailed, "'sbatch' failed"),
    ],
)
def test_refusals_are_put_in_words(said: str, kind: type[RunyardError], what: str) -> None:
    error = explain_refusal("sbatch", said)
    assert type(error) is kind
    assert what in error.what


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (MUNGE, Unavailable),
        ("squeue: fatal: Could not establish a configuration source", Unavailable),
        (failed("Invalid partition name specified"), Invalid),
        ("sbatch: error: QOSMaxCpuPerJobLimit\n" + POLICY, EngineFailed),
    ],
)
def test_a_set_up_that_has_worked_before_may_work_again(
    said: str, kind: type[RunyardError]
) -> None:
    assert type(explain_refusal("sbatch", said, has_worked=True)) is kind


def test_what_a_group_needs_is_asked_of_slurm() -> None:
    options = read_options(
        {
            "partition": "gpu",
            "account": "lab",
            "qos": "high",
            "time_limit": "1-0:00:00",
            "arguments": "--constraint='a b' --exclusive",
        }
    )
    group = NodeGroup(
        key="k", nodes=2, plan=PLAN, resources=NodeResources(cores=6, memory_gb=1.5, gpus=4)
    )
    command = plan_batch(group, options, "k-1", Path("/jobs/k"))
    assert {
        "--job-name=r:k-1",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--partition=gpu",
        "--account=lab",
        "--qos=high",
        "--time=1-0:00:00",
        "--cpus-per-task=6",
        "--mem=1536M",
        "--gres=gpu:4",
        "--output=/jobs/k/slurm.log",
    } <= set(command)
    assert command[-2:] == ["--constraint=a b", "--exclusive"]


def test_a_token_is_in_no_script_and_on_no_command_line() -> None:
    options = SlurmOptions(shared=False, folder="/scratch", environments="/shared/made")
    group = NodeGroup(key="k", nodes=2, plan=PLAN)
    script, variables = render_script(group, options, "k-1", Path("/jobs/k"))
    assert "hush" not in script
    assert "hush" not in " ".join(plan_batch(group, options, "k-1", Path("/jobs/k")))
    assert variables["RUNYARD_NODE_TOKEN"] == "hush"
    assert variables["RUNYARD_NODE_FOLDER"] == "/scratch"
    assert variables["RUNYARD_NODE_ENVIRONMENTS"] == "/shared/made"


def test_a_folder_with_blanks_reaches_the_node() -> None:
    group = NodeGroup(key="k", plan=PLAN)
    script, _ = render_script(group, SlurmOptions(), "k-1", Path("/jobs of ours/k"))
    assert "'/the runtime' '/jobs of ours/k'\n" in script


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partitions": "x"}, "no option 'partitions'"),
        ({"shared": "maybe"}, "true or false"),
        ({"arguments": "--x='"}, "no command line"),
        ({"silence_seconds": "soon"}, "a number of seconds"),
        ({"environments": "/shared/made"}, "for nodes that share nothing"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_options(given)
