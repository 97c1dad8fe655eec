"""Why a process failed, from its exit code and the end of its log."""

import pytest

from runyard_runtime.diagnosis import choose_cause, diagnose, is_consequence, last_traceback

VALUE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: bad learning rate"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 2, in <module>
    {}['k']
KeyError: 'k'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
    raise RuntimeError('final')
RuntimeError: final"""
CUT = 'Traceback (most recent call last):\n  File "b.py", line 1, in'
PREFIXED = """[1,0]<stderr>:Traceback (most recent call last):
[1,0]<stderr>:  File "c.py", line 1, in <module>
[1,0]<stderr>:    1 / 0
[1,0]<stderr>:ZeroDivisionError: division by zero"""


@pytest.mark.parametrize(
    ("log", "last_line"),
    [
        (VALUE, "ValueError: bad learning rate"),
        (CHAINED, "RuntimeError: final"),
        (VALUE + "\nand more text\n" + CUT, "ValueError: bad learning rate"),
        (CHAINED + "\n" + VALUE + "\ntrailing words", "ValueError: bad learning rate"),
        (PREFIXED, "ZeroDivisionError: division by zero"),
        (VALUE.replace("\n", "\r\n"), "ValueError: bad learning rate"),
        (
            VALUE.replace("ValueError: bad", "my.pkg.Odd_Error: bad"),
            "my.pkg.Odd_Error: bad learning rate",
        ),
        (VALUE.replace("ValueError: bad learning rate", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (CUT, ""),
        ("all is well", ""),
        ("", ""),
    ],
)
def test_the_last_complete_traceback_is_found(log: str, last_line: str) -> None:
    assert last_traceback("epoch 1\n" + log).split("\n")[-1] == last_line


def test_a_chained_traceback_keeps_only_the_final_one() -> None:
    assert "KeyError" not in last_traceback(CHAINED)


def test_an_endless_traceback_keeps_its_head_and_its_tail() -> None:
    frames = ["  File 'r.py', line 1, in f\n    f()"] * 500
    log = "\n".join(["Traceback (most recent call last):", *frames, "RecursionError: too deep"])
    kept = last_traceback(log).split("\n")
    assert len(kept) < 70
    assert (kept[0], kept[-1]) == ("Traceback (most recent call last):", "RecursionError: too deep")


@pytest.mark.parametrize(
    ("code", "log", "part"),
    [
        (1, VALUE, "ValueError: bad learning rate"),
        (1, VALUE.replace("ValueError: bad learning rate", "MemoryError"), "ran out of memory"),
        (
            1,
            VALUE.replace(
                "ValueError: bad learning rate", "ModuleNotFoundError: No module named 'torch'"
            ),
            "No module named 'torch'. Add it to the environment",
        ),
        (-9, "epoch 1", "perhaps because the machine ran out of memory"),
        (-11, VALUE, "SIGSEGV"),
        (-62, "", "number 62"),
        (137, "Killed", "exit code 137, which stands for signal SIGKILL"),
        (
            127,
            "runyard: cannot run /no/python: No such file or directory.\n",
            "Cannot run /no/python",
        ),
        (127, "sh: 1: frob: not found", "was not found"),
        (126, "", "cannot be executed"),
        (
            2,
            "python: can't open file '/w/train.py': [Errno 2] No such file or directory",
            "The script /w/train.py is not in the snapshot",
        ),
        (2, "usage: train.py\ntrain.py: error: unrecognized arguments: --x\n", "unrecognized"),
        (4, "", "exit code 4."),
        (4, "\xff\xfe odd \x00 bytes", "odd"),
    ],
)
def test_the_message_says_what_happened(code: int, log: str, part: str) -> None:
    error = diagnose(code, log.encode("latin-1"), 1)
    assert part in error["message"]
    assert (error["rank"], error["exit_code"]) == (1, code)


def test_an_end_that_nobody_saw_is_not_blamed_on_memory() -> None:
    error = diagnose(None, VALUE.encode(), 0)
    assert (error["code"], error["exit_code"]) == ("ExitCodeUnknown", None)
    assert "is not known: its agent and its keeper" in error["message"]
    assert "memory" not in error["message"]
    assert error["traceback"].endswith("ValueError: bad learning rate")


def test_a_good_end_needs_no_words() -> None:
    assert diagnose(0, VALUE.encode(), 0) is None


def test_a_line_of_a_megabyte_becomes_a_short_message() -> None:
    assert len(diagnose(1, b"x" * (1 << 20), 0)["message"]) < 1000


def raised(line: str, prefix: str = "") -> str:
    """A log that ends with a traceback of that error line."""
    lines = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', line]
    return "epoch 1\n" + "".join(f"{prefix}{one}\n" for one in lines)


# The ends of real logs, and the words that explain them.
EXPLAINED = {
    "torch, port": (
        1,
        raised(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, "
            "message: address already in use",
            "[rank0]: ",
        ),
        "The port is taken",
    ),
    "disk": (1, raised("OSError: [Errno 28] No space left on device"), "The disk is full"),
    "python, port": (1, raised("OSError: [Errno 98] Address already in use"), "The port is taken"),
    "tensorflow, port": (
        1,
        raised("tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server"),
        "The port is taken",
    ),
    "torch, gpu memory": (
        1,
        raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 …"),
        "smaller batch",
    ),
    "tensorflow, memory": (
        1,
        raised("errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[9,9]"),
        "smaller batch",
    ),
    "torch, cpu memory": (
        1,
        raised(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12"
        ),
        "ran out of memory",
    ),
    "c++ memory": (
        -6,
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what(): std::bad_alloc",
        "ran out of memory",
    ),
    "oom killer": (
        -9,
        "epoch 3\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your …",
        "the job's share of it, ran out of memory",
    ),
    "nccl without gpu": (
        1,
        raised("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
        "use init_process_group('gloo')",
    ),
    "torch without nccl": (
        1,
        raised("RuntimeError: Distributed package doesn't have NCCL built in"),
        "use init_process_group('gloo')",
    ),
    "torch, store": (
        1,
        raised(
            "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. "
            "1/2 clients joined."
        ),
        "The ranks did not all meet in time",
    ),
    "torch 1.6, barrier": (
        1,
        raised(
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, "
            "for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)"
        ),
        "The ranks did not all meet in time",
    ),
    "tensorflow, barrier": (
        1,
        raised(
            "tensorflow.python.framework.errors_impl.DeadlineExceededError: Barrier timed out. "
            "Barrier_id: WaitForAllTasks::14211"
        ),
        "The ranks did not all meet in time",
    ),
    "tensorflow, message goes on": (
        1,
        raised("errors_impl.AbortedError: Graph execution error:")
        + "\nDetected at node Adam/CollectiveReduceV2\nCollective ops is aborted by: Barrier "
        "timed out.\n",
        "The ranks did not all meet in time",
    ),
    "no mpi": (1, raised("RuntimeError: cannot load MPI library"), "There is no MPI"),
    "no libmpi": (
        1,
        raised(
            "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory"
        ),
        "There is no MPI",
    ),
    "no mpi4py": (1, raised("ModuleNotFoundError: No module named 'mpi4py'"), "There is no MPI"),
    "mpi init": (
        1,
        "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"
        "*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n",
        "MPI could not begin",
    ),
    "horovod without torch": (
        1,
        raised("ImportError: Extension horovod.torch has not been built: /x/mpi_lib.so not found"),
        "Horovod was installed without this framework",
    ),
    "other library": (
        1,
        raised(
            "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
        ),
        "A library of the system is missing",
    ),
    "old version": (
        1,
        raised("ImportError: cannot import name 'escape' from 'jinja2' (/x/jinja2/__init__.py)"),
        "pin the version",
    ),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_goes_wrong_between_ranks_is_explained(name: str) -> None:
    code, log, words = EXPLAINED[name]
    error = diagnose(code, log.encode(), 0)
    assert words in error["message"]
    assert not error["traceback"] or error["traceback"].split("\n")[-1][:30] in error["message"]


@pytest.mark.parametrize(
    "log",
    [
        raised("google.api_core.exceptions.DeadlineExceeded: 504 Deadline Exceeded"),
        raised("ConnectionRefusedError: [Errno 111] Connection refused"),
        raised("ValueError: bad learning rate"),
    ],
)
def test_errors_that_speak_for_themselves_are_left_alone(log: str) -> None:
    assert diagnose(1, log.encode(), 0)["message"] == log.rstrip("\n").split("\n")[-1]


@pytest.mark.parametrize("code", [3, -9, 137])
def test_a_lost_connection_that_was_got_over_is_not_taken_for_the_reason(code: int) -> None:
    log = "Connection reset by peer, retrying\nstep 7\n"
    assert "reset" not in diagnose(code, log.encode(), 0)["message"]


def test_a_command_that_cannot_be_executed_has_a_code_of_its_own() -> None:
    ours = b"runyard: cannot run /no/python: No such file or directory.\n"
    codes = [(127, ours), (126, ours), (127, b"sh: 1: nope: not found\n"), (1, ours)]
    found = [diagnose(code, log, 0)["code"] for code, log in codes]
    assert found == ["CannotRun", "CannotRun", "UserError", "UserError"]


def test_words_of_long_ago_are_not_taken_for_the_reason() -> None:
    log = "bind: Address already in use, trying the next\n" + "fine\n" * 30
    assert "port" not in diagnose(3, log.encode(), 0)["message"]


# What ranks say that were well until another went away.
LOST = {
    "gloo": raised(
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection "
        "closed by peer [127.0.0.1]:52102",
        "[rank1]: ",
    ),
    "nccl": raised(
        "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:2395, remote "
        "process exited or there was a network error, NCCL version 2.21.5"
    ),
    "store": raised(
        "torch.distributed.DistNetworkError: recvValue failed on SocketImpl(fd=4): Connection was "
        "likely closed. Did the remote server shutdown or crash?"
    ),
    "old store": raised("RuntimeError: Connection reset by peer"),
    "store client": raised(
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
        "network address of (127.0.0.1, 24001)."
    ),
    "store server": EXPLAINED["torch, store"][1],
    "tensorflow": raised(
        "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:"
    ),
    "tensorflow, later lines": raised("errors_impl.InternalError: Graph execution error:")
    + "Collective ops is aborted by: failed to connect to all addresses\n",
    "horovod": raised(
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was "
        "caused by an exception on one of the ranks"
    ),
    "pipe": raised("BrokenPipeError: [Errno 32] Broken pipe"),
    "mpirun": "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n",
    "prrte": "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-a]\n",
    "nccl watchdog": "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n",
}


NOISE = "step 1\nurllib3: Connection reset by peer, retrying\n"


def candidate(
    rank: int | None, code: int | None, log: str = "", *, at: float | None = 0.0, **changes: object
) -> dict[str, object]:
    error = diagnose(code, log.encode(), rank)
    facts = {"rank": rank, "node": 0, "exit_code": code, "ended_at": at, "ended_by_us": False}
    return {**facts, "error": error, **changes}


@pytest.mark.parametrize("name", LOST)
def test_a_real_error_is_the_cause_even_if_it_was_seen_later(name: str) -> None:
    code = -6 if name == "nccl watchdog" else 1
    lost = candidate(0, code, LOST[name], at=1.0)
    assert is_consequence(lost["error"])
    real = candidate(1, 1, VALUE, at=2.0)
    error = choose_cause([lost, real])
    assert error["message"] == "Rank 1: ValueError: bad learning rate"
    assert (error["rank"], error["exit_code"]) == (1, 1)
    assert choose_cause([lost, candidate(1, -9, "", at=2.0)])["rank"] == 1


@pytest.mark.parametrize("name", EXPLAINED)
def test_only_those_who_waited_for_others_count_as_consequences(name: str) -> None:
    code, log, words = EXPLAINED[name]
    waited = words == "The ranks did not all meet in time"
    assert is_consequence(diagnose(code, log.encode(), 0)) == waited


@pytest.mark.parametrize(
    ("candidates", "rank"),
    [
        # Of equals the first to end is the cause.
        ([candidate(0, 1, VALUE, at=5.0), candidate(1, 1, VALUE, at=4.0)], 1),
        ([candidate(1, 1, VALUE, at=4.0), candidate(0, 1, VALUE, at=4.0)], 0),
        ([candidate(0, 1, VALUE, at=None), candidate(1, 1, VALUE, at=4.0)], 1),
        # What we ended is never to blame, whatever it said.
        ([candidate(0, 1, VALUE, at=1.0, ended_by_us=True), candidate(1, 1, VALUE, at=4.0)], 1),
        ([candidate(0, -15, "", ended_by_us=True), candidate(1, 1, LOST["gloo"], at=4.0)], 1),
        # mpirun ends the other ranks with SIGTERM, before we can.
        ([candidate(0, -15, "", at=1.0), candidate(1, 1, VALUE, at=4.0)], 1),
        ([candidate(0, 143, "", at=1.0), candidate(1, 3, "", at=4.0)], 1),
        # Somebody ended a rank: the others only lost it.
        ([candidate(0, 1, LOST["gloo"], at=4.0), candidate(1, -15, "", at=1.0)], 1),
        ([candidate(0, 1, LOST["gloo"], at=4.0), candidate(1, 143, "", at=1.0)], 1),
        # But who was ended so after another failed was ended for it.
        ([candidate(0, 1, LOST["gloo"], at=1.0), candidate(1, -15, "", at=4.0)], 0),
        ([candidate(0, 1, LOST["gloo"], at=1.0), candidate(1, 143, "", at=4.0)], 0),
        # Who was killed, or crashed, is no consequence, whatever passing trouble its log tells.
        ([candidate(0, -9, NOISE, at=1.0), candidate(1, -15, "", at=1.1)], 0),
        ([candidate(0, -11, NOISE, at=2.0), candidate(1, 1, LOST["gloo"], at=1.0)], 0),
        ([candidate(0, 137, NOISE, at=2.0), candidate(1, 1, LOST["gloo"], at=1.0)], 0),
        # Nor is who said something else last.
        ([candidate(0, 3, NOISE + "bad luck\n", at=2.0), candidate(1, 1, LOST["gloo"], at=1.0)], 0),
        ([candidate(0, 3, NOISE, at=2.0), candidate(1, 3, "bad luck", at=3.0)], 1),
        # An end that nobody saw explains less than an error, but more than a lost peer.
        ([candidate(0, None, "", at=1.0), candidate(1, 1, VALUE, at=4.0)], 1),
        ([candidate(0, 1, LOST["store"], at=1.0), candidate(1, None, "", at=4.0)], 1),
        # All lost each other: the first.
        ([candidate(0, 1, LOST["gloo"], at=2.0), candidate(1, 1, LOST["gloo"], at=1.0)], 1),
        # Good ends are no candidates.
        ([candidate(0, 0, at=1.0), candidate(1, 1, VALUE, at=4.0)], 1),
    ],
)
def test_the_cause_is_chosen(candidates: list[dict[str, object]], rank: int) -> None:
    assert choose_cause(candidates)["rank"] == rank


@pytest.mark.parametrize(
    ("code", "log", "ranks", "nodes", "message"),
    [
        (-9, "", 4, 2, "Rank 3 (node 1) ended by signal SIGKILL: it was killed"),
        (-9, "", 4, 1, "Rank 3 ended by signal SIGKILL: it was killed"),
        (-9, "", 1, 1, "The script ended by signal SIGKILL: it was killed"),
        (4, "so long", 4, 2, "Rank 3 (node 1) ended with exit code 4. Its last words: so long"),
        (1, VALUE, 4, 2, "Rank 3 (node 1): ValueError: bad learning rate"),
        (1, VALUE, 1, 1, "ValueError: bad learning rate"),
        (
            2,
            "python: can't open file 'a.py': [Errno 2] No such file or directory",
            2,
            1,
            "Rank 3: The script a.py is not in the snapshot",
        ),
    ],
)
def test_the_message_names_the_rank_where_there_are_several(
    code: int, log: str, ranks: int, nodes: int, message: str
) -> None:
    error = choose_cause([candidate(3, code, log, node=1)], ranks, nodes)
    assert error["message"].startswith(message)


def test_what_is_no_rank_can_be_the_cause_too() -> None:
    launcher = candidate(None, 1, "There are not enough slots available in the system\n", at=1.0)
    error = choose_cause([launcher, candidate(1, -15, "", at=2.0)])
    assert error["message"].startswith("The script ended with exit code 1. Its log says: There are")


def test_where_all_lost_another_rank_it_is_said_that_somebody_ended_before() -> None:
    lost = candidate(1, 1, raised("ConnectionError: Connection closed by peer"), at=1.0)
    words = "Connection closed by peer. It lost the connection: another rank ended before it"
    assert words in choose_cause([lost, candidate(0, 0)])["message"]
    named = choose_cause([lost], ranks=3, good=[2, 0])["message"]
    assert "With exit code 0 ended: rank 0, rank 2. See" in named
    assert "another rank" not in choose_cause([lost], ranks=1)["message"]
    endless = candidate(1, 1, raised("ConnectionError: Connection closed by peer " + "x" * 5000))
    message = choose_cause([endless, candidate(0, 0)])["message"]
    assert len(message) <= 2000
    assert message.endswith("See the logs of the other ranks.")


def test_a_job_without_failures_has_no_cause() -> None:
    assert choose_cause([candidate(0, 0), candidate(1, 0)]) is None
    assert choose_cause([]) is None


def test_choosing_leaves_the_candidates_as_they_were() -> None:
    one = candidate(1, 1, VALUE)
    choose_cause([one, candidate(0, 0)])
    assert one == candidate(1, 1, VALUE)


@pytest.mark.parametrize("prefix", ["", "[1,0]<stderr>:"])
def test_the_reasons_below_an_error_of_ours_are_kept(prefix: str) -> None:
    reasons = ["  why: There are: a, b.", "  fix: Say which."]
    log = [*VALUE.splitlines(), *reasons, "  and what is printed later"]
    found = diagnose(1, "\n".join(prefix + line for line in log).encode(), 0)
    assert found["message"].splitlines() == ["ValueError: bad learning rate", *reasons]
    assert found["traceback"].splitlines() == [*VALUE.splitlines(), *reasons]
