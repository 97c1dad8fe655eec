"""Ranks that fail in every way we could think of: the run must name the one that began, and why.

A row is a script and what `runyard show` must say of it. Its ranks are those of two nodes with one
each, unless the row says otherwise; those that do not fail wait for the others.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from azureml.core.runconfig import MpiConfiguration, PyTorchConfiguration, TensorflowConfiguration

TWO = PyTorchConfiguration("Gloo", process_count=2, node_count=2)
FOUR = PyTorchConfiguration("Gloo", process_count=4, node_count=2)
MPI = MpiConfiguration(process_count_per_node=1, node_count=2)
MPI_FOUR = MpiConfiguration(process_count_per_node=2, node_count=2)
WORKERS = TensorflowConfiguration(worker_count=2, parameter_server_count=0)
ONE = False  # a script of one process

Submit = Callable[..., Any]
Tell = Callable[[Any], Any]


@dataclass(frozen=True)
class Failure:
    """A script, and what is said when it has failed."""

    name: str
    code: str
    words: tuple[str, ...]  # {rank} stands for the one that is named
    absent: tuple[str, ...] = ()
    rank: int | None = 1  # None: it may be any
    exit_code: int | None = 1
    gang: object = TWO
    frameworks: bool = False  # it needs the environment with real ones


# Rank 1 fails; what it does is put in. The other has met it, and waits.
SECOND = "meet('up')\nif rank == 0:\n    forever()\n"

# Two ranks that speak over plain sockets: rank 0 listens, `peers` are its connections.
SOCKETS = """
port = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
ranks = int(os.environ["WORLD_SIZE"])
if rank == 0:
    door = socket.create_server(port)
    open("outputs/open", "w").close()
    peers = [door.accept()[0] for _ in range(ranks - 1)]
else:
    while not os.path.exists("outputs/open"):
        time.sleep(0.01)
    peers = [socket.create_connection(port)]
def receive(peer):
    if not peer.recv(1):
        raise ConnectionError("Connection closed by peer")
"""

GLOO = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
ones = torch.ones(4)
dist.all_reduce(ones)
"""

MPI4PY = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(1) == world.Get_size()
"""

TENSORFLOW = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def add():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
def sum_of_all():
    return strategy.run(add)
sum_of_all()
"""

FAILURES = [
    Failure(
        "a-rank-exits-with-a-code",
        SECOND + "print('giving up')\nsys.exit(3)",
        ("Rank 1 (node 1) ended with exit code 3", "Its last words: giving up"),
        exit_code=3,
    ),
    Failure(
        "a-rank-raises",
        SECOND + "def train():\n    raise ValueError('no layer 12')\ntrain()",
        ("Rank 1 (node 1): ValueError: no layer 12", "in train"),
    ),
    Failure(
        "an-import-fails-on-one-node-only",
        SECOND + "import a_package_of_rank_0_only",
        ("Rank 1 (node 1)", "No module named 'a_package_of_rank_0_only'", "Add it to the env"),
    ),
    Failure(
        "the-first-rank-fails",
        "meet('up')\nif rank == 1:\n    forever()\n{}['lr']",
        ("Rank 0 (node 0): KeyError: 'lr'",),
        rank=0,
    ),
    *(
        Failure(
            f"a-rank-gets-{name}",
            SECOND + f"os.kill(os.getpid(), signal.{name})\nforever()",
            (f"Rank 1 (node 1) ended by signal {name}", why),
            exit_code=-number,
        )
        for name, number, why in (
            ("SIGKILL", 9, "perhaps because the machine ran out of memory"),
            ("SIGSEGV", 11, "mostly a bug in a native library"),
            ("SIGTERM", 15, "it was asked to end"),
            ("SIGABRT", 6, "it aborted itself"),
            ("SIGBUS", 7, "perhaps a full /dev/shm"),
        )
    ),
    Failure(
        "a-rank-runs-out-of-memory",
        SECOND
        + "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        + "weights = bytearray(8 << 30)",
        ("Rank 1 (node 1): MemoryError", "ran out of memory"),
    ),
    Failure(
        "the-memory-of-torch-is-full",
        SECOND + "import torch\ntorch.empty(1 << 50)",
        ("Rank 1 (node 1): RuntimeError", "can't allocate memory", "ran out of memory."),
        frameworks=True,
    ),
    Failure(
        "a-port-is-taken",
        "meet('up')\nif rank == 1:\n    forever()\nport = int(os.environ['MASTER_PORT'])\n"
        "first = socket.create_server(('', port))\nsecond = socket.create_server(('', port))",
        ("Rank 0 (node 0): OSError", "Address already in use", "The port is taken"),
        rank=0,
    ),
    Failure(
        "a-peer-dies-while-others-wait-for-it",
        SOCKETS + "if rank == 1:\n    os._exit(5)\nreceive(peers[0])",
        ("Rank 1 (node 1) ended with exit code 5",),
        ("Connection closed",),
        exit_code=5,
    ),
    Failure(
        "a-peer-ends-well-but-too-early",
        SOCKETS + "if rank == 1:\n    sys.exit(0)\nreceive(peers[0])",
        ("Rank 0 (node 0): ConnectionError: Connection closed by peer", "0 ended: rank 1."),
        rank=0,
    ),
    Failure(
        "one-of-four-fails-and-the-others-lose-it",
        SOCKETS + "if rank == 3:\n    assert 1 == 2, 'shapes differ'\n"
        "for peer in peers:\n    receive(peer)",
        ("Rank 3 (node 1): AssertionError: shapes differ",),
        ("Connection closed",),
        rank=3,
        gang=FOUR,
    ),
    Failure(
        "the-consequence-is-noticed-before-the-cause-has-ended",
        SOCKETS + "import atexit\nif rank == 1:\n"
        "    atexit.register(time.sleep, 1)\n"  # it has closed its connection, and lives on
        "    peers[0].close()\n    raise RuntimeError('loss is NaN')\nreceive(peers[0])",
        ("Rank 1 (node 1): RuntimeError: loss is NaN",),
        ("Connection closed",),
    ),
    Failure(
        "two-ranks-fail-at-once",
        "meet('up', 4)\nif rank in (1, 2):\n    raise OSError('bad sector %d' % rank)\nforever()",
        ("Rank {rank} (node", "OSError: bad sector {rank}"),
        rank=None,
        gang=FOUR,
    ),
    Failure(
        "a-rank-recovers-from-its-error-while-another-fails",
        "import traceback\nif rank == 0:\n    try:\n        1 / 0\n    except Exception:\n"
        "        traceback.print_exc()\nmeet('up')\nif rank == 0:\n    forever()\n"
        "raise LookupError('no such class')",
        ("Rank 1 (node 1): LookupError: no such class",),
        ("ZeroDivisionError",),
    ),
    Failure(
        "a-rank-recovers-and-is-killed-later",
        "import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"
        + SECOND
        + "os.kill(os.getpid(), signal.SIGKILL)",
        ("Rank 1 (node 1) ended by signal SIGKILL",),
        exit_code=-9,
    ),
    Failure(
        "a-rank-exits-with-a-text",
        SECOND + "sys.exit('no such model: resnet')",
        ("Rank 1 (node 1) ended with exit code 1", "no such model: resnet"),
    ),
    Failure(
        "another-rank-will-not-end",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmeet('up')\nif rank == 0:\n    forever()\n"
        "sys.exit(9)",
        ("Rank 1 (node 1) ended with exit code 9",),
        ("SIGKILL",),
        exit_code=9,
    ),
    Failure(
        "others-raise-when-they-are-told-to-end",
        "def end(*_):\n    raise SystemError('interrupted')\nsignal.signal(signal.SIGTERM, end)\n"
        "meet('up', 4)\nif rank != 2:\n    forever()\nsys.exit(9)",
        ("Rank 2 (node 1) ended with exit code 9",),
        ("SystemError",),
        rank=2,
        exit_code=9,
        gang=FOUR,
    ),
    Failure(
        "a-rank-has-closed-its-output",
        SECOND + "print('last words')\nsys.stdout.flush()\nos.close(1)\nos.close(2)\nos._exit(4)",
        ("Rank 1 (node 1) ended with exit code 4", "last words"),
        exit_code=4,
    ),
    Failure(
        "a-rank-writes-a-file-that-is-too-large",
        SECOND + "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nopen('big', 'wb').write(bytes(2 << 20))",
        ("Rank 1 (node 1) ended by signal SIGXFSZ: it wrote a file larger than allowed",),
        exit_code=-25,
    ),
    Failure(
        "the-disk-is-full",
        SECOND + "disk = open('/dev/full', 'wb', buffering=0)\ndisk.write(b'checkpoint')",
        ("Rank 1 (node 1): OSError", "No space left on device", "The disk is full."),
    ),
    Failure(
        "a-file-of-the-data-is-missing",
        SECOND + "open('data/train.csv')",
        ("Rank 1 (node 1): FileNotFoundError", "'data/train.csv'"),
    ),
    Failure(
        "a-shell-says-that-its-child-was-killed",
        SECOND + "import subprocess\nos.execvp('sh', ['sh', '-c', 'sh -c \"kill -9 \\\\$\\\\$\"'])",
        ("Rank 1 (node 1) ended with exit code 137, which stands for signal SIGKILL",),
        exit_code=137,
    ),
    # One process
    Failure(
        "one-process-with-a-syntax-error",
        "def train(:\n    pass",
        ("SyntaxError",),
        ("Rank",),
        rank=0,
        gang=ONE,
    ),
    Failure(
        "one-process-with-a-wrong-argument",
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float)\nparser.parse_args(['--lr', 'fast'])",
        ("exit code 2", "argument --lr: invalid float value: 'fast'"),
        ("Rank", "snapshot"),
        rank=0,
        exit_code=2,
        gang=ONE,
    ),
    Failure(
        "one-process-that-recurses-for-ever",
        "def train():\n    train()\ntrain()",
        ("RecursionError",),
        rank=0,
        gang=ONE,
    ),
    # PyTorch
    Failure(
        "torch-a-rank-raises-while-the-other-is-in-a-collective",
        GLOO + "if rank == 1:\n    raise ValueError('bad batch')\ndist.all_reduce(ones)",
        ("Rank 1 (node 1): ValueError: bad batch",),
        ("Connection closed",),
        frameworks=True,
    ),
    Failure(
        "torch-a-rank-is-killed-while-the-other-is-in-a-collective",
        GLOO + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(ones)",
        ("Rank 1 (node 1) ended by signal SIGKILL",),
        ("Connection closed",),
        exit_code=-9,
        frameworks=True,
    ),
    Failure(
        "torch-a-rank-ends-without-its-last-collective",
        GLOO + "if rank == 1:\n    os._exit(0)\ndist.all_reduce(ones)",
        ("Rank 0 (node 0): RuntimeError", "another rank ended", "0 ended: rank 1."),
        rank=0,
        frameworks=True,
    ),
    Failure(
        "torch-nccl-without-a-gpu",
        "import torch.distributed as dist\ndist.init_process_group('nccl')",
        ("The backend 'nccl' needs a GPU", "init_process_group('gloo')"),
        rank=None,
        frameworks=True,
    ),
    # MPI, with ranks that mpirun has started
    Failure(
        "mpi-a-rank-raises-while-the-others-are-in-a-collective",
        MPI4PY + "if rank == 3:\n    raise ValueError('bad batch')\nworld.Barrier()",
        ("Rank 3 (node 1): ValueError: bad batch",),
        rank=3,
        gang=MPI_FOUR,
    ),
    Failure(
        "mpi-a-rank-is-killed",
        MPI4PY + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nworld.Barrier()",
        ("Rank 1 (node 1) ended by signal SIGKILL",),
        exit_code=-9,
        gang=MPI,
    ),
    Failure(
        "mpi-a-rank-aborts-all",
        MPI4PY + "if rank == 1:\n    print('diverged', flush=True)\n    world.Abort(7)\n"
        "world.Barrier()",
        ("Rank 1 (node 1)", "exit code 7", "diverged", "It called MPI_Abort with error code 7."),
        exit_code=7,
        gang=MPI,
    ),
    Failure(
        "mpi-a-rank-exits-without-finalize",
        MPI4PY + "if rank == 1:\n    os._exit(0)\nworld.Barrier()",
        ("ank 1", "exit code 0"),  # mpirun or rank 0 notices it, whoever looks first
        rank=None,
        exit_code=None,
        gang=MPI,
    ),
    # TensorFlow
    Failure(
        "tensorflow-a-worker-raises-while-the-other-waits",
        TENSORFLOW + "if rank == 1:\n    raise ValueError('bad batch')\nsum_of_all()",
        ("worker_1 (node 1): ValueError: bad batch",),
        gang=WORKERS,
        frameworks=True,
    ),
]


@pytest.mark.story
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.heavy] if one.frameworks else [])
        for one in FAILURES
    ],
)
def test_a_failed_run_says_which_rank_began_and_why(
    failure: Failure, submit: Submit, tell: Tell, request: pytest.FixtureRequest
) -> None:
    more: dict[str, Path] = {}
    if failure.frameworks:
        more["python"] = request.getfixturevalue("frameworks")
    told = tell(submit(failure.code, failure.gang, **more))
    if failure.frameworks and told.error.get("exitCode") == -signal.SIGABRT:
        # PyTorch's threads may outlive Python's end: then that is the failure, and not ours.
        told = tell(submit(failure.code, failure.gang, **more))
    assert told.status == "Failed"
    told.says(*(one.replace("{rank}", str(told.error["rank"])) for one in failure.words))
    told.says_nothing_of(*failure.absent)
    if failure.rank is not None:
        assert told.error["rank"] == failure.rank
    if failure.exit_code is not None:
        assert told.error["exitCode"] == failure.exit_code
