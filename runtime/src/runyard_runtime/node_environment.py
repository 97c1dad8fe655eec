"""The environment of a job on a node that shares no disk with the server.

The plan's key `environment` has

    key            equal keys are one environment; a node makes it once, whatever jobs use it
    name           for people
    python         the version that the server made it with
    lock           [name==version, …]: installed as it is, nothing is resolved again
    options        {"index_url", "extra_index_urls", "find_links", "no_index", "trusted_hosts"}: the
                   spec's own and the server's, see runyard.environments.pip_configuration
    variables      proxy and time-out of the server's pip
    user_managed   true: `interpreter`, a name or path on the node, is used as it is

What the node's own UV_* and PIP_* variables say counts more: how the world is reached from there.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from urllib.parse import unquote, urlsplit

from runyard_runtime import job_folder, ranks
from runyard_runtime.http_connection import BUNDLES
from runyard_runtime.node_storage import PACKAGES, WHOLE

_LOOK_SECONDS = 0.1
_TAIL = 4000
_OLDEST = (3, 6)
_ASK_VERSION = "import sys; print(*sys.version_info[:3])"
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")


class EnvironmentFailed(ranks.CannotBegin):
    """The environment cannot be had on this node; the text says why, for people."""


def prepare(agent):
    """The interpreter of the job's environment on this node; made if it is not there."""
    asked = agent.plan["environment"]
    if asked.get("user_managed"):
        return _find_named(asked.get("interpreter") or "python")
    place = os.path.join(agent.plan["environments"], asked["key"])
    python = os.path.join(place, "bin", "python")
    try:
        if not _is_whole(place):
            os.makedirs(agent.plan["environments"], 0o700, exist_ok=True)
            with open(place + ".lock", "w") as lock:
                if _wait_for(lock, agent):
                    _clear(place)
                if not _is_whole(place):
                    _make(agent, asked, place)
    except OSError as error:
        raise _failed(asked, error.strerror or str(error))
    return python


def _is_whole(place):
    """Whether the environment is there; it is used from now on, so it is not removed as old."""
    try:
        os.utime(os.path.join(place, WHOLE))
        return True
    except OSError:
        return os.path.exists(os.path.join(place, WHOLE))  # somebody else's


def _wait_for(lock, agent):
    """Have the lock; another agent of this node, or site, may be making the same.

    False in a shared folder that knows no locks: then each makes its own, and the first counts.
    """
    is_said = False
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return False
            if not is_said:
                _show(agent, "waiting for another job that makes the same environment")
                is_said = True
            agent.pause(_LOOK_SECONDS)


def _make(agent, asked, place):
    """Make the environment beside its place, then move it there."""
    begun = time.time()
    _show(agent, "making the environment '%s' on this node" % asked["name"])
    making = "%s.making-%s" % (place, _who())
    _touch(os.path.join(agent.plan["environments"], PACKAGES))
    environ, options = _network(agent.plan, asked)
    uv = _Uv(agent, asked, environ, _find_uv(agent))
    _make_venv(uv, asked, making)
    lines = {"lock.txt": asked["lock"], "options.txt": options}
    for name, content in lines.items():
        text = "".join("%s\n" % line for line in content)
        job_folder.write_atomically(os.path.join(making, name), text.encode("utf-8"))
    if asked["lock"]:
        words = ["pip", "install", "--no-deps", "--index-strategy", "unsafe-best-match"]
        words += ["--python", os.path.join(making, "bin", "python")]
        words += ["-r", os.path.join(making, "lock.txt"), "-r", os.path.join(making, "options.txt")]
        if _series(asked["python"]) >= (3, 7):
            words.append("--compile-bytecode")
        uv.run(words)
    os.unlink(os.path.join(making, "options.txt"))  # it may hold passwords
    note = {"name": asked["name"], "seconds": time.time() - begun}
    job_folder.write_atomically(os.path.join(making, WHOLE), json.dumps(note).encode("utf-8"))
    try:
        os.rename(making, place)
    except OSError:
        if not os.path.exists(os.path.join(place, WHOLE)):
            raise
        shutil.rmtree(making, ignore_errors=True)  # another was quicker
    _show(agent, "the environment took %.1f s" % (time.time() - begun))


def _touch(path):
    """Have it not removed as an old one; what is not there yet need not be."""
    try:
        os.utime(path)
    except OSError:
        pass


def _who():
    """This process, for names in a folder that machines may share."""
    return "%s-%d" % (socket.gethostname(), os.getpid())


def _clear(place):
    """Remove what agents left that died while they made it; by who alone may make it."""
    folder, name = os.path.split(place + ".making-")
    left = [os.path.join(folder, one) for one in os.listdir(folder) if one.startswith(name)]
    if not os.path.exists(os.path.join(place, WHOLE)):
        left.append(place)
    for one in left:
        shutil.rmtree(one, ignore_errors=True)


def _make_venv(uv, asked, making):
    """A virtual environment of the Python that was asked for: this node's, or one that uv gets."""
    wanted = _series(asked["python"])
    words = ["venv", "-q", "--relocatable", "--clear", making, "--python"]
    found = _find_python(wanted)
    if found is not None:
        uv.run(words + [found])
        return
    uv.show("this node has no Python %d.%d; uv tries to get one" % wanted)
    try:
        uv.run(words + ["%d.%d" % wanted])
    except EnvironmentFailed as error:
        text = "This node has no Python %d.%d, and uv could not get one (%s). Install it on the "
        text += "nodes, or ask for another version of Python."
        raise EnvironmentFailed(text % (wanted + (_first_line(str(error)),)))


class _Uv:
    """Runs uv; what it says goes to a file, because an agent that will fork has no threads."""

    def __init__(self, agent, asked, environ, program):
        self._agent = agent
        self._asked = asked
        self._environ = environ
        self._program = program
        self._log = os.path.join(agent.own, "environment.log")

    def show(self, text):
        """Say something in the job's account."""
        _show(self._agent, text)

    def run(self, words):
        """Run one command; EnvironmentFailed with its own words if it fails."""
        with open(self._log, "wb") as log:
            try:
                child = subprocess.Popen(
                    [self._program] + words,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                text = "uv does not start on this node: %s. Install uv on its PATH."
                raise EnvironmentFailed(text % (error.strerror or error))
        try:
            while child.poll() is None:
                self._agent.pause(_LOOK_SECONDS)
        except BaseException:
            child.kill()
            child.wait()
            raise
        if child.returncode:
            raise _failed(self._asked, self._last_words())

    def _last_words(self):
        with open(self._log, "rb") as log:
            text = log.read()[-_TAIL:].decode("utf-8", "replace").strip()
        return _PASSWORD.sub(r"\1***@", text) or "uv failed without a word"


def _failed(asked, why):
    """The error with which the environment cannot be had; a full disk has a code of its own."""
    is_full = "No space left" in why or "Disk quota" in why
    text = "The environment '%s' could not be made on this node: %s"
    error = EnvironmentFailed(text % (asked["name"], job_folder.MAKE_ROOM if is_full else why))
    if is_full:
        error.code = job_folder.NODE_FULL
    return error


def _find_uv(agent):
    """The program: this node's, or the server's own."""
    found = shutil.which("uv")
    if found:
        return found
    from runyard_runtime.server_link import Refused

    folder = agent.plan["environments"]
    with open(os.path.join(folder, ".uv.lock"), "w") as lock:
        _wait_for(lock, agent)
        known = [name for name in sorted(os.listdir(folder)) if name.startswith(".uv-")]
        if known:
            _touch(os.path.join(folder, known[-1]))
            return os.path.join(folder, known[-1])
        _show(agent, "there is no uv on this node; fetching the server's")
        fetched = os.path.join(folder, ".fetched-uv-" + _who())
        try:
            with open(fetched, "w+b") as stream:
                agent.link().download("/api/v1/uv", stream, agent.pause, 5.0)
                digest = agent.link().etag
        except Refused as error:
            text = "uv, which makes environments, cannot be had from the server: %s. "
            raise EnvironmentFailed((text + "Install uv on the PATH of the nodes.") % error)
        if _digest(fetched) != digest:
            os.unlink(fetched)
            raise EnvironmentFailed("uv arrived damaged from the server. Submit the run again.")
        os.chmod(fetched, 0o755)
        os.rename(fetched, os.path.join(folder, ".uv-" + digest))
        return os.path.join(folder, ".uv-" + digest)


def _digest(path):
    import hashlib

    found = hashlib.sha256()
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def _network(plan, asked):
    """(variables for uv, lines of a requirements file) that say where packages come from."""
    own, options = plan.get("packages") or {}, asked.get("options") or {}
    environ = dict(os.environ, NO_COLOR="1", UV_NO_PROGRESS="1")
    for name, value in (asked.get("variables") or {}).items():
        environ.setdefault(name, value)
    # uv trusts only authorities of its own; a site may have others, which its machines know.
    for bundle in BUNDLES:
        if os.path.exists(bundle):
            environ.setdefault("SSL_CERT_FILE", bundle)
    # Beside the environments, so that files are linked and not copied.
    environ["UV_CACHE_DIR"] = os.path.join(plan["environments"], PACKAGES)
    environ.update((name, value) for name, value in own.items() if name.startswith("UV_"))
    hosts = list(options.get("trusted_hosts") or ()) + own.get("PIP_TRUSTED_HOST", "").split()
    if hosts:
        environ.setdefault("UV_INSECURE_HOST", " ".join(hosts))
    index = own.get("PIP_INDEX_URL") or options.get("index_url")
    if own.get("UV_INDEX_URL") or own.get("UV_DEFAULT_INDEX"):
        index = None  # uv reads these itself
    lines = ["--index-url " + index] if index and _is_there(index) else []
    extra = list(options.get("extra_index_urls") or ()) + own.get("PIP_EXTRA_INDEX_URL", "").split()
    lines += ["--extra-index-url " + one for one in extra if _is_there(one)]
    links = list(options.get("find_links") or ()) + own.get("PIP_FIND_LINKS", "").split()
    lines += ["--find-links " + one for one in links if _is_there(one)]
    return environ, lines + (["--no-index"] if options.get("no_index") else [])


def _is_there(location):
    """Whether a place for packages can be asked from here: a folder of the server may not be."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return os.path.exists(unquote(parts.path))
    return "://" in location or os.path.exists(location)


def _find_named(name):
    """The interpreter that a user looks after."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        path = os.path.join(path, "bin", "python")
    found = shutil.which(path)
    if found is None and name == "python":
        found = shutil.which("python3") or sys.executable
    if found is None:
        raise EnvironmentFailed(
            "There is no interpreter '%s' on this node (PATH is %s). Install it on the nodes, or "
            "set python.interpreter_path to one that they have."
            % (name, os.environ.get("PATH", ""))
        )
    if os.path.realpath(found) == os.path.realpath(sys.executable):
        return found
    version = _ask(found)
    if version is None or version < _OLDEST:
        what = "does not answer as a Python" if version is None else "is older than Python 3.6"
        raise EnvironmentFailed("The interpreter '%s' of this node %s." % (found, what))
    return found


def _find_python(wanted):
    """An interpreter of that series on this node, or None."""
    name = "python%d.%d" % wanted
    pyenv = os.path.join(os.path.expanduser(os.environ.get("PYENV_ROOT") or "~/.pyenv"), "versions")
    inside = sorted(os.listdir(pyenv)) if os.path.isdir(pyenv) else []
    places = [os.path.join(pyenv, one, "bin", "python") for one in inside]
    candidates = [sys.executable, shutil.which(name), shutil.which("python3")]
    for path in candidates + [one for one in places if "/%d.%d" % wanted in one]:
        if path and (_ask(path) or ())[:2] == wanted:
            return path
    return None


def _ask(path):
    """The version of an interpreter; None if it is none."""
    try:
        said = subprocess.check_output(
            [path, "-S", "-E", "-c", _ASK_VERSION], stderr=subprocess.DEVNULL, timeout=60
        )
        return tuple(int(word) for word in said.split()) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _series(version):
    first, second = version.split(".")[:2]
    return int(first), int(second)


def _first_line(text):
    return text.splitlines()[0] if text else ""


def _show(agent, text):
    from runyard_runtime.job_data import show_progress

    show_progress(agent, text)
