"""How a job's ranks are started by its own mpirun, without ssh. Pure.

One mpirun, on the first node, starts all ranks. For other nodes it calls our launch agent as
`AGENT HOST COMMAND…`, as it would call ssh; the agent of that node then runs the command. What
mpirun starts for each rank is not the script but our starter (`mpi_rank`).

Nodes are told apart by host name, and a host's name is its address: that needs no look-up. Where
nodes cannot have names of their own (`hostnames`), all are one host to MPI (`ONE_HOST`), and only
the rank's variables say what node it is on.
"""

import collections
import os.path
import re

from runyard_runtime import wire
from runyard_runtime.diagnosis import signal_name

OPEN_MPI = "Open MPI"
OLDEST = 4  # of its versions that can start ranks
LAUNCH_AGENT = "mpi-launch"  # a file in the first agent's folder

# What the starter is told; each node's agent sets them for the mpirun or daemon of its node.
PYTHON = "RUNYARD_MPI_PYTHON"
STARTER = "RUNYARD_MPI_STARTER"

SEVERAL_HOSTS, ONE_HOST = "several hosts", "one host"

# `path` is how it is called; `major` its first version number.
Mpirun = collections.namedtuple("Mpirun", "path major")

# What MPI says to its ranks. All else in a rank's environment is the plan's.
_MPIS_OWN = ("OMPI_", "OPAL_", "PMIX_", "PRTE_", "ORTE_", "PMI_", "PMI2_")
# What would mislead mpirun: schedulers around the whole platform (it would ask them for nodes, and
# start its daemons through them), and the place of a rank.
_MISLEADING = ("SLURM_", "PBS_", "LSB_", "LSF_", "SGE_", "PALS_", "COBALT_", "FLUX_")
_MISLEADING += ("OMPI_COMM_WORLD_", "PMI_", wire.RANK)
_VERSION = re.compile(r"\((Open MPI|OpenRTE)\) v?(\d+)\.(\d+)")
_OTHERS = (("HYDRA", "MPICH"), ("Intel(R) MPI", "Intel MPI"), ("mvapich", "MVAPICH"))
_ABORT_LINE = re.compile(r" ?\[[^\]]+\] \*\*\* +(\S.*)")
_ABORTED_RANK = re.compile(r"^reported by process \[\d+,(\d+)\]")
_ABORT_NOISE = ("on ", "MPI_ERRORS_ARE_FATAL", "and MPI will try", "and potentially")
_ABORTS = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator [^\n]*\s+"
    r"(?:Proc: \[\[[^\]]*\],(?P<world>\d+)\]\s+)?(?:with errorcode|Errorcode:) (?P<code>-?\d+)"
)
_LEFT_EARLY = re.compile(
    r"has exited due to process rank (\d+) with PID [^\n]* exiting\s+improperly"
)
_KEEP_CHARS = 1500  # of what mpirun says
_START = 'exec "$%s" -S -E -c "$%s"' % (PYTHON, STARTER)


_RUNS = ("-c", "-m")  # what `python -m mpi4py` takes in place of a script


def find(interpreter, path, exists):
    """How mpirun is called: the environment's own, else the one on PATH; None if there is none."""
    if interpreter and os.path.dirname(interpreter):
        own = os.path.join(os.path.dirname(interpreter), "mpirun")
        if exists(own):
            return own  # called by its full path it uses its own libraries on all nodes
    found = any(exists(os.path.join(one, "mpirun")) for one in path.split(os.pathsep) if one)
    return "mpirun" if found else None


def parse_version(text):
    """(kind, major) from what `mpirun --version` says; the major is None if we cannot use it.

    Others than Open MPI, and its old versions, do not start their daemons as we know it, so `kind`
    is for a message. A newer one is taken for like the newest we know.
    """
    found = _VERSION.search(text)
    if found:
        major = int(found.group(2))
        return (OPEN_MPI, major) if major >= OLDEST else ("%s %d" % (OPEN_MPI, major), None)
    for sign, kind in _OTHERS:
        if sign.lower() in text.lower():
            return kind, None
    return text.strip().split("\n")[0][:80], None


def choose_mode(addresses, one_machine, can_name_hosts, has_network, major):
    """Whether MPI sees the nodes as hosts, or all as one."""
    if len(addresses) == 1:
        return ONE_HOST
    if not one_machine:
        return SEVERAL_HOSTS  # machines have names of their own
    if len(set(addresses)) < len(addresses) or not can_name_hosts:
        return ONE_HOST
    if major >= 5 and not has_network:
        return ONE_HOST  # its daemons never talk over the loopback interface
    return SEVERAL_HOSTS


def plan_mpirun(mpirun, mode, addresses, per_node):
    """The words of the mpirun that starts all ranks, rank = node * per_node + local rank.

    It is to be run in the job's working directory.
    """
    words = [mpirun.path, "--allow-run-as-root", "-np", str(len(addresses) * per_node)]
    # Nodes may have fewer cores than ranks, and share a machine: bound ranks would sit on the
    # same cores.
    words += ["--bind-to", "none"]
    slots = "ppr:%d:node" % (per_node if mode == SEVERAL_HOSTS else len(addresses) * per_node)
    if mpirun.major >= 5:
        words += ["--map-by", slots + ":OVERSUBSCRIBE"]
    else:
        words += ["--map-by", slots, "--oversubscribe"]
    if mode == SEVERAL_HOSTS and len(addresses) > 1:
        hosts = ",".join("%s:%d" % (address, per_node) for address in addresses)
        words += ["--host", hosts] + _launching(mpirun.major)
    return words + ["/bin/sh", "-c", _START]


def _launching(major):
    """Daemons through our launch agent, all called by mpirun, and none hides from its keeper."""
    # Relative, because mpirun takes blanks and colons in it for its own.
    agent = "/bin/sh ../%s/%s" % (wire.agent_dir(0), LAUNCH_AGENT)
    kind, word = ("ssh", "--prtemca") if major >= 5 else ("rsh", "--mca")
    values = (("plm", kind), ("plm_%s_agent" % kind, agent), ("plm_%s_no_tree_spawn" % kind, "1"))
    flags = [part for name, value in values for part in (word, name, value)]
    return ["--leave-session-attached"] + flags


def plan_srun(kind, job, nodes, per_node):
    """The words of the srun that starts all ranks inside Slurm's job, in the same order.

    The agents hold the job's cores, which the ranks share; who ends whom is up to the agents.
    """
    words = ["srun", "--jobid=" + job, "--mpi=" + kind, "--overlap", "--overcommit"]
    words += ["--nodes=%d" % nodes, "--ntasks=%d" % (nodes * per_node)]
    words += ["--ntasks-per-node=%d" % per_node, "--distribution=block", "--cpu-bind=none"]
    words += ["--kill-on-bad-exit=0", "--wait=0", "--input=none", "--export=ALL"]
    return words + ["/bin/sh", "-c", _START]


def daemon_environment(base, major, addresses, one_machine, place, contained=False):
    """The variables of a node's mpirun or daemon. What the user says of MPI stays as it is.

    No `place`: they are for all nodes.
    """
    env = {name: value for name, value in base.items() if not name.startswith(_MISLEADING)}
    memory = "sm" if major >= 5 else "vader"
    # What ranks share is removed with the place, however they end; a container's own memory goes
    # with the container.
    has_place = place is not None and not contained
    settings = {"btl_%s_backing_directory" % memory: place} if has_place else {}
    if one_machine:
        settings["btl_tcp_if_include"] = "lo"
        if not any("OMPI_MCA_" + name in env for name in ("pml", "btl", "mtl")):
            # The search for fast networks takes a second, and there is none to be found.
            settings.update(pml="ob1", btl="self,%s,tcp" % memory)
        if major < 5:
            settings["oob_tcp_if_include"] = "lo"
    else:
        network = common_network(addresses)
        if network:
            # Machines have more networks than the one they share, and some look alike on all.
            settings["btl_tcp_if_include"] = network
            settings["oob_tcp_if_include"] = network
    if contained:
        settings["btl_vader_single_copy_mechanism"] = "none"  # a container may not
        settings["smsc"] = "^cma"
    for name, value in settings.items():
        env.setdefault(_variable(name, major), value)
    if has_place:
        env["TMPDIR"] = place  # its sockets need a short path, and two jobs must not meet
    return env


def _variable(setting, major):
    if major >= 5 and setting == "oob_tcp_if_include":
        return "PRTE_MCA_prte_if_include"
    return "OMPI_MCA_" + setting


def common_network(addresses):
    """The smallest usual network with all these IPv4 addresses, "10.0.3.0/24"; or None."""
    parts = [address.split(".") for address in addresses]
    if not all(len(one) == 4 and all(part.isdigit() for part in one) for one in parts):
        return None
    for size, bits in ((3, 24), (2, 16), (1, 8)):
        starts = {tuple(one[:size]) for one in parts}
        if len(starts) == 1:
            return "%s/%d" % (".".join(list(starts.pop()) + ["0"] * (4 - size)), bits)
    return None


def rank_command(argv, interpreter):
    """The command of a rank whose Python has mpi4py: an exception then ends all ranks.

    Left to itself such a rank would finalize MPI at its exit and so wait for the others, which
    wait for it.
    """
    if len(argv) < 2 or argv[0] != interpreter or (argv[1][:1] == "-" and argv[1] not in _RUNS):
        return argv
    return [interpreter, "-m", "mpi4py"] + argv[1:]


def rank_environment(planned, told, is_whole=True):
    """The environment of a rank: what the plan says, and what MPI says of its place.

    `told` is the starter's own environment. Of a container only a part is planned
    (`is_whole=False`): the rest is the image's.
    """
    env = dict(planned) if is_whole else dict(told, **planned)
    for name, value in told.items():
        if name.startswith(_MPIS_OWN):
            env[name] = value
    if told.get("LD_LIBRARY_PATH"):
        env["LD_LIBRARY_PATH"] = told["LD_LIBRARY_PATH"]  # planned, with MPI's own before it
    # All nodes may be one host to MPI.
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if name in planned:
            env[name] = planned[name]
    if "OMPI_COMM_WORLD_LOCAL_RANK" in planned:
        env["OMPI_COMM_WORLD_NODE_RANK"] = planned["OMPI_COMM_WORLD_LOCAL_RANK"]
    for name in (PYTHON, STARTER):
        env.pop(name, None)
    return env


def words_by_rank(log):
    """What MPI said in mpirun's log of ranks that it aborted: {rank: text}.

    It says so there and not in the rank's own log:

        [HOST:PID] *** An error occurred in MPI_Recv
        [HOST:PID] *** reported by process [JOB,RANK]
        [HOST:PID] *** MPI_ERR_TRUNCATE: message truncated
    """
    found = {}
    said, rank = [], None
    for line in log.split("\n") + [""]:
        words = _ABORT_LINE.match(line)
        is_new = words is None or words.group(1).startswith("An error occurred")
        if is_new and said:
            if rank is not None:
                found.setdefault(rank, ": ".join(said))
            said, rank = [], None
        if words is not None:
            whose = _ABORTED_RANK.search(words.group(1))
            if whose:
                rank = int(whose.group(1))
            elif not words.group(1).startswith(_ABORT_NOISE):
                said.append(words.group(1))
    return found


def aborts_by_rank(log):
    """{rank: its error code} of those that called MPI_Abort, as mpirun's log has it.

    Open MPI 4 says it in a sentence, 5 with the process, [[JOB,1],RANK], in a line of its own.
    """
    found = {}
    for words in _ABORTS.finditer(log):
        rank = words.group("world") if words.group("world") is not None else words.group("rank")
        found.setdefault(int(rank), int(words.group("code")))
    return found


def rank_that_left(log):
    """The rank that ended well, but before MPI did, for which mpirun has ended all; or None."""
    found = _LEFT_EARLY.search(log)
    return int(found.group(1)) if found else None


def leaving(rank, per_node):
    """That rank as a candidate for the job's error: the others only were ended for it."""
    message = (
        "The script ended with exit code 0, but without calling MPI's finalize (or init), as the "
        "other ranks do: mpirun then ends all. Let every rank make the same calls, and end with "
        "sys.exit, not with os._exit."
    )
    error = {"code": "UserError", "message": message, "rank": rank, "exit_code": 0}
    return {
        "rank": rank,
        "node": rank // per_node,
        "exit_code": None,  # its own says that all is well
        "ended_at": 0.0,  # before all others
        "ended_by_us": False,
        "error": error,
    }


def explain(node, exit_code, log, program="mpirun"):
    """The error of a job whose mpirun, or the daemon of another node, failed by itself."""
    who = program if node == 0 else "The daemon of mpirun on node %d" % node
    if exit_code < 0:
        said = "%s, which starts and joins the ranks, ended by signal %s. Was it killed?"
        message = said % (who, signal_name(-exit_code))
    else:
        message = "%s could not start the ranks (exit code %d)." % (who, exit_code)
        words = [line.strip() for line in log.split("\n")]
        words = [line for line in words if line and not set(line) <= {"-", "=", "*"}]
        if words:
            message = "%s It says: %s" % (message, " ".join(words)[-_KEEP_CHARS:])
    return {"code": "MpirunFailed", "message": message, "exit_code": exit_code}
