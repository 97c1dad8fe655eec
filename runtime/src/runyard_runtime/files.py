"""Files of a run: sent by their content, fetched by their name, never held in memory."""

import contextlib
import hashlib
import os
import posixpath
import stat
import tempfile
import uuid

from runyard_runtime.api import CHUNK, file_path_of, path_of
from runyard_runtime.exceptions import UserErrorException, explain

_BATCH = 1000  # names in one request
_ATTEMPTS = 3  # to send a file that is being written


def artifact_name(name):
    """`name` as the server keeps it: relative, with slashes, without `./`."""
    text = str(name).replace(os.sep, "/")
    normal = posixpath.normpath(text) if text else ""
    if not normal or normal in (".", "..") or normal.startswith(("/", "../")) or "\0" in normal:
        raise UserErrorException(
            explain(
                "%r is not a name a file of a run can have." % (name,),
                "It must be a relative path that stays inside the run.",
                "Choose a name such as 'outputs/model.pkl'.",
            )
        )
    return normal


def upload(api, run_id, files):
    """Keep local files as files of the run: `files` are pairs of name and local path."""
    upload_to(api, path_of("runs", run_id, "files"), files)


def upload_to(api, place, files):
    """Keep local files at a place of the API that takes names with digests."""
    for batch in _batches(upload_contents(api, files)):
        api.post(place, batch)


def upload_contents(api, files):
    """Have the server keep the contents of local files; the rows that name them."""
    pairs = [(artifact_name(name), os.fspath(path)) for name, path in files]
    for _ in range(_ATTEMPTS):
        try:
            return _upload(api, pairs)
        except _Changed as changed:
            path = changed
    raise UserErrorException(
        explain(
            "'%s' cannot be uploaded." % path,
            "It was changed each time while it was being sent.",
            "Upload it when it is complete, or write to another file first.",
        )
    )


def upload_stream(api, run_id, name, stream):
    """Keep what `stream.read()` gives, bytes or text, as a file of the run."""
    with temporary_file() as copy:
        chunk = stream.read(CHUNK)
        while chunk:
            copy.write(chunk.encode("utf-8") if isinstance(chunk, str) else chunk)
            chunk = stream.read(CHUNK)
        copy.close()
        upload(api, run_id, [(name, copy.name)])


@contextlib.contextmanager
def temporary_file():
    """A file to write to and close; it is gone afterwards."""
    copy = tempfile.NamedTemporaryFile(prefix="runyard-", delete=False)
    try:
        with copy:
            yield copy
    finally:
        os.unlink(copy.name)


def folder_files(name, folder):
    """All files below a local folder, as pairs for `upload`."""
    if not os.path.isdir(folder):
        raise UserErrorException(
            explain("There is no folder '%s' to upload." % folder, fix="Check the path.")
        )
    found = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for file_name in sorted(names):
            path = os.path.join(parent, file_name)
            if os.path.isfile(path):  # no sockets, pipes or dangling links
                relative = os.path.relpath(path, folder).replace(os.sep, "/")
                found.append((posixpath.join(name, relative) if name else relative, path))
    return found


def _upload(api, pairs):
    entries, paths = [], {}
    for name, path in pairs:
        digest, size, mode = measure(path)
        entries.append([name, digest, size, mode])
        paths[digest] = (path, size)
    for batch in _batches(sorted(paths)):
        for digest in api.post(path_of("blobs", "missing"), batch):
            path, size = paths[digest]
            api.put_bytes(
                path_of("blobs", digest), lambda p=path, d=digest, s=size: _send(p, d, s), size
            )
    return entries


def _batches(items):
    return [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]


def measure(path):
    """Digest, size and mode of a local file."""
    try:
        with open(path, "rb") as stream:
            digest, size = hashlib.sha256(), 0
            for chunk in iter(lambda: stream.read(CHUNK), b""):
                digest.update(chunk)
                size += len(chunk)
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            return digest.hexdigest(), size, mode
    except OSError as problem:
        raise _unreadable(path, problem)


class _Changed(Exception):
    """The file is not what it was when it was measured."""


def _send(path, digest, size):
    """The measured bytes of a file; `_Changed` before the last ones if it is another by now."""
    left, check = size, hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while left:
                chunk = stream.read(min(CHUNK, left))
                left -= len(chunk)
                check.update(chunk)
                if not chunk or (not left and check.hexdigest() != digest):
                    raise _Changed(path)
                yield chunk
    except OSError as problem:
        raise _unreadable(path, problem)


def _unreadable(path, problem):
    return UserErrorException(
        explain(
            "'%s' cannot be uploaded." % path,
            "%s." % (problem.strerror or problem),
            "Check the path; it is relative to the working directory, %s." % os.getcwd(),
        )
    )


def download(api, run_id, name, target, names):
    """Fetch one file of a run; `target` is a path, a folder, or None for the working directory.

    `names()` lists the run's files, for the error if this is none of them.
    """
    name = artifact_name(name)
    if target is None or os.path.isdir(target):
        target = os.path.join(target or ".", posixpath.basename(name))
    try:
        fetch(api, run_id, name, target)
    except UserErrorException as error:
        if error.code != "not_found":
            raise
        available = names()
        shown = ", ".join(available[:50]) + (", …" if len(available) > 50 else "")
        raise UserErrorException(
            explain(
                "The run '%s' has no file '%s'." % (run_id, name),
                "It has: %s." % (shown or "none yet"),
                "Choose one of these; files in ./outputs are kept when the run ends.",
            )
        ) from None


def fetch(api, run_id, name, target):
    """Write a file of a run to the path `target`: whole, or not at all."""
    fetch_from(api, file_path_of(run_id, name), target)


def fetch_from(api, place, target):
    """Write what the API has at `place` to the path `target`: whole, or not at all."""
    target = os.path.abspath(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    partial = "%s.%s.partial" % (target, uuid.uuid4().hex)

    def receive(chunks):
        with open(partial, "wb") as stream:
            for chunk in chunks:
                stream.write(chunk)

    try:
        api.get_bytes(place, receive)
        os.replace(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def target_of(name, prefix, folder, append_prefix):
    """Where `download_files` puts the file `name`: below `folder`, with or without the prefix."""
    relative = name
    if prefix and not append_prefix and name.startswith(prefix):
        relative = name[len(prefix) :]
    return os.path.join(folder or ".", *artifact_name(relative).split("/"))
