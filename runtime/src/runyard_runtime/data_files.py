"""The files that a dataset leads to, fetched into a folder of the job, through the node's cache."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

from runyard_runtime import files, wire
from runyard_runtime.cache import Cache
from runyard_runtime.exceptions import UserErrorException, explain
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.job_folder import read_json
from runyard_runtime.origins import Origins, files_of

THREADS = 8


def fetch_all(job, resolved, folder, overwrite=True, private=True):
    """Write the files of a ResolvedData below a folder; their local paths, in order.

    `private`: copies that the script may write to; else links to the cache, where there is one.
    """
    found = files_of(resolved)
    targets = [local_path(folder, one.path) for one in found]
    there = [target for target in targets if os.path.lexists(target)]
    if there and not overwrite:
        raise UserErrorException(
            explain(
                "'%s' exists already." % there[0],
                fix="Choose another folder, or pass overwrite=True.",
            )
        )
    for target in targets:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    plan = _plan(job)
    origins = Origins(plan)
    try:
        put = _put(plan, origins, private)
        in_parallel(lambda pair: put(pair[0], pair[1]), list(zip(found, targets)))  # noqa: B905
    except FetchFailed as error:
        raise UserErrorException(explain(error.what, error.why, error.fix))
    finally:
        origins.close()
    return targets


def local_path(folder, path):
    """The path of a dataset's file below a folder; never anywhere else."""
    return os.path.join(os.path.abspath(folder), *files.artifact_name(path).split("/"))


def in_parallel(work, items):
    """The results of `work` on each, a few at a time; the first failure is raised."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(work, item) for item in items]
        try:
            return [one.result() for one in jobs]
        finally:
            for one in jobs:
                one.cancel()


def _put(plan, origins, private):
    """What puts a file at its target: out of the cache, or straight from its origin."""
    cache = None
    if plan.get("cache"):
        try:
            cache = Cache(
                plan["cache"], plan.get("cache_bytes") or 1 << 62, origins, plan["run_id"]
            )
        except OSError:
            pass  # not this process's to use: in a container, or as another user

    def put(file, target):
        if cache is not None:
            if os.path.lexists(target):
                os.unlink(target)
            cache.lay(file, target, private)
            return
        partial = "%s.%s.partial" % (target, uuid.uuid4().hex)
        try:
            with open(partial, "w+b") as stream:
                origins.fetch(file, stream)
            os.replace(partial, target)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    return put


def _plan(job):
    """What the job's plan says of data, for this process; if it cannot be read, nothing."""
    plan = read_json(os.path.join(job.folder, wire.PLAN_FILE)) or {}
    kept = {
        key: plan.get(key) for key in ("address_file", "blobs", "cache", "cache_bytes", "fetching")
    }
    return dict(kept, url=job.api.url, token=job.api.token, run_id=job.run_id)
