"""The folder that jobs get on PYTHONPATH: this package and the azureml shims, nothing else."""

import compileall
import functools
import hashlib
import io
import os
import shutil
import tempfile
import zipfile

_PACKAGE = "runyard_runtime"
_SHIMS = "shims"


def bundle_digest():
    """A name for the content of the folder: equal sources have equal digests."""
    digest = hashlib.sha256()
    for relative, source in _layout():
        with open(source, "rb") as stream:
            content = stream.read()
        digest.update(("%s\0%d\0" % (relative.replace(os.sep, "/"), len(content))).encode("utf-8"))
        digest.update(content)
    return digest.hexdigest()


def materialize(target_dir):
    """Lay the folder out at `target_dir` and return its path; all at once, or not at all.

    A folder that is there already is left as it is: name it by `bundle_digest()`.
    """
    target = os.path.abspath(target_dir)
    if os.path.isdir(target):
        return target
    os.makedirs(os.path.dirname(target), exist_ok=True)
    building = tempfile.mkdtemp(prefix=".bundle-", dir=os.path.dirname(target))
    try:
        for relative, source in _layout():
            path = os.path.join(building, relative)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copy2(source, path)
        # Tracebacks show the folder where it will be, not the one it is built in.
        compileall.compile_dir(building, ddir=target, quiet=2)
        os.chmod(building, 0o755)
        try:
            os.rename(building, target)
        except OSError:
            if not os.path.isdir(target):  # else another process was quicker with the same
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


@functools.lru_cache(maxsize=1)
def archive():
    """(digest, content) of the folder as a zip, for nodes that fetch it; made once."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for relative, source in _layout():
            with open(source, "rb") as opened:
                # A fixed time, so that equal sources make equal archives.
                entry = zipfile.ZipInfo(relative.replace(os.sep, "/"), (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                made.writestr(entry, opened.read())
    content = stream.getvalue()
    return hashlib.sha256(content).hexdigest(), content


def _layout():
    """Pairs of the path in the folder and the source file, in a fixed order."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = []
    for parent, folders, names in os.walk(here):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(".pyc"):
                continue
            source = os.path.join(parent, name)
            relative = os.path.relpath(source, here)
            if relative.startswith(_SHIMS + os.sep):
                found.append((relative[len(_SHIMS) + 1 :], source))
            else:
                found.append((os.path.join(_PACKAGE, relative), source))
    return sorted(found)
