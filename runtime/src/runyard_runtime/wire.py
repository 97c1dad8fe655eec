"""The contract between jobs and the platform: names of variables, files and events.

The server imports this module; nothing here imports anything of the platform.

The plan
--------
An agent is told all it needs in one JSON document, `plan.json` in its job folder:

    run_id, uid, attempt, workspace, experiment, subscription_id, resource_group
    url            the server's address when the plan was made
    address_file   a file whose JSON has the server's present `url`, or null
    token          the ranks' own token: reads the workspace, writes this run and its children, but
                   cannot report. Good until ten minutes after the run's end
    agent_token    the agent's: may do what the ranks' does, and report how the run goes. Never
                   passed on to the ranks
    nodes          how many nodes the job has
    hosts          their addresses, or null where the engine tells them at start
    launcher       {"kind": "single", "nodes": 1, "processes_per_node": 1, …}; see `launchers`
    board          how the agents of several nodes tell each other things: "folder", in the job
                   folder, which all nodes share (also if absent), or "server": they share nothing,
                   so each has a working directory of its own
    group_seconds  how long the first node waits for the others to come up, 300 if absent
    one_machine    true: all nodes are on one machine, so ranks meet on its loopback interface
    node_ids       the names of the nodes, in the order of their indices; absent: not known
    cores          [4, 4]: how many cores the ranks of each node may use; absent: all
    gpus           [["0"], ["1"]]: the ids of the GPUs of each node; [] is none, absent: all
    interpreter    the Python that runs the script; null where the node finds or makes it
    environment    what it is made from on a node that does not see the server's disk, see
                   `node_environment`; absent elsewhere. There `address_file`, `blobs` and `mounter`
                   are null, and what only the node knows is put in by `remote`: runtime, cache,
                   environments (the folder where they are made), packages (the node's own UV_* and
                   PIP_* variables)
    keep_folder    true: the engine removes the job folder of such a node, not its agent
    prefix         what stands before the ranks' commands, to run them in containers; [] or absent:
                   nothing. See `contained`
    remove         what ends and removes containers by name, when the job is over
    arguments      script mode: the script, then its arguments; command mode: the command
    is_command     whether `arguments` is run as it is
    variables      {name: value}, added to every rank's environment
    runtime        the folder to put on PYTHONPATH (holds this package and the azureml shims)
    snapshot       [[path, digest, size, mode], …]
    blobs          a local folder of blobs (ab/cdef…), or null: fetch them from the server
    max_run_duration_seconds   or null
    grace_seconds  between SIGTERM and SIGKILL
    sample_seconds between two samples of CPU, memory and GPU use; 0: never
    srun           {"mpi": "pmix"}: Slurm's srun starts MPI's ranks, see `mpi_srun`; absent: mpirun
    watched        true: who started the agent tells it by a signal to stop, and then says why in
                   agent-N/why.json, {"error": {"code", "message"} or null}
    denied_seconds how long a server that does not know the run any more is doubted before the
                   ranks are ended, 300 if absent
    checkpoint_seconds  between two looks for new outputs while the job runs, 30 if absent
    restore        true: an earlier attempt failed; what it left in outputs/ and logs/ is put into
                   the working directory before the ranks start
    restarted_after  why the attempt before this one ended, in a line; absent: it is the first
    nice           how much the ranks yield to the rest of the machine, 5 if absent; 0: not

    inputs         what the run reads: [{"name", "mode", "path_on_compute", "dataset", "reference",
                   "overwrite"}, …]; `mode` is mount, download or direct, `dataset` an id or null,
                   `reference` whether it is a v1 DataReference (AZUREML_DATAREFERENCE_name).
                   The files are asked for at GET /api/v1/runs/ID/inputs/NAME
    outputs        what it writes: [{"name", "datastore", "path", "mode", "path_on_compute",
                   "overwrite", "globs"}, …]
    cache          the node's folder of fetched data, shared by all jobs, or null
    cache_bytes    how large it may grow
    mounter        the command that mounts an input: it gets four more arguments, see
                   runyard.data.mount; or null: inputs are laid out from the cache
    fetching       {"mirrors": {prefix: replacement}, "allow_private": bool, "max_bytes": N or null}

The job folder
--------------
    plan.json
    work/                 the ranks' working directory; outputs/ and logs/ are kept. Where nodes
                          share no folder, each keeps its own: of outputs of the same name the first
                          node's counts in the end, logs/ of the others become logs/node-N/
    events/RANK.jsonl     what the ranks log, one JSON object a line
    azureml-logs/         what the ranks print: 70_driver_log.txt, or one file a rank:
                          70_driver_log_0.txt, TensorFlow's …_worker_0.txt and …_ps_0.txt;
                          also the agents' own account, 55_azureml-execution.txt, …_1.txt
    rendezvous-ATTEMPT    the file through which PyTorch's ranks may find each other
    board.jsonl           what the agents of several nodes tell each other, see `board`
    agent-NODE/           lock, log and state of the agent on that node

Events
------
One JSON object a line, appended with one write. Keys:

    e   kind: one of EVENT_KINDS
    t   seconds since the epoch
    n   name of the metric or tag
    v   value; for a metric NaN and the infinities are {"f": "nan" | "inf" | "-inf"} wherever
        they stand, because JSON has no such numbers
    k   metric kind (runyard.domain.metrics.MetricKind); absent: scalar
    s   step; absent: none
    r   the run it belongs to; absent: the run of the job
"""

import json
import re

PROTOCOL = 1

# Variables of every job process.
RUN_ID = "AZUREML_RUN_ID"
RUN_TOKEN = "AZUREML_RUN_TOKEN"
RUN_TOKEN_EXPIRY = "AZUREML_RUN_TOKEN_EXPIRY"
SUBSCRIPTION = "AZUREML_ARM_SUBSCRIPTION"
RESOURCE_GROUP = "AZUREML_ARM_RESOURCEGROUP"
WORKSPACE = "AZUREML_ARM_WORKSPACE_NAME"
EXPERIMENT = "AZUREML_ARM_PROJECT_NAME"
EXPERIMENT_ID = "AZUREML_EXPERIMENT_ID"
SERVICE_ENDPOINT = "AZUREML_SERVICE_ENDPOINT"
OUTPUT_DIRECTORY = "AZUREML_OUTPUT_DIRECTORY"
LOG_DIRECTORY = "AZUREML_LOGDIRECTORY_PATH"
SECONDARY_INSTANCE = "AZUREML_SECONDARY_INSTANCE"
DATA_REFERENCE = "AZUREML_DATAREFERENCE_"  # + name: the path of a v1 DataReference
DATASET_VARIABLES = "AZUREML_DATASET_ENVIRONMENT_VARS"  # name:Mode,name:Mode
FILE_OUTPUTS = "AZUREML_DATASET_FILE_OUTPUTS"  # name;name

# Arguments that stand for the path of an input or output: "DatasetConsumptionConfig:name".
INPUT_ARGUMENT = "DatasetConsumptionConfig:"
OUTPUT_ARGUMENT = "DatasetOutputConfig:"

JOB_DIR = "RUNYARD_JOB_DIR"  # the job folder on this node
JOB_KEY = "RUNYARD_JOB_KEY"  # marks every process of the job, so that none is left behind
ADDRESS_FILE = "RUNYARD_ADDRESS_FILE"
RANK = "RUNYARD_RANK"
SOURCE_NAME = "RUNYARD_SOURCE_NAME"  # of a service: what its source folder is called at home
ATTEMPT = "RUNYARD_ATTEMPT"  # 1, or more where a run that failed was started again

# Names inside the job folder.
PLAN_FILE = "plan.json"
WORK_DIR = "work"
EVENTS_DIR = "events"
CONTROL_LOG = "azureml-logs/55_azureml-execution.txt"
BUILD_LOG = "azureml-logs/20_image_build_log.txt"

EVENT_KINDS = ("metric", "tag", "untag")

# A run's token is good until the run is over; v1 wants a time: 2100-01-01.
NEVER = 4102444800

# No chunk of a stream is larger, and no line of an event file longer: what is, is left out.
CHUNK_LIMIT_BYTES = 32 << 20

# Kinds of a shipped stream.
LOG_STREAM = "log"
EVENT_STREAM = "events"

# Phases an agent reports.
STARTED = "started"  # the ranks are running
ENDED = "ended"  # the ranks are over; outputs are being kept
FINISHED = "finished"  # everything is shipped
FAILED = "failed"  # the agent could not do its work
ALIVE = "alive"  # nothing new: the agent lives


def events_file(rank):
    """Where a rank appends its events, below the job folder."""
    return "%s/%s.jsonl" % (EVENTS_DIR, rank)


def ready_file(rank):
    """What a process of a service makes when it is ready to serve, below the job folder."""
    return "ready-%s" % rank


def agent_dir(node):
    """Where the agent of a node keeps its state, below the job folder."""
    return "agent-%d" % node


def driver_log(name=""):
    """The log of what a rank prints: v1's name, with the rank's ("0", "ps_0") where it has one."""
    return "azureml-logs/70_driver_log%s.txt" % ("_" + name if name else "")


_TASK = re.compile(r"_((?:worker|ps)_\d+)\.txt$")


def task_name(log):
    """What the process of that log is called, "worker_1"; None for one that has only a rank."""
    found = _TASK.search(log)
    return found.group(1) if found else None


def logs_folder(node):
    """Where the server keeps the files of work/logs of a node: of the first under their own names.

    Of others only where nodes share no folder; there two of them may write the same name.
    """
    return "logs/node-%d" % node if node else "logs"


def is_log_of(path, node, plan):
    """Whether a kept log is one of that node's, where nodes share no folder."""
    others = range(1, plan.get("nodes") or 1) if plan.get("board") == "server" else ()
    theirs = tuple(logs_folder(one) + "/" for one in others if one != node)
    return path.startswith(logs_folder(node) + "/") and not path.startswith(theirs)


def mpirun_log(node):
    """What a node's mpirun, or the daemon that mpirun has there, prints."""
    return "azureml-logs/60_mpirun_log%s.txt" % ("_%d" % node if node else "")


_NOT_JSON = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


# How numbers and arrays of numpy, torch and tensorflow become plain, without importing these.
_CONVERSIONS = ("tolist", "item", "numpy")


def to_json_value(value):
    """`value` with NaN and the infinities written as {"f": …}; other odd types as their text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        value = float(value)  # old numpy warns when it compares its own NaN
        if value != value:
            return {"f": "nan"}
        if value in (float("inf"), float("-inf")):
            return {"f": "inf" if value > 0 else "-inf"}
        return value
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(item) for item in value]
    for name in _CONVERSIONS:
        convert = getattr(value, name, None)
        if callable(convert):
            plain = convert()
            if type(plain) is not type(value):  # numpy's long double gives itself
                return to_json_value(plain)
    if hasattr(value, "__float__") and not isinstance(value, complex):  # decimals, fractions
        return to_json_value(float(value))
    return str(value)


def from_json_value(value):
    """The inverse of `to_json_value` for NaN and the infinities."""
    if isinstance(value, dict):
        if len(value) == 1 and value.get("f") in _NOT_JSON:
            return _NOT_JSON[value["f"]]
        return {key: from_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return value


def encode_event(event):
    """One line of an event file, newline included."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=True) + "\n"
