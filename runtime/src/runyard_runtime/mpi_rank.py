"""What mpirun, or Slurm's srun, starts for each rank: finds the rank's plan, and keeps its process.

It is the rank's keeper (see `ranks`), so a rank looks the same to its agent whoever started it.
Its plan is in the file that the agent of the rank's node wrote before:

    agent-NODE/mpi.json   {"cwd", "nice", "is_whole", "ranks": {RANK: {"argv", "env", "log"}}}

mpirun takes it for the rank, so unlike other keepers it passes SIGTERM on, and neither outlives
the one that started it. While a run is being stopped it stays until all ranks are over, which the
file agent-NODE/mpi-over says: at the first that ends, mpirun would end the others, and they may
still be saving their work.
"""

import os
import signal
import sys
import time

from runyard_runtime import job_folder, mpi, processes, ranks, supervision, wire

PLAN_FILE = "mpi.json"
OVER_FILE = "mpi-over"
_PLAN_SECONDS = 60.0  # the agent of another node on this machine may be a little behind
_PR_SET_PDEATHSIG = 1


def main(folder, per_node):
    """Be the keeper of the rank that MPI says we are. Never returns."""
    code = 255
    try:
        _signal_with_parent(os.getppid(), signal.SIGTERM)  # which we pass on
        rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["SLURM_PROCID"])
        own = os.path.join(folder, wire.agent_dir(rank // per_node))
        plan = _load_plan(os.path.join(own, PLAN_FILE))
        mine = plan["ranks"][str(rank)]
        env = mpi.rank_environment(mine["env"], os.environ, plan["is_whole"])
        log = os.path.join(folder, mine["log"])
        command = ranks.Command(rank, mine["argv"], env, False)
        code = _keep(command, own, log, plan["cwd"], plan["nice"])
    except Exception as error:  # noqa: BLE001 - whatever it is, mpirun's log must have it
        sys.stderr.write("runyard: a rank cannot be started: %r\n" % (error,))
        sys.stderr.flush()
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _load_plan(path):
    deadline = time.monotonic() + _PLAN_SECONDS
    while True:
        plan = job_folder.read_json(path)
        if plan is not None:
            return plan
        if time.monotonic() >= deadline:
            raise RuntimeError("%s was not written" % path)
        time.sleep(0.01)


def _keep(process, folder, log, cwd, nice):
    """Start the rank, wait for it, note how it ended; its exit code."""
    exits = job_folder.Reserved(ranks.exit_path(folder, process.rank))
    me = os.getpid()
    child = os.fork()
    if child == 0:
        _signal_with_parent(me, signal.SIGKILL)
        ranks.become(process, folder, log, cwd, nice, me, hears=2)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: processes.send_group(child, number))
    processes.become_subreaper()
    code = ranks.wait_for(child)
    ranks.settle(exits, {"exit_code": code, "at": time.time()}, folder)
    state = job_folder.read_json(os.path.join(folder, "state.json")) or {}
    if state.get("reason") in (supervision.STOPPED, supervision.TIMED_OUT):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.path.isdir(folder) and not os.path.exists(os.path.join(folder, OVER_FILE)):
            time.sleep(0.05)
    return code


def _signal_with_parent(parent, number):
    """Have the kernel send that signal to us when the parent ends."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # then the job's marker finds it
    if os.getppid() != parent:
        os._exit(126)  # it was killed before we asked
