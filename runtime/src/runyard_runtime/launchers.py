"""How the processes of a job are laid over its nodes, and what each is told. Pure.

    rows = LAUNCHERS["mpi"].rows(launcher, hosts, shared)

A new launcher is one function and one row of `LAUNCHERS`. The function gets what the plan says of
the launcher, the hosts in the order of the nodes, and `shared`: a path that all nodes see and
nobody has used yet, or None where nodes share no folder. It returns a `Row` for every process of
the job, ordered by rank, the same on every node.
"""

import collections
import json

# A node as others reach it. `ports` are reserved for the job, as many as `ports` below asks for.
Host = collections.namedtuple("Host", "address hostname ports")

# A process. `name` is the end of its log's name, "" for a lone one; `serves` says that it never
# ends by itself, so that the job need not wait for it.
Row = collections.namedtuple("Row", "node rank local_rank name env serves")

# rows: see above. ports: f(launcher, node), how many the node needs. gpus: f(ids, row, rows), which
# of its node's GPUs a process sees; `ids` is None where nobody knows them, and so may the result.
# restarts: its processes are started again when they end, once they were ready; see `ranks`.
Launcher = collections.namedtuple("Launcher", "rows ports gpus restarts")

WORKER, SERVER = "worker", "ps"
SERVICE = "service"  # the launcher whose processes are started again when they end


class CannotLaunch(ValueError):
    """The processes of the job cannot be laid out; the text says why."""


class UnknownLauncher(CannotLaunch):
    """The plan asks for a launcher that this runtime does not have."""


class LauncherMismatch(CannotLaunch):
    """The plan's launcher asks for what its nodes do not give, or for nonsense."""


def find(launcher):
    """The row of the table for a plan's `launcher`."""
    kind = launcher.get("kind", "single")
    if kind not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        raise UnknownLauncher("There is no launcher '%s'; this runtime has: %s." % (kind, known))
    return LAUNCHERS[kind]


def _single(launcher, hosts, shared):
    """One process, on the first node."""
    return [Row(0, 0, 0, "", {}, False)]


def _service(launcher, hosts, shared):
    """Equal processes on the first node, which have nothing to tell each other."""
    count = _count(launcher, "processes_per_node", 1)
    name = str if count > 1 else (lambda rank: "")
    return [Row(0, rank, rank, name(rank), {}, False) for rank in range(count)]


def _mpi(launcher, hosts, shared):
    """The variables that MPI's own launchers set, and v1's around them.

    A script that only reads them finds its place also where no MPI is installed.
    """
    hosts, per_node, master, port = _even(launcher, hosts)
    addresses = [host.address for host in hosts]
    common = {
        "AZ_BATCH_MASTER_NODE": "%s:%d" % (master, port),
        "AZ_BATCHAI_MPI_MASTER_NODE": master,
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": master,
        "AZ_BATCH_HOST_LIST": ",".join(addresses),
        "AZ_BATCH_NODE_LIST": ";".join(addresses),
        # Many scripts give torch.distributed MPI's ranks and let it find the rest.
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
    }
    size = len(hosts) * per_node

    def own(node, rank, local):
        return {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": size,
            "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": per_node,
            "PMI_RANK": rank,  # these four as Intel's MPI sets them
            "PMI_SIZE": size,
            "MPI_LOCALRANKID": local,
            "MPI_LOCALNRANKS": per_node,
            "AZUREML_CR_NODE_RANK": node,
        }

    return _rows_of(len(hosts), per_node, common, own)


def _pytorch(launcher, hosts, shared):
    """The variables of both families of scripts: v1's first (init method and task), torchrun's."""
    hosts, per_node, master, port = _even(launcher, hosts)
    size = len(hosts) * per_node
    method = "file://" + shared if shared else "tcp://%s:%d" % (master, port)
    common = {
        "AZ_BATCHAI_PYTORCH_INIT_METHOD": method,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(per_node),
    }

    def own(node, rank, local):
        return {
            "AZ_BATCHAI_TASK_INDEX": rank,
            "RANK": rank,
            "LOCAL_RANK": local,
            "NODE_RANK": node,
            "AZUREML_CR_NODE_RANK": node,
        }

    return _rows_of(len(hosts), per_node, common, own)


def _tensorflow(launcher, hosts, shared):
    """TF_CONFIG: every task knows all others. Workers come first, then parameter servers."""
    hosts = _nodes_of(launcher, hosts)
    tasks = _tasks(launcher)
    cluster = {}
    for kind, _, node, local in tasks:
        address = "%s:%d" % (hosts[node].address, _port(hosts, node, local))
        cluster.setdefault(kind, []).append(address)  # no empty "ps": TensorFlow would refuse it
    rows = []
    for rank, (kind, index, node, local) in enumerate(tasks):
        task = {"type": kind, "index": index}
        config = {"cluster": cluster, "task": task, "environment": "cloud"}
        env = {
            "TF_CONFIG": json.dumps(config),
            "AZ_BATCHAI_TASK_TYPE": kind,
            "AZ_BATCHAI_TASK_INDEX": str(index),
            "AZUREML_CR_NODE_RANK": str(node),
        }
        name = "%s_%d" % (kind, index) if len(tasks) > 1 else ""
        rows.append(Row(node, rank, local, name, env, kind == SERVER))
    return rows


def _tasks(launcher):
    """[(kind, index, node, how many tasks the node had before)], ordered by rank."""
    nodes = _count(launcher, "nodes", 1)
    workers = _count(launcher, "workers", 1)
    servers = _count(launcher, "parameter_servers", 0)
    before = [0] * nodes
    tasks = []
    for kind, count in ((WORKER, workers), (SERVER, servers)):
        for index in range(count):
            node = index % nodes
            tasks.append((kind, index, node, before[node]))
            before[node] += 1
    return tasks


def _rows_of(nodes, per_node, common, own):
    """Rows of equal ranks, numbered node by node."""
    rows = []
    for rank in range(nodes * per_node):
        node, local = divmod(rank, per_node)
        env = dict(common, **{name: str(value) for name, value in own(node, rank, local).items()})
        name = str(rank) if nodes * per_node > 1 else ""
        rows.append(Row(node, rank, local, name, env, False))
    return rows


def _even(launcher, hosts):
    """The hosts, ranks on each, and where rank 0 listens."""
    hosts = _nodes_of(launcher, hosts)
    per_node = _count(launcher, "processes_per_node", 1)
    return hosts, per_node, hosts[0].address, _port(hosts, 0, 0)


def _nodes_of(launcher, hosts):
    nodes = _count(launcher, "nodes", 1)
    if nodes > len(hosts):
        raise LauncherMismatch(
            "The launcher '%s' lays processes over %d nodes, but the job has %d. This is a fault "
            "of the platform or of its engine." % (launcher["kind"], nodes, len(hosts))
        )
    return hosts[:nodes]


def _port(hosts, node, number):
    if number >= len(hosts[node].ports):
        raise LauncherMismatch(
            "Node %d (%s) has %d ports for the job and needs more. This is a fault of the platform "
            "or of its engine." % (node, hosts[node].address, len(hosts[node].ports))
        )
    return hosts[node].ports[number]


def _count(launcher, name, least):
    value = launcher.get(name, least)
    if type(value) is not int or value < least:
        raise LauncherMismatch(
            "The launcher '%s' wants %s to be a whole number from %d on, not %r."
            % (launcher.get("kind"), name, least, value)
        )
    return value


def _no_ports(launcher, node):
    return 0


def _port_of_master(launcher, node):
    return 1 if node == 0 else 0


def _port_of_each_task(launcher, node):
    return sum(1 for task in _tasks(launcher) if task[2] == node)


def _all_of_node(gpus, row, rows):
    """Scripts choose by their local rank (`torch.cuda.set_device(local_rank)`), so all see all."""
    return gpus


def _own_share(gpus, row, rows):
    """TensorFlow takes every GPU it sees, and all their memory: a worker gets its own, if there
    are enough, and a parameter server none.
    """
    if row.serves:
        return []
    if not gpus:
        return gpus
    here = [one.rank for one in rows if one.node == row.node and not one.serves]
    place = here.index(row.rank)
    start, end = place * len(gpus) // len(here), (place + 1) * len(gpus) // len(here)
    return gpus[start:end] or [gpus[place % len(gpus)]]


LAUNCHERS = {
    "single": Launcher(_single, _no_ports, _all_of_node, False),
    "mpi": Launcher(_mpi, _port_of_master, _all_of_node, False),
    "pytorch": Launcher(_pytorch, _port_of_master, _all_of_node, False),
    "tensorflow": Launcher(_tensorflow, _port_of_each_task, _own_share, False),
    SERVICE: Launcher(_service, _no_ports, _own_share, True),
}
