"""Keeps what a run leaves in ./outputs: contents by digest, names beside them."""

import hashlib
import os
import stat
import time

from runyard_runtime.server_link import FileBody, Refused, Unreadable, run_path

_PIECE = 1 << 20
_BATCH_FILES, _BATCH_BYTES = 200, 64 << 20
_STILL_SECONDS = 5.0  # who writes a file without a pause of so long is not done with it


class Outputs:
    """Uploads the files of a run's `outputs` folder, or another; what was uploaded as it is, once.

    `name(link, rows)` says which names the contents have, by default as the run's artifacts;
    `is_wanted(path)` says which files are kept.
    """

    def __init__(self, run_id, work, note, top="outputs", name=None, is_wanted=None):
        self._run_id = run_id
        self._work = os.path.realpath(work)
        self._note = note
        self._top = top
        self._say_names = name or self._name_artifacts
        self._is_wanted = is_wanted or (lambda path: True)
        self._noted = set()
        self._uploaded = {}  # path → signature of what the server has
        self._restored = {}  # path → signature of what was put back, not written, here
        self._seen = {}  # path → signature at the last look
        self.kept = 0

    def take_as_kept(self, signatures):
        """Do not upload files that were put back, {path: signature}, unless they change."""
        self._restored = dict(signatures)
        self._uploaded = dict(signatures)

    def written(self):
        """Every file that was written here, also those that were uploaded."""
        return [
            (name, place)
            for name, place in sorted(self._walk())
            if signature(place) not in (None, self._restored.get(name))
        ]

    def keep_again(self):
        """Have everything that was written here pending, also what was uploaded."""
        self._uploaded = dict(self._restored)

    def pending(self, only_stable=False):
        """Files that changed since they were uploaded; `only_stable`: and nobody writes them now.

        A list of (name below the work folder, where it is on disk). A file that is written again
        and again, as a checkpoint is, must not have to stay the same from one look to the next.
        """
        found = dict(self._walk())
        still = (time.time() - _STILL_SECONDS) * 1e9
        before, self._seen = self._seen, {name: signature(place) for name, place in found.items()}
        return [
            (name, found[name])
            for name, known in sorted(self._seen.items())
            if known is not None
            and known != self._uploaded.get(name)
            and (not only_stable or known == before.get(name) or known[2] <= still)
        ]

    def upload(self, link, files):
        """Upload these of `pending`, a batch at a time."""
        batch, size = [], 0
        for name, place in files:
            entry = self._read(name, place)
            if entry is None:
                continue
            batch.append(entry)
            size += entry[2]
            if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
                self._send(link, batch)
                batch, size = [], 0
        if batch:
            self._send(link, batch)

    def _walk(self):
        """(name, place) of every file below the top; links only as far as they stay inside."""
        waiting, links, visited = [self._top], [], set()
        while waiting or links:
            # Links last: a folder is kept under its own name, and once.
            folder = waiting.pop() if waiting else links.pop()
            real = os.path.realpath(os.path.join(self._work, folder))
            if real in visited or not self._inside(real):
                continue
            visited.add(real)
            try:
                names = sorted(os.listdir(real))
            except OSError as error:
                if folder != self._top:
                    self._warn(folder, error.strerror)
                continue
            for name in names:
                path = "%s/%s" % (folder, name) if folder else name
                place = os.path.realpath(os.path.join(real, name))
                if not self._inside(place):
                    self._warn(path, "it is a link to something outside the working directory")
                elif os.path.isdir(place):
                    is_link = os.path.islink(os.path.join(real, name))
                    (links if is_link else waiting).append(path)
                elif os.path.isfile(place):
                    if self._is_wanted(path):
                        yield path, place
                elif not os.path.lexists(place):
                    self._warn(path, "it is a link to nothing")
                else:
                    self._warn(path, "it is not a plain file")

    def _inside(self, place):
        return place == self._work or place.startswith(self._work + os.sep)

    def _read(self, name, place):
        """(name, digest, size, mode, place, signature) of a file, read again if it changed."""
        for _ in range(2):
            before = signature(place)
            try:
                digest, size = _digest(place)
                mode = stat.S_IMODE(os.stat(place).st_mode)
            except OSError as error:
                if before is not None and os.path.lexists(place):
                    self._warn(name, error.strerror)
                return None
            if before == signature(place):
                return (name, digest, size, mode, place, before)
        self._warn(name, "it changes while it is read")
        return None

    def _send(self, link, batch, again=True):
        places = {entry[1]: entry for entry in batch}
        failed = set()
        for digest in link.call_json("POST", "/api/v1/blobs/missing", sorted(places)):
            _, _, size, _, place, _ = places[digest]
            try:
                link.call("PUT", "/api/v1/blobs/" + digest, FileBody(place, size), patience=0)
            except (Unreadable, Refused):
                failed.add(digest)  # it changed after it was read, or vanished
        self._name(link, [entry for entry in batch if entry[1] not in failed])
        changed = []
        for name, digest, _, _, place, _ in batch:
            entry = self._read(name, place) if digest in failed else None
            if entry is not None:
                changed.append(entry)
            elif digest in failed and not os.path.lexists(place):
                self._warn(name, "it vanished before it was sent")
        if changed and again:
            self._send(link, changed, again=False)
        for entry in changed if not again else ():
            self._warn(entry[0], "the server did not take its content")

    def _name(self, link, entries):
        """Say which names the contents have; if one name is refused, only that one is lost."""
        if not entries:
            return
        body = [[_text(name), digest, size, mode] for name, digest, size, mode, _, _ in entries]
        try:
            self._say_names(link, body)
        except Refused as error:
            if len(entries) == 1:
                self._warn(entries[0][0], str(error))
                return
            for entry in entries:
                self._name(link, [entry])
            return
        for name, _, _, _, _, known in entries:
            self.kept += name not in self._uploaded
            self._uploaded[name] = known

    def _name_artifacts(self, link, rows):
        link.call_json("POST", run_path(self._run_id, "files"), rows)

    def _warn(self, name, why):
        if (name, why) not in self._noted:
            self._noted.add((name, why))
            self._note("warning: %r is not kept: %s" % (_text(name), why))


def signature(place):
    """What changes when a file does; None if it is not there."""
    try:
        known = os.stat(place)
    except OSError:
        return None
    return (known.st_ino, known.st_size, known.st_mtime_ns)


def _digest(place):
    found, size = hashlib.sha256(), 0
    with open(place, "rb") as stream:
        for piece in iter(lambda: stream.read(_PIECE), b""):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size


def _text(name):
    # Names are bytes to the system; what is not UTF-8 cannot be said in JSON.
    return os.fsencode(name).decode("utf-8", "replace")
