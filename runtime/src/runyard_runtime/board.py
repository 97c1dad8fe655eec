"""Where the agents of one job leave notes for each other.

A note is a JSON object with the `node` that wrote it and its `kind`. Notes are only added, never
changed, so an agent that takes over reads them from the start and knows all its predecessor knew;
the same note twice means the same as once. A board has

    post(note)            add a note; returns when it is there
    try_to_post(note)     the same, but False at once if that is not possible now
    read(since)           (notes after that place, the place after them); the first place is 0
    wait(seconds)         until there may be something new, or somebody wakes us; at most so long

What kinds there are stands in `gang`. Which board a job has is the plan's key `board`: "folder"
(here) where all nodes see the job's folder.
"""

import json
import os
import time

LOOK_SECONDS = 0.05  # between two looks at the file: nobody tells us that it grew
_FILE = "board.jsonl"
_FULL_DISK_PAUSE = 1.0


class FolderBoard:
    """A board that is a file in the job's folder."""

    def __init__(self, folder, wake):
        self._path = os.path.join(folder, _FILE)
        self._folder = folder
        self._wake = wake

    def post(self, note):
        """Add a note. The others wait for it, so a full disk is waited for."""
        while not self.try_to_post(note) and os.path.isdir(self._folder):
            time.sleep(_FULL_DISK_PAUSE)

    def try_to_post(self, note):
        """Add a note with one write, which the system keeps whole among those of others."""
        # The line before may be torn, if its writer found the disk full: ours begins a new one.
        line = b"\n" + json.dumps(note).encode("ascii") + b"\n"
        try:
            self._append(line)
        except OSError:
            return False
        return True

    def read(self, since):
        """The whole notes after that place, and the place after them."""
        try:
            # Opened anew: a network filesystem then asks for the present size.
            handle = os.open(self._path, os.O_RDONLY)
        except OSError:
            return [], since
        try:
            size = os.fstat(handle).st_size
            data = os.pread(handle, size - since, since) if size > since else b""
        finally:
            os.close(handle)
        whole = data[: data.rfind(b"\n") + 1]
        return [note for note in map(_parse, whole.split(b"\n")) if note], since + len(whole)

    def wait(self, seconds):
        """Until the next look, or until we are woken."""
        self._wake.wait(min(seconds, LOOK_SECONDS))

    def _append(self, line):
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(handle, line) != len(line):
                raise OSError("the disk is full")
        finally:
            os.close(handle)


def _parse(line):
    try:
        note = json.loads(line.decode("utf-8"))
    except ValueError:
        return None  # torn, or an empty line between two
    return note if isinstance(note, dict) else None


BOARDS = {"folder": FolderBoard}
