"""An agent on a node that shares no disk with the server: all it needs comes over HTTP.

An engine starts `python -S -E -c TEXT` on each node, where TEXT is `boot_text()`, with

    RUNYARD_NODE_URL       the server as the node reaches it
    RUNYARD_NODE_TOKEN     the agent's token: in the environment, never on a command line
    RUNYARD_NODE_RUN, RUNYARD_NODE_ATTEMPT, RUNYARD_NODE_KEY   which job; the key is the group's
    RUNYARD_NODE_INDEX     which node of it
    RUNYARD_NODE_RUNTIME   the digest of this package; a node that has it fetches nothing
    RUNYARD_NODE_FOLDER    where all is kept on the node, ~/.runyard-node if absent
    RUNYARD_NODE_PATIENCE  seconds in which a server that is away may come back, 900 if absent.
                           Once the plan is here, it is waited for without end
    RUNYARD_NODE_ENVIRONMENTS   where environments are made, FOLDER/environments if absent: a site
                           whose nodes share a folder makes each of them once
    RUNYARD_NODE_WATCHED   not empty: see the plan's `watched`
    RUNYARD_NODE_KEEP      further variables that ranks see: names or patterns, with blanks between
    RUNYARD_NODE_ACTION    "run" if absent; "end": end all processes of that node of the job, and
                           remove its folder

`variables(key, plan)` gives the first six. Several nodes may be on one machine, and their folders
in a home that all machines share: a node of a job has a folder of its own.

    FOLDER/runtime/DIGEST     this package
    FOLDER/environments/KEY   what jobs run on, see `node_environment`
    FOLDER/cache              fetched data
    FOLDER/jobs/KEY.INDEX/    the job folder of a node, as `wire` describes it
    FOLDER/jobs/KEY.INDEX.over   how that ended: {"exit_code"}; for a week

What no job has used for a while is removed, see `node_storage`.

A job folder is removed when all is on the server and it said so; else it stays, for the next agent
of that node. Plan key `keep_folder`: true where the engine removes it.

The exit status is the job's, with 128 + N for a signal N; `exit_code` undoes that. Those of `WORDS`
say that there was no agent: nothing of the job has run here, and another try may be better.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time

from runyard_runtime import (
    agent,
    boot,
    inherited,
    job_folder,
    node_storage,
    node_watch,
    processes,
    supervision,
    wire,
)

PREFIX = "RUNYARD_NODE_"
WORDS = {
    boot.UNREACHABLE: "the node cannot reach the server",
    boot.REFUSED: "the server refused the node",
    boot.NO_ROOM: "the node's folder cannot be written",
    boot.DAMAGED: "what the server sent makes no sense",
    agent.CRASHED: "the agent failed and has to be replaced",
}
# The codes of the errors of runs that end so: it was tried for long enough, or it is no use.
CODES = {
    boot.UNREACHABLE: "ServerUnreachable",
    boot.REFUSED: "NodeRefused",
    boot.NO_ROOM: job_folder.NODE_FULL,
    boot.DAMAGED: "NodeConfused",
}
_OURS = set(WORDS) | {node_watch.NO_PYTHON}
_KEEP_SECONDS = 7 * 86400.0  # of what tells that a job is over, and of folders nobody came back to
_OVER = ".over"
_LOOK_SECONDS = 1.0
_PACKAGES = ("UV_", "PIP_")  # how packages are found from this node; not for ranks


def boot_text():
    """The program for `python -S -E -c`."""
    with open(os.path.splitext(boot.__file__)[0] + ".py") as stream:
        return stream.read()


def variables(key, plan):
    """What every node of a job is told; its index has to be added. For engines, on the server."""
    from runyard_runtime import bundle

    told = {
        "URL": plan["url"],
        "TOKEN": plan["agent_token"],
        "RUN": plan["run_id"],
        "ATTEMPT": str(plan.get("attempt") or 1),
        "KEY": key,
        "RUNTIME": bundle.archive()[0],
    }
    return {PREFIX + name: value for name, value in told.items()}


def exit_status(code):
    """The exit status that says so: what a shell makes of a signal.

    A script may end with a code by which agents say that there was none: that is told as 1. The
    run knows the true one from the agent's report.
    """
    status = 128 - code if code < 0 else code
    return 1 if status in _OURS else status


def exit_code(status):
    """The job's exit code, from the exit status of its agent; a negative one is a signal."""
    return 128 - status if 128 < status < 128 + 65 else status


def is_lost(status):
    """True if the agent ended without an end of its job: another one may take over."""
    return status in WORDS


def main(folder, runtime, stops=()):
    """Be the agent of the node that the variables name; the exit status.

    `stops` is not empty if it was told to stop already.
    """
    try:
        return _main(folder, runtime, stops)
    except boot.Stop as stop:
        boot.say(stop.args[1])
        return stop.args[0]


def _main(folder, runtime, stops):
    packages = {name: os.environ[name] for name in os.environ if name.startswith(_PACKAGES)}
    told = {name[len(PREFIX) :]: os.environ[name] for name in os.environ if name.startswith(PREFIX)}
    # Ranks inherit what is left; the token is not for them.
    kept = inherited.clean(os.environ, (told.get("KEEP") or "").split())
    kept.setdefault("HOME", os.path.expanduser("~"))  # batch systems may give none; MPI needs one
    kept.setdefault("PATH", os.defpath)
    os.environ.clear()
    os.environ.update(kept)
    index = int(told["INDEX"])
    place = job_place(folder, told["KEY"], index)
    if told.get("ACTION") == "end":
        end(place)
        return 0
    known = job_folder.read_json(place + _OVER)
    if known is not None:
        return exit_status(known["exit_code"])
    try:
        _tidy(os.path.dirname(place))
        _write_plan(place, folder, told, stops, runtime=runtime, packages=packages)
        catch_stop(place, index, stops)
    except OSError as error:
        raise boot.no_room(error, folder)
    code = agent.main(place, index)
    while not code and _is_led_by_another(place, index):
        time.sleep(_LOOK_SECONDS)
        code = agent.main(place, index)
    node_storage.clear(folder, told.get("ENVIRONMENTS"))
    return code or _finish(place, index)


def job_place(folder, key, index):
    """The job folder of a node, below the folder where all is kept."""
    return os.path.join(folder, "jobs", "%s.%d" % (key, index))


def find_exit(place, index):
    """The exit code of a node's job that is over, or None."""
    own = os.path.join(place, wire.agent_dir(index), "exit.json")
    known = job_folder.read_json(own) or job_folder.read_json(place + _OVER)
    return None if known is None else int(known["exit_code"])


def clear(folder, node):
    """Remove what the killed processes of a node leave outside of the job's folder."""
    from runyard_runtime import contained, mounts, mpi_starter

    marker, own = processes.job_marker(folder), os.path.join(folder, wire.agent_dir(node))
    claims = [name for name in _listed(own) if name.startswith("rank-") and name.endswith(".json")]
    ranks = [name[len("rank-") : -len(".json")] for name in claims]
    plan = job_folder.read_json(os.path.join(folder, wire.PLAN_FILE)) or {}
    contained.remove(plan, marker, ranks + mpi_starter.containers([node]))
    mounts.clear(folder)
    mpi_starter.clear(marker, node)


def end(place):
    """End all processes of a node of a job at once, and remove its folder."""
    from runyard_runtime import mounts, mpi_starter

    marker = processes.job_marker(place)
    for name in _listed(place):
        known = job_folder.read_json(os.path.join(place, name, "pid"))
        if name.startswith("agent-") and known and processes.is_alive(known["pid"], known["start"]):
            processes.send(known["pid"], 9)  # first, or it would see its ranks fail
            mpi_starter.clear(marker, int(name[len("agent-") :]))
    processes.end_processes(lambda: set(processes.job_processes(marker)) - {os.getpid()}, 0)
    mounts.clear(place)
    shutil.rmtree(place, ignore_errors=True)


def catch_stop(place, index, stops):
    """Have a stop that comes before the agent listens wait for it in its folder."""
    path = os.path.join(place, wire.agent_dir(index), "state.json")

    def leave_word(*_):
        if not os.path.exists(path):
            word = json.dumps({"reason": supervision.STOPPED}).encode("utf-8")
            job_folder.write_atomically(path, word)

    os.makedirs(os.path.dirname(path), exist_ok=True)
    signal.signal(signal.SIGTERM, leave_word)
    if stops:
        leave_word()


def _is_led_by_another(place, index):
    """True if an agent that was started earlier still has the job: then this one waits for it."""
    own = os.path.join(place, wire.agent_dir(index))
    is_over = job_folder.read_json(os.path.join(own, "exit.json")) is not None
    return not is_over and os.path.exists(os.path.join(place, wire.PLAN_FILE))


def _write_plan(place, folder, told, stops, **known):
    """Have the plan in the job's folder; the server's, with what only the node knows."""
    path = os.path.join(place, wire.PLAN_FILE)
    plan = job_folder.read_json(path) or _fetch_plan(told, stops)
    plan.update(
        known,
        url=told["URL"].rstrip("/"),  # as it is reached from here
        watched=bool(told.get("WATCHED")),
        cache=os.path.join(folder, "cache"),
        environments=told.get("ENVIRONMENTS") or os.path.join(folder, "environments"),
        hosts=None,
        blobs=None,
        address_file=None,
    )
    os.makedirs(place, 0o700, exist_ok=True)
    job_folder.write_atomically(path, json.dumps(plan).encode("utf-8"))


def _fetch_plan(told, stops):
    from runyard_runtime.server_link import Refused, ServerLink, run_path

    seconds = float(told.get("PATIENCE") or boot.PATIENCE)
    patience = boot.Patience(told["URL"], seconds, stops)
    link = ServerLink(
        told["URL"], told["TOKEN"], patience=0, sleep=lambda _: patience.wait("no connection")
    )
    path = run_path(told["RUN"], "plan") + "?attempt=" + told["ATTEMPT"]
    try:
        plan = link.call_json("GET", path)
    except Refused as error:
        text = "the plan of this job cannot be had: %s" % boot.refusal(error.status, str(error))
        raise boot.Stop(boot.REFUSED, text)
    except ValueError as error:
        raise boot.Stop(boot.DAMAGED, "the plan of this job makes no sense: %s" % error)
    finally:
        link.close()
    if not isinstance(plan, dict) or plan.get("protocol", wire.PROTOCOL) != wire.PROTOCOL:
        text = "the plan of this job is for another version: this node has protocol %d"
        raise boot.Stop(boot.DAMAGED, text % wire.PROTOCOL)
    return plan


def _finish(place, index):
    """The exit status of a job that is over here; its folder goes if nothing in it is missed."""
    known = job_folder.read_json(os.path.join(place, wire.agent_dir(index), "exit.json"))
    known = known or job_folder.read_json(place + _OVER)
    if known is None:
        return agent.CRASHED  # its folder was removed
    plan = job_folder.read_json(os.path.join(place, wire.PLAN_FILE)) or {}
    if known.get("shipped") and not plan.get("keep_folder"):
        try:
            note = json.dumps({"exit_code": known["exit_code"]}).encode("utf-8")
            job_folder.write_atomically(place + _OVER, note)
            shutil.rmtree(place, ignore_errors=True)
        except OSError:
            pass  # a full disk: the folder tells the same
    return exit_status(known["exit_code"])


def _tidy(jobs):
    """Remove what is left of jobs that nobody has asked for in a while."""
    for name in _listed(jobs):
        path = os.path.join(jobs, name)
        newest = [path] + [os.path.join(path, below) for below in _listed(path)]
        try:
            age = time.time() - max(os.stat(one).st_mtime for one in newest)
            if age < _KEEP_SECONDS:
                continue
            if name.endswith(_OVER):
                os.unlink(path)
            elif not _is_at_work(path):
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # it went by itself


def _is_at_work(place):
    """True if a job is not over: here, or on another machine that has the same folder."""
    for name in _listed(place):
        try:
            with open(os.path.join(place, name, "lock"), "r+") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return True  # its agent holds it
    return bool(processes.job_processes(processes.job_marker(place)))


def _listed(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit("This is started by the text of `runyard_runtime.boot`.")
