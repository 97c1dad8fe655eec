"""Has the data of a run where its script looks for it, before the ranks start.

A *download* is the script's own: private copies (shared blocks where the filesystem can), because
a script may write to what it downloaded. A *mount* is read-only: by FUSE, lazily, while something
must still be fetched; else the same view as links to the node's cache, which are plain files. Both
stand in the agent's folder; a `path_on_compute` is a link to it, but a relative download, which is
laid out in the working directory itself.

What was prepared is in `agent-NODE/inputs.json`, so that the next agent neither repeats it nor
leaves a mount behind.
"""

import collections
import io
import json
import os
import shutil
import threading
import time
from urllib.parse import quote

from runyard_runtime import job_folder, layout, mounts, wire
from runyard_runtime.cache import Cache
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.layout import InputFailed
from runyard_runtime.mounting import Mount, MountFailed
from runyard_runtime.origins import Origins, files_of
from runyard_runtime.server_link import Refused, run_path

WORKERS = 8
_PROGRESS_SECONDS = 5.0
_PATIENCE = 5.0  # how long it is doubted that the server does not know an input
_STATE = "inputs.json"
_MOST_RESTARTS = 5  # of a mount that is lost again and again
_UNLIMITED = 1 << 62

# v1 forbids these as names of inputs: as variables they would break every program.
_NOT_VARIABLES = ("path", "ld_library_path", "user", "logname", "home", "pwd", "shell")


class Inputs:
    """The inputs of one node of a job. `values` has what each is to the script: its path."""

    def __init__(self, agent):
        self._agent = agent
        self._plan = agent.plan
        self._own = os.path.join(agent.own, "data")
        self._state_path = os.path.join(agent.own, _STATE)
        self._mounts = []
        self._links = []  # [path_on_compute, where it leads]
        self._cache = None
        self._origins = None
        self._closing = threading.Lock()
        self._closed = False
        self.values = {}

    def prepare(self, show_progress):
        """Have all of it in place, or found in place. InputFailed if that cannot be."""
        known = job_folder.read_json(self._state_path)
        if known is not None:
            self._take_over(known)
            return
        # What an agent left that was killed here.
        for point in mounts.clear(self._own):
            raise InputFailed("The mount %s of an earlier agent cannot be taken away." % point)
        shutil.rmtree(self._own, ignore_errors=True)
        try:
            for one in self._plan["inputs"]:
                self.values[one["name"]] = self._prepare_one(one, show_progress)
            self._save()
        except OSError as error:
            raise InputFailed("The inputs cannot be laid out: %s." % (error.strerror or error))
        finally:
            if self._cache is not None:
                self._cache.make_room()
                self._origins.close()

    def look_after(self):
        """Start a mount again whose process was lost."""
        with self._closing:
            lost = [mount for mount in self._mounts if not mount.is_served() and not self._closed]
            for mount in lost:
                self._restart(mount)

    def has_mounts(self):
        """True if something must be looked after."""
        return bool(self._mounts)

    def close(self):
        """Take mounts and links away: the ranks are over."""
        with self._closing:
            self._closed = True
            for mount in self._mounts:
                mount.end()
            mounts.clear(self._own)
        for path, target in self._links:
            try:
                if os.readlink(path) == target:
                    os.unlink(path)
            except OSError:
                pass  # it is not ours any more

    def _restart(self, mount):
        if mount.restarts >= _MOST_RESTARTS:
            return
        mount.restarts += 1
        self._agent.note("warning: the mount of input %r was lost; again" % mount.name)
        try:
            mount.restart(time.sleep)
            self._save()
        except (MountFailed, OSError) as error:  # it is looked after again in a while
            self._agent.note("warning: input %r cannot be mounted: %s" % (mount.name, error))

    def _take_over(self, known):
        self.values = known["values"]
        self._links = known["links"]
        self._mounts = [Mount.found(one) for one in known["mounts"]]
        self.look_after()

    def _save(self):
        known = {
            "values": self.values,
            "links": self._links,
            "mounts": [mount.note() for mount in self._mounts],
        }
        job_folder.write_atomically(self._state_path, json.dumps(known).encode("utf-8"))

    def _prepare_one(self, one, show_progress):
        name = one["name"]
        if one["mode"] == "direct":
            return one.get("dataset") or ""
        resolved = self._resolve(name)
        try:
            files = [file._replace(path=layout.safe(file.path)) for file in files_of(resolved)]
        except (layout.LayoutFailed, TypeError, KeyError) as error:
            raise InputFailed("Input %r: %s" % (name, error))
        own = os.path.join(self._own, quote(name, safe=" ") or "_")
        place, target = self._place(one, own)
        private = one["mode"] == "download"
        try:
            if private or not self._mount(one, files, resolved, target):
                self._lay_out(name, files, target, private, one.get("overwrite"), show_progress)
        except FetchFailed as error:
            raise InputFailed("Input %r: %s" % (name, error))
        return os.path.join(place, files[0].path) if resolved.get("single") and files else place

    def _resolve(self, name):
        """Ask the server for the files of an input."""
        answer = io.BytesIO()
        path = run_path(self._plan["run_id"], "inputs") + "/" + quote(name, safe="")
        try:
            self._agent.link().download(path, answer, self._agent.pause, _PATIENCE)
            return json.loads(answer.getvalue().decode("utf-8"))
        except Refused as error:
            raise InputFailed("Input %r cannot be had: %s." % (name, error))
        except ValueError:
            raise InputFailed("Input %r cannot be had: the server's answer is no JSON." % name)

    def _place(self, one, own):
        """(the path that the script gets, where the files go)."""
        wanted = one.get("path_on_compute")
        if not wanted:
            return own, own
        work = os.path.join(self._agent.folder, wire.WORK_DIR)
        path = os.path.normpath(os.path.join(work, wanted))
        if not os.path.isabs(wanted) and not (path + os.sep).startswith(work + os.sep):
            raise InputFailed(
                "Input %r: path_on_compute=%r leads out of the working directory."
                % (one["name"], wanted)
            )
        is_own = os.path.isdir(path) and not os.path.islink(path)
        if one["mode"] == "download" and (not os.path.isabs(wanted) or is_own and os.listdir(path)):
            return path, path
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.islink(path) and not os.path.exists(path):
                os.unlink(path)  # of a job that is gone
            elif is_own:
                os.rmdir(path)
            os.symlink(own, path)
        except OSError as error:
            self._agent.note(
                "warning: input %r cannot be at %s (%s), it is at %s"
                % (one["name"], wanted, error.strerror, own)
            )
            return own, own
        self._links.append([path, own])
        return path, own

    def _mount(self, one, files, resolved, target):
        """True if it was mounted; False if it is to be laid out of the cache."""
        mounter = self._plan.get("mounter")
        if not mounter or not files:
            return False
        cache = self._open_cache()
        if all(cache.has(file) for file in files):
            return False  # plain files are better than a mount
        mount = Mount(one["name"], target, mounter, self._agent.own, self._agent.note_path())
        self._mounts.append(mount)
        try:
            mount.start(self._plan, resolved, self._agent.pause)
        except MountFailed as error:
            self._agent.note("input %r is laid out instead of mounted: %s" % (one["name"], error))
            self._mounts.remove(mount)
            return False
        self._agent.note("mounted input %r: %d files" % (one["name"], len(files)))
        return True

    def _lay_out(self, name, files, target, private, overwrite, show_progress):
        cache = self._open_cache()
        if target.startswith(self._own + os.sep):
            shutil.rmtree(target, ignore_errors=True)
        for folder in sorted({os.path.dirname(file.path) for file in files} | {""}):
            os.makedirs(os.path.join(target, folder), exist_ok=True)
        job = _Job(cache, files, target, private, overwrite)

        def show(text):
            show_progress("input %r: %s" % (name, text))

        job.run(lambda: self._agent.pause(0), show)
        self._agent.note("input %r: %s" % (name, job.summary()))

    def _open_cache(self):
        if self._cache is None:
            plan, agent = self._plan, self._agent
            self._origins = Origins(plan, agent.is_wanted)
            folder = plan.get("cache") or os.path.join(agent.own, "cache")
            limit = plan.get("cache_bytes") or _UNLIMITED
            try:
                self._cache = Cache(folder, limit, self._origins, plan["run_id"])
            except OSError as error:
                raise InputFailed("The cache %s cannot be used: %s." % (folder, error.strerror))
        return self._cache


class _Job:
    """Files being laid out by several threads."""

    def __init__(self, cache, files, target, private, overwrite):
        self._cache = cache
        self._files = files
        self._target = target
        self._private = private
        self._overwrite = overwrite
        self._waiting = collections.deque(files)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._running = 0
        self._error = None
        self._began = time.monotonic()
        self._done = 0
        self._fetched = 0
        self._bytes = 0

    def run(self, check, show):
        """Until all is there. `check()` may raise to end it, `show(text)` tells how far it is."""
        threads = [
            threading.Thread(target=self._work, name="inputs", daemon=True)
            for _ in range(min(WORKERS, len(self._files)))
        ]
        self._running = len(threads)
        if not threads:
            return
        for thread in threads:
            thread.start()
        shown = time.monotonic()
        while not self._over.wait(0.1):
            check()
            if time.monotonic() - shown >= _PROGRESS_SECONDS:
                shown = time.monotonic()
                show(self._progress())
        if self._error is not None:
            raise self._error
        for thread in threads:
            thread.join()  # the agent forks afterwards, and must be alone

    def summary(self):
        """What was done, for the log."""
        seconds = time.monotonic() - self._began
        return "%d files laid out in %.1f s, %s fetched" % (
            len(self._files),
            seconds,
            amount(self._bytes) if self._bytes else "nothing",
        )

    def _progress(self):
        total = sum(max(file.size, 0) for file in self._files)
        rate = self._bytes / max(time.monotonic() - self._began, 0.001)
        return "%d of %d files, %s fetched of at most %s, %s/s" % (
            self._done,
            len(self._files),
            amount(self._bytes),
            amount(total),
            amount(rate),
        )

    def _work(self):
        try:
            while self._error is None:
                try:
                    file = self._waiting.popleft()
                except IndexError:
                    return
                self._put(file)
                self._done += 1
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self._error = self._error or error
            self._over.set()
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._over.set()

    def _put(self, file):
        path = os.path.join(self._target, file.path)
        if os.path.lexists(path) and not self._overwrite and not self._is_same(file, path):
            raise FetchFailed(
                "%r cannot be laid out." % file.path,
                "%s exists already and has another content." % path,
                "Choose another path_on_compute, or say overwrite=True.",
            )
        self._cache.lay(file, path, self._private, self._arrived)

    def _is_same(self, file, path):
        import filecmp

        place = self._cache.ensure(file, self._arrived)
        return os.path.isfile(path) and filecmp.cmp(place, path, shallow=False)

    def _arrived(self, count):
        with self._lock:
            self._bytes += count


def variables(inputs, values):
    """The variables that tell a script of its inputs. Pure."""
    found, listed = {}, []
    for one in inputs:
        value = values.get(one["name"], "")
        if one["name"].lower() not in _NOT_VARIABLES:
            found[one["name"]] = value
        found[wire.DATA_REFERENCE + one["name"]] = value
        if not one.get("reference"):
            listed.append("%s:%s" % (one["name"], one["mode"].capitalize()))
    if listed:
        found[wire.DATASET_VARIABLES] = ",".join(listed)
    return found


def amount(count):
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return "%.3g %s" % (count, unit)
        count /= 1000.0
    return "%.3g GB" % count
