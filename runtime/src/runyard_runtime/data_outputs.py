"""Folders that a run writes and that are kept in a datastore (OutputFileDatasetConfig)."""

import os
import re
from urllib.parse import quote

from runyard_runtime import wire
from runyard_runtime.outputs import Outputs

FOLDER = "data-outputs"  # below the job folder


class DataOutputs:
    """The output folders of a job: made before the ranks start, uploaded by the node that keeps."""

    def __init__(self, plan, folder, note):
        self._plan = plan
        self._note = note
        self._keepers = []
        self.values = {}
        for one in plan.get("outputs") or ():
            place = _place(one, folder)
            os.makedirs(place, exist_ok=True)
            self.values[one["name"]] = place
            names = _Names(plan, one, note)
            keeper = Outputs(plan["run_id"], place, note, "", names.say, _chooser(one))
            self._keepers.append((one, keeper))

    def checkpoint(self, link):
        """Upload what is finished of the mounted ones, while the ranks run."""
        for one, keeper in self._keepers:
            if one.get("mode") != "upload":
                keeper.upload(link, keeper.pending(only_stable=True))

    def keep_again(self):
        """Have all of it pending, also what was uploaded."""
        for _, keeper in self._keepers:
            keeper.keep_again()

    def pending(self):
        """True if something is to be uploaded."""
        return any(keeper.pending() for _, keeper in self._keepers)

    def upload(self, link):
        """Upload all of it, after the ranks."""
        for one, keeper in self._keepers:
            keeper.upload(link, keeper.pending())
            said = (one["name"], keeper.kept, one["datastore"])
            self._note("output %r: kept %d files in datastore %r" % said)


class _Names:
    """Says under which paths of the datastore contents are kept."""

    def __init__(self, plan, one, note):
        self._note = note
        workspace, datastore = (
            quote(part, safe="") for part in (plan["workspace"], one["datastore"])
        )
        self._path = "/api/v1/workspaces/%s/datastores/%s/files" % (workspace, datastore)
        self._below = expand(one["path"], plan["run_id"], one["name"])
        # What is under the run's own id is the run's own, also from an earlier attempt.
        mine = "{run-id}" in one["path"] or one.get("mode") != "upload"
        self._keeps_old = not one.get("overwrite") and not mine
        self._old = None

    def say(self, link, rows):
        """Name the contents of these files; those that must not be replaced are left out."""
        rows = [[self._below + name, digest, size, mode] for name, digest, size, mode in rows]
        if self._keeps_old:
            rows = self._without_old(link, rows)
        if rows:
            link.call_json("POST", self._path, rows)

    def _without_old(self, link, rows):
        if self._old is None:
            prefix = "?prefix=" + quote(self._below, safe="")
            listed = link.call_json("GET", self._path + prefix) or []
            self._old = {one["path"] for one in listed}
        for row in rows:
            if row[0] in self._old:
                self._note("warning: %r exists already and is not replaced" % row[0])
        return [row for row in rows if row[0] not in self._old]


def variables(outputs, values):
    """The variables that tell a script of its output folders. Pure."""
    found = {}
    for one in outputs:
        found[one["name"]] = found[wire.DATA_REFERENCE + one["name"]] = values[one["name"]]
    if found:
        found[wire.FILE_OUTPUTS] = ";".join(one["name"] for one in outputs)
    return found


def expand(path, run_id, name):
    """The folder in the datastore, with a slash at its end unless it is the root. Pure."""
    path = path.replace("{run-id}", run_id).replace("{output-name}", name).strip("/")
    return path + "/" if path else ""


def matcher(globs):
    """A function that tells whether a path matches a pattern; `**` spans folders. Pure."""
    parts = "|".join(_expression(glob) for glob in globs)
    whole = re.compile(r"(?:%s)\Z" % parts, re.DOTALL)
    return lambda path: whole.match(path) is not None


def _expression(glob):
    found = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob.lstrip("/")):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        found.append(known.get(part, re.escape(part)))
    return "".join(found)


def _chooser(one):
    return matcher(one["globs"]) if one.get("globs") else None


def _place(one, folder):
    wanted = one.get("path_on_compute")
    if wanted:
        return os.path.normpath(os.path.join(folder, wire.WORK_DIR, wanted))
    return os.path.join(folder, FOLDER, quote(one["name"], safe=" "))
