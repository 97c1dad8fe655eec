"""The worker of a service: loads a model in its own environment and answers the front end.

    python -m runyard_runtime.scoring SPEC.json INDEX

The spec says what to serve: {"scorer", "models": [{"name", "version", "path", "is_folder"}],
"models_dir", "entry_script", "source_directory", "sockets", "max_batch", "app_root"}; INDEX which
of the sockets is this worker's. Paths are relative to the folder that the worker is started in.
The model is loaded before the socket is there, so a socket means a model that is ready; then the
file ready-INDEX appears in the job's folder, for who starts workers again. Where loading fails,
the last thing on stderr is the traceback, and the exit code is 3. What the front end sends and
gets is in `scoring_wire`.

Everything happens on the main thread: frameworks of old tie sessions and graphs to the thread that
made them, which is where `init()` ran.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback

from runyard_runtime import scorers, scoring_wire, wire
from runyard_runtime.scorers.base import CannotServe, own_folder

CANNOT_LOAD = 3  # the exit code

_READ_BYTES = 1 << 18
_LOOK_MILLISECONDS = 1000  # at whether to stop; a script's asyncio may have taken our wake-up
_LAST_WORDS_SECONDS = 5.0  # for the front end to take the last replies
_OURS = os.path.dirname(os.path.abspath(__file__))
_PATHS = ("models_dir", "source_directory", "app_root")


def main(arguments=None):
    """Load what the spec says, then answer until told to stop; the exit code."""
    path, index = (arguments or sys.argv[1:])[:2]
    with open(path, encoding="utf-8") as stream:
        spec = _resolved(json.load(stream))
    _set_the_scene(spec)
    try:
        service = scorers.load(spec)
        hello = service.hello()
    except BaseException as problem:  # sys.exit() in a script is no way to be ready either
        if isinstance(problem, KeyboardInterrupt):
            raise
        _explain(problem)
        return CANNOT_LOAD
    hello["models"] = [
        {"name": one["name"], "version": str(one["version"])} for one in spec.get("models") or []
    ]
    if hasattr(gc, "freeze"):  # Python 3.7
        gc.freeze()  # a framework's objects stay: going through them again would delay requests
    worker = Worker(service, hello, spec["sockets"][int(index)])
    worker.listen()
    _say_ready(int(index))
    worker.serve()
    return 0


def _resolved(spec):
    """The spec with whole paths: the folder will be another one, and scripts may change it."""
    spec = dict(spec)
    for name in _PATHS:
        if spec.get(name):
            spec[name] = os.path.abspath(spec[name])
    spec["models"] = [
        dict(one, path=os.path.abspath(one["path"])) if one.get("path") else one
        for one in spec.get("models") or []
    ]
    return spec


def _set_the_scene(spec):
    """The variables, folder and module path that v1's containers gave to scripts."""
    # `python -m` puts the folder it was started in first, where files of any name may lie.
    if sys.path and sys.path[0] in ("", os.getcwd()):
        sys.path.pop(0)
    models = spec["models"]
    if models and spec.get("models_dir"):
        one = own_folder(spec, models[0]) if len(models) == 1 else spec["models_dir"]
        os.environ["AZUREML_MODEL_DIR"] = one
    root = spec.get("app_root") or spec.get("source_directory")
    if root:
        os.environ["AML_APP_ROOT"] = root
        if os.path.isdir(root):
            os.chdir(root)
            _know_by_name(os.environ.pop(wire.SOURCE_NAME, ""))
    if spec.get("entry_script"):
        os.environ["AZUREML_ENTRY_SCRIPT"] = spec["entry_script"]


def _know_by_name(name):
    """Let a script find its source folder by its name as well: v1 started it one level above."""
    if name and not os.path.lexists(name):
        try:
            os.symlink(os.curdir, name)
        except OSError:  # another worker was quicker, or the folder cannot be written to
            pass


def _say_ready(index):
    """Tell who started us that we came up: a worker that ends later is started again."""
    folder = os.environ.get(wire.JOB_DIR)
    if not folder:
        return
    try:
        with open(os.path.join(folder, "ready-%d" % index), "a") as stream:
            os.utime(stream.fileno())
    except OSError as problem:  # no reason not to serve
        sys.stderr.write("Readiness cannot be noted: %s\n" % problem)


def _explain(problem):
    """The traceback as the last thing on stderr, without the frames that are ours."""
    sys.stdout.flush()
    trace = problem.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    lines = ["Traceback (most recent call last):\n"]
    if isinstance(problem, CannotServe):  # its words say it all
        lines += traceback.format_tb(problem.__traceback__)[-1:]
        lines.append("CannotServe: %s\n" % problem)
    elif trace is None and isinstance(problem, SyntaxError):  # of the entry script itself
        lines += traceback.format_exception_only(type(problem), problem)
    else:
        lines = traceback.format_exception(type(problem), problem, trace or problem.__traceback__)
    sys.stderr.write("".join(lines))
    sys.stderr.flush()


def _is_ours(filename):
    return filename.startswith((_OURS, "<frozen importlib"))


class Worker(object):
    """Listens on a socket and answers batches, those of several connections in turn.

    There may be several: the platform looks whether we are ready, and a front end that was
    started anew may come before the old one's connection is seen to have ended. No read and no
    write waits for one of them, so that none can hold up the others.
    """

    def __init__(self, service, hello, path):
        self._service = service
        self._hello = scoring_wire.encode_hello(hello)
        self._path = path
        self._identity = None
        self._listener = None
        self._connections = {}  # by descriptor
        self._stopping = False

    def listen(self):
        """Have the socket there. Others find it only when it can be connected to."""
        beside = self._path + "~"
        _remove(beside)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is its owner's alone
        try:
            listener.bind(beside)
        finally:
            os.umask(before)
        listener.listen(128)
        listener.setblocking(False)
        self._identity = _identity(beside)
        os.rename(beside, self._path)
        self._listener = listener

    def serve(self):
        """Answer until SIGTERM; the batch at hand is finished first."""
        woken, wake = os.pipe()
        for one in (woken, wake):
            os.set_blocking(one, False)
        signal.signal(signal.SIGTERM, self._stop)
        signal.set_wakeup_fd(wake)  # a signal that comes while we wait ends the waiting
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        try:
            while not self._stopping:
                for descriptor, _ in poll.poll(_LOOK_MILLISECONDS):
                    if self._stopping:
                        break
                    if descriptor == self._listener.fileno():
                        self._accept(poll)
                    elif descriptor != woken:
                        self._attend(descriptor, poll)
        finally:
            self._leave()
            signal.set_wakeup_fd(-1)
            os.close(woken)
            os.close(wake)

    def _stop(self, number, frame):
        self._stopping = True

    def _accept(self, poll):
        try:
            connection, _ = self._listener.accept()
        except OSError:  # who came is gone again, or there are too many
            return
        connection.setblocking(False)
        self._connections[connection.fileno()] = one = _Connection(connection)
        one.outgoing = self._hello
        poll.register(connection, select.POLLOUT)
        self._attend(connection.fileno(), poll)

    def _attend(self, descriptor, poll):
        """Do what one connection waits for: take what it sends, or give it what is due."""
        connection = self._connections[descriptor]
        was_sending = bool(connection.outgoing)
        try:
            if not was_sending:
                batch = connection.receive()
                if batch is None:
                    return
                connection.outgoing = self._answer(batch)
            connection.send()
        except (OSError, scoring_wire.Broken) as problem:
            if isinstance(problem, scoring_wire.Broken):
                sys.stderr.write("A connection broke: %s.\n" % problem)
            poll.unregister(descriptor)
            self._connections.pop(descriptor).socket.close()
            return
        is_sending = bool(connection.outgoing)
        if is_sending != was_sending:
            poll.modify(descriptor, select.POLLOUT if is_sending else select.POLLIN)

    def _answer(self, batch):
        """The bytes of the replies."""
        try:
            return scoring_wire.encode_replies(self._service.answer(batch))
        except Exception:  # one batch must not end what others are served by
            traceback.print_exc()
            words = json.dumps({"error": "The worker failed; the service's log says how."})
            reply = (500, b"", words.encode("utf-8"))
            return scoring_wire.encode_replies([reply] * len(batch))

    def _leave(self):
        if _identity(self._path) == self._identity:  # else another worker listens there by now
            _remove(self._path)
        self._listener.close()
        for connection in self._connections.values():
            connection.finish(_LAST_WORDS_SECONDS)


class _Connection(object):
    """One connection, and what of it has come or is still to go."""

    def __init__(self, connection):
        self.socket = connection
        self.incoming = b""
        self.outgoing = b""

    def receive(self):
        """The batch, if all of it has come; None otherwise. OSError when the other side is gone."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            if self.incoming:
                raise scoring_wire.Broken("it ended inside a batch")
            raise ConnectionResetError()
        if self.incoming:
            if type(self.incoming) is bytes:
                self.incoming = bytearray(self.incoming)
            self.incoming += data
            data = self.incoming
        batch = scoring_wire.split_batch(data)
        self.incoming = data if batch is None else b""
        return batch

    def send(self):
        """Send as much as can go now."""
        try:
            sent = self.socket.send(self.outgoing)
        except BlockingIOError:
            return
        # A view, or what is left would be copied each time.
        self.outgoing = memoryview(self.outgoing)[sent:] if sent < len(self.outgoing) else b""

    def finish(self, seconds):
        """Send what is due, and close."""
        try:
            if self.outgoing:
                self.socket.settimeout(seconds)
                self.socket.sendall(self.outgoing)
        except OSError:
            pass
        self.socket.close()


def _identity(path):
    """Which file lies there; None: none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
