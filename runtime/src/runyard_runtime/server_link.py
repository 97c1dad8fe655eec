"""The agent's connection to the server: one keep-alive socket, and patience.

HTTP is spoken by hand because `http.client` takes longer to import than a short script to run.
Every request an agent makes may be repeated, so a broken connection is simply tried again.
"""

import json
import socket
import threading
import time
from urllib.parse import quote, urlsplit

from runyard_runtime import job_folder

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0
_TIMEOUT = 60.0  # of one read or write; a server that is silent longer is taken for dead
_PIECE = 1 << 20
_LONGEST_LINE = 1 << 16
DENIED = (401, 403, 404)  # the token, or the run: nothing of this job will be taken
SUPERSEDED = 410  # the run is over, or a later attempt goes on; nothing of this will be taken
_AGAIN = (408, 425, 429)


class Refused(Exception):
    """The server understood and said no; asking again will not help."""

    def __init__(self, status, body):
        Exception.__init__(self, "the server answered %d: %s" % (status, _words(body)))
        self.status = status
        self.body = body
        self.is_told = _told(body) is not None  # by a Runyard, not by whoever else answers there


class Abandoned(Exception):
    """Nobody wants the answer any more."""


class Unreadable(Exception):
    """A file of this machine that was to be sent cannot be read, or is no more."""


class _NotWritten(Exception):
    """The answer came, but this machine could not take it."""


class _Broken(Exception):
    """The connection ended in the middle of an answer."""


class ServerLink:
    """Calls that go on until they are answered, wherever the server is by then.

    `patience` is how long a "no such run" or "not allowed" is doubted: a server that is being
    restored, or one of another home on the same port, says so too. `is_wanted()` tells whether
    there is still a reason to wait for a server that is away.
    """

    def __init__(self, url, token, address_file=None, patience=60.0, sleep=None, is_wanted=None):
        self._url = url
        self._token = token
        self._address_file = address_file
        self._patience = patience
        self._is_wanted = is_wanted or (lambda: True)
        self._ending = threading.Event()
        self._sleep = sleep or self._ending.wait
        self._socket = None
        self._reader = None
        self.etag = ""  # of the last answer: the digest, where a file was asked for

    def call(self, method, path, body=b"", patience=None):
        """The bytes of the answer. Tries again for ever while the server cannot be reached."""
        pieces = []
        self._persist(method, path, body, pieces.append, pieces.clear, patience)
        return b"".join(pieces)

    def download(self, path, stream, sleep=None, patience=None):
        """Write the answer to a file that is open for writing; OSError if it cannot be written.

        `sleep(seconds)` waits between two tries, and may raise to end them.
        """

        def write(piece):
            try:
                stream.write(piece)
            except OSError as error:
                raise _NotWritten(error)

        def restart():
            stream.seek(0)
            stream.truncate()

        try:
            self._persist("GET", path, b"", write, restart, patience, sleep)
        except _NotWritten as error:
            self.close()
            raise error.args[0]

    def call_json(self, method, path, value=None, patience=None):
        """The same for JSON both ways."""
        body = b"" if value is None else json.dumps(value).encode("utf-8")
        answer = self.call(method, path, body, patience)
        return json.loads(answer.decode("utf-8")) if answer else None

    def abandon(self):
        """End the call that is going on in another thread, and all later ones."""
        self._ending.set()

    def close(self):
        """Give the connection up; a later call opens another one."""
        for one in (self._reader, self._socket):
            if one is not None:
                try:
                    one.close()
                except OSError:
                    pass
        self._socket = self._reader = None

    def _persist(self, method, path, body, write, restart, patience, sleep=None):
        patience = self._patience if patience is None else patience
        delay, denied_at = _FIRST_DELAY, None
        while True:
            if self._ending.is_set():
                raise Abandoned(path)
            try:
                status, said = self._once(method, path, body, write, restart)
            except (OSError, _Broken):
                denied_at = None
            else:
                if status < 300:
                    return
                if status in DENIED:
                    denied_at = denied_at or time.monotonic()
                    if time.monotonic() - denied_at >= patience:
                        raise Refused(status, said)
                elif status < 500 and status not in _AGAIN:
                    raise Refused(status, said)
            if not self._is_wanted():
                raise Abandoned(path)
            (sleep or self._sleep)(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
            self._look_up()

    def _look_up(self):
        """Read where the server is now; it may have come back on another port."""
        known = job_folder.read_json(self._address_file) if self._address_file else None
        url = known.get("url") if isinstance(known, dict) else None
        if url and url != self._url:
            self._url = url
            self.close()

    def _once(self, method, path, body, write, restart):
        reused = self._socket is not None
        restart()
        try:
            return self._exchange(method, path, body, write)
        except (OSError, _Broken, Unreadable) as error:
            self.close()
            if not reused or isinstance(error, Unreadable):
                raise
        # The server closes connections that were idle; that is no reason to wait.
        restart()
        try:
            return self._exchange(method, path, body, write)
        except (OSError, _Broken, Unreadable):
            self.close()
            raise

    def _exchange(self, method, path, body, write):
        where = urlsplit(self._url)
        if self._socket is None:
            self._connect(where)
        head = (
            "%s %s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
            % (method, where.path.rstrip("/"), path, where.netloc, self._token, len(body))
        ).encode("latin-1")
        try:
            if isinstance(body, bytes):
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                for piece in body:
                    if self._ending.is_set():
                        raise _Broken("abandoned")
                    self._socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have refused before it read all; its answer says why
        try:
            return self._answer(write)
        except ValueError as error:
            raise _Broken(str(error))

    def _connect(self, where):
        port = where.port or (443 if where.scheme == "https" else 80)
        connection = socket.create_connection((where.hostname, port), timeout=_TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.scheme == "https":
            import ssl

            context = ssl.create_default_context()
            connection = context.wrap_socket(connection, server_hostname=where.hostname)
        self._socket, self._reader = connection, connection.makefile("rb")

    def _answer(self, write):
        status = 100
        while 100 <= status < 200:
            words = self._line().split(None, 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
                raise _Broken("this is not HTTP")
            status = int(words[1])
            headers = {}
            for line in iter(self._line, b""):
                name, _, value = line.partition(b":")
                headers[name.strip().lower()] = value.strip().lower()
        self.etag = headers.get(b"etag", b"").strip(b'"').decode("latin-1")
        said = []
        write = write if status < 300 else said.append
        if headers.get(b"transfer-encoding") == b"chunked":
            self._read_chunks(write)
        elif b"content-length" in headers:
            self._read(int(headers[b"content-length"]), write)
        elif status != 204:
            for piece in iter(lambda: self._reader.read(_PIECE), b""):
                write(piece)
            self.close()
        if headers.get(b"connection") == b"close":
            self.close()
        return status, b"".join(said)

    def _line(self):
        line = self._reader.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise _Broken("the connection ended")
        return line.rstrip(b"\r\n")

    def _read_chunks(self, write):
        while True:
            size = int(self._line().split(b";")[0], 16)
            self._read(size, write)
            self._line()
            if size == 0:
                return

    def _read(self, size, write):
        while size:
            piece = self._reader.read(min(size, _PIECE))
            if not piece:
                raise _Broken("the connection ended")
            size -= len(piece)
            write(piece)


class FileBody:
    """A file as the body of a request, read piece by piece each time it is sent.

    `Unreadable` if that is not possible: trouble with a file is no trouble with the server.
    """

    def __init__(self, path, size):
        self._path = path
        self._size = size

    def __len__(self):
        return self._size

    def __iter__(self):
        left = self._size
        with _reading(open, self._path, "rb") as stream:
            while left:
                piece = _reading(stream.read, min(left, _PIECE))
                # One that shrank is filled up: the digest will tell, the connection stays whole.
                piece = piece or b"\0" * min(left, _PIECE)
                left -= len(piece)
                yield piece


def _reading(call, *args):
    try:
        return call(*args)
    except OSError as error:
        raise Unreadable(error.strerror or str(error))


def run_path(run_id, *parts):
    """The path of something of a run, safely quoted."""
    parts = ("/api/v1/runs", quote(run_id, safe="")) + tuple(quote(part, "/") for part in parts)
    return "/".join(parts)


def _told(body):
    """The error in the body of an answer, or None if it has none of ours."""
    try:
        error = json.loads(body.decode("utf-8"))
    except ValueError:
        return None
    return error if isinstance(error, dict) and error.get("what") else None


def _words(body):
    error = _told(body)
    if error is None:
        return body[:200].decode("utf-8", "replace")
    return " ".join(str(error[key]) for key in ("what", "why") if error.get(key))
