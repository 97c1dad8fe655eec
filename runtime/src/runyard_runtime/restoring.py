"""Gives a new attempt what earlier ones left: the kept files of outputs/ and logs/.

A log of the user's that is put back goes on as the same stream: its file has all the bytes that
the server has, and the shipper is told so (see `shipping`). What the platform itself writes begins
anew with each attempt, after what is there; a line in the driver logs says where.
"""

import hashlib
import json
import os
import re

from runyard_runtime import job_folder, layout, wire
from runyard_runtime.outputs import signature
from runyard_runtime.server_link import Refused, run_path
from runyard_runtime.shipping import STATE_FILE

_DONE = "restored.json"
_PATIENCE = 5.0  # how long it is doubted that the server lacks something it has listed
_ROTATED = re.compile(r"(.+)~([0-9]+)\Z")


def restore(agent):
    """Put back what earlier attempts kept, once, before a rank starts.

    LayoutFailed if that is not possible: a script that finds no checkpoint where it left one
    would begin anew and overwrite it.
    """
    done = os.path.join(agent.folder, _DONE)
    if job_folder.read_json(done) is not None:
        return
    work = os.path.join(agent.folder, wire.WORK_DIR)
    outputs, signatures = _list(agent, "outputs/"), {}
    for known in outputs:
        if known.get("digest"):
            _put(agent, work, known)
            signatures[known["path"]] = signature(os.path.join(work, known["path"]))
    logs = newest_logs(
        known["path"]
        for known in _list(agent, "logs/")
        if wire.is_log_of(known["path"], agent.node, agent.plan)
    )
    _keep_state(agent, {name: _put_log(agent, work, name, logs[name]) for name in sorted(logs)})
    if outputs or logs:
        text = "put back %d outputs and %d logs of earlier attempts"
        agent.note(text % (len(outputs), len(logs)))
    job_folder.write_atomically(done, json.dumps({"outputs": signatures}).encode("utf-8"))


def restored(agent):
    """{path: signature} of the outputs that were put back, as `outputs` knows them."""
    known = job_folder.read_json(os.path.join(agent.folder, _DONE)) or {}
    return {path: tuple(one) for path, one in known.get("outputs", {}).items() if one}


def announce(attempt, logs, why=None):
    """Begin ranks' logs with the line that parts them from earlier attempts'. Never fails.

    `why` the attempt before ended stands above it.
    """
    text = "\n==== attempt %d ====\n" % attempt
    if why:
        text = "\n==== attempt %d failed: %s%s" % (attempt - 1, why, text)
    for log in logs:
        try:
            # Not where the rank has begun already: an agent that takes over comes here, too.
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError:
            continue
        try:
            os.write(handle, text.encode("utf-8", "replace"))
        except OSError:
            pass  # the disk is full; the rank has troubles enough
        finally:
            os.close(handle)


def newest_logs(paths):
    """{name of a log: its last generation}; one that was rotated has "~2", "~3" … beside it."""
    known, newest = set(paths), {}
    for path in known:
        found = _ROTATED.match(path)
        if found and found.group(1) in known:
            name, generation = found.group(1), int(found.group(2))
        else:
            name, generation = path, 1
        newest[name] = max(newest.get(name, 1), generation)
    return newest


def _list(agent, prefix):
    path = run_path(agent.plan["run_id"], "files") + "?prefix=" + prefix
    try:
        found = agent.link().call_json("GET", path, patience=_PATIENCE)
    except Refused as error:
        raise layout.LayoutFailed("What earlier attempts left cannot be listed: %s." % error)
    return [known for known in found if known["path"].startswith(prefix)]


def _put(agent, work, known):
    def fetch(digest, stream):
        _download(agent, "/api/v1/blobs/" + digest, known["path"], stream)

    path, blobs = layout.safe(known["path"]), agent.plan.get("blobs")
    layout.put(os.path.join(work, path), path, known["digest"], 0o644, blobs, fetch)


def _put_log(agent, work, name, generation):
    """Put a log back; what its shipper has to know of it."""
    here = "logs" + name[len(wire.logs_folder(agent.node)) :]
    target = os.path.join(work, layout.safe(here))
    source = name if generation == 1 else "%s~%d" % (name, generation)
    path = run_path(agent.plan["run_id"], "files", source)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as stream:
            _download(agent, path, name, stream)
        with open(target, "rb") as stream:
            size, digest = _measure(stream)
        inode = os.stat(target).st_ino
    except OSError as error:
        raise layout.LayoutFailed("%r cannot be put back: %s." % (name, error.strerror or error))
    facts = {"base": 0, "generation": generation, "inode": inode}
    return dict(facts, restored={"size": size, "digest": digest})


def _download(agent, path, name, stream):
    try:
        agent.link().download(path, stream, agent.pause, _PATIENCE)
    except Refused as error:
        raise layout.LayoutFailed("%r cannot be put back: %s." % (name, error))


def _measure(stream):
    found, size = hashlib.sha256(), 0
    for piece in iter(lambda: stream.read(1 << 20), b""):
        found.update(piece)
        size += len(piece)
    return size, found.hexdigest()


def _keep_state(agent, states):
    if not states:
        return
    path = os.path.join(agent.own, STATE_FILE)
    known = job_folder.read_json(path) or {}
    known.update(states)
    try:
        job_folder.write_atomically(path, json.dumps(known).encode("utf-8"))
    except OSError as error:
        raise layout.LayoutFailed("The logs cannot be put back: %s." % (error.strerror or error))
