"""A small HTTP client of the platform, for what a script asks of the server.

The server may be restarting: a call is repeated for up to two minutes, each time at the address
that the address file has then. Errors arrive as v1's exceptions with the server's own words.
"""

import errno
import http.client
import json
import time
import urllib.parse

from runyard_runtime.exceptions import (
    AuthenticationException,
    RunEnvironmentException,
    ServiceException,
    UserErrorException,
    explain,
)

PATIENCE = 120.0  # seconds; a restarting server needs a few, a rebooting machine a minute
SOCKET_TIMEOUT = 60.0
CHUNK = 1 << 20

_BY_STATUS = {
    400: UserErrorException,
    401: AuthenticationException,
    403: AuthenticationException,
    404: UserErrorException,
    409: UserErrorException,
    412: UserErrorException,
    413: UserErrorException,
    422: UserErrorException,
    424: UserErrorException,
}


class Api(object):
    """Calls to one server with one token."""

    def __init__(
        self,
        url,
        token,
        address_file=None,
        patience=PATIENCE,
        now=time.monotonic,
        sleep=time.sleep,
    ):
        self._url = url
        self._token = token
        self._address_file = address_file
        self._patience = patience
        self._now = now
        self._sleep = sleep

    @property
    def url(self):
        """Where the server is now."""
        if self._address_file:
            try:
                with open(self._address_file) as stream:
                    return json.load(stream)["url"].rstrip("/")
            except (OSError, ValueError, KeyError):
                pass  # between two servers: the last address we were told is as good as any
        if not self._url:
            raise RunEnvironmentException(
                explain(
                    "The address of the server is not known.",
                    "Neither AZUREML_SERVICE_ENDPOINT nor RUNYARD_ADDRESS_FILE is set.",
                    "Start the script as a job, or log only: that needs no server.",
                )
            )
        return self._url.rstrip("/")

    @property
    def token(self):
        """What the server knows this process by."""
        return self._token

    def get(self, path, query=()):
        """The JSON at `path`."""
        return self._json("GET", path + _query(query))

    def post(self, path, body=None, repeat=True):
        """The answer to a JSON body; `repeat`: it does no harm if the server gets it twice."""
        return self._json("POST", path, body, repeat)

    def patch(self, path, body):
        """The answer to a JSON body."""
        return self._json("PATCH", path, body)

    def put_bytes(self, path, open_chunks, size):
        """Send `size` bytes; `open_chunks()` gives them in pieces, anew for every attempt."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        self._repeat("PUT", path, open_chunks, headers, _read_json)

    def get_bytes(self, path, receive):
        """Give the bytes at `path` to `receive(chunks)`, which starts anew at every attempt."""
        self._repeat("GET", path, None, {}, lambda response: receive(_chunks(response)))

    def _json(self, method, path, body=None, repeat=True):
        headers = {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode("utf-8")
        if data is None and method != "GET":
            data = b""
        return self._repeat(method, path, lambda: data, headers, _read_json, repeat)

    def _repeat(self, method, path, make_body, headers, read, after_sending=True):
        deadline = self._now() + self._patience
        delay = 0.05
        repeated = False
        while True:
            try:
                return self._once(method, path, make_body, headers, read)
            except _Trouble as trouble:
                if trouble.was_sent and not after_sending:
                    raise self._unanswered(method, path, trouble) from None
                if self._now() + delay > deadline or trouble.final:
                    raise self._unreachable(method, path, trouble) from None
            except (AuthenticationException, ServiceException, UserErrorException) as error:
                error.repeated = repeated  # the first attempt may have had its effect
                raise
            repeated = True
            self._sleep(delay)
            delay = min(delay * 2, 5.0)

    def _once(self, method, path, make_body, headers, read):
        address = urllib.parse.urlsplit(self.url)
        connection = _connect(address)
        all_headers = dict(headers, Authorization="Bearer %s" % self._token)
        try:
            _on_network(connection.connect, was_sent=False)
            try:
                body = make_body() if make_body else None
                _on_network(connection.request, method, address.path + path, body, all_headers)
            except _Trouble as trouble:
                if not trouble.broken_pipe:
                    raise
                # It answered before the whole body was sent: the answer says why.
            response = _on_network(connection.getresponse)
            if response.status == 503:
                told = _told(_content(response))
                raise _Trouble("the server is not ready: %s" % told, was_sent=False)
            if response.status >= 400:
                raise _error(response.status, _content(response))
            return read(response)
        finally:
            connection.close()

    def _unanswered(self, method, path, trouble):
        error = ServiceException(
            explain(
                "The server at %s took %s %s but did not answer."
                % (self.url, method, path.split("?")[0]),
                "%s." % trouble,
                "See whether it had its effect before you do it again: it might count twice.",
            )
        )
        error.code = "unavailable"
        return error

    def _unreachable(self, method, path, trouble):
        error = ServiceException(
            explain(
                "The server at %s did not answer %s %s." % (self.url, method, path.split("?")[0]),
                "%s." % trouble,
                "Nothing that was logged is lost: it is shipped when the server is back. "
                "See whether it runs: runyard status",
            )
        )
        error.code = "unavailable"
        return error


class _Trouble(Exception):
    """The server could not be spoken to; perhaps the next attempt can."""

    def __init__(self, text, cause=None, was_sent=True):
        super(_Trouble, self).__init__(text)
        self.was_sent = was_sent  # the server may have done what it was asked for
        number = getattr(cause, "errno", None)
        self.broken_pipe = number in (errno.EPIPE, errno.ECONNRESET)
        # A certificate does not mend itself.
        self.final = getattr(cause, "reason", None) == "CERTIFICATE_VERIFY_FAILED"


def _on_network(call, *args, was_sent=True):
    """Call, and tell trouble with the network apart from trouble with local files."""
    try:
        return call(*args)
    except (OSError, http.client.HTTPException) as problem:
        raise _Trouble("%s: %s" % (type(problem).__name__, problem), problem, was_sent)


def _connect(address):
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    return kind(address.hostname, address.port, timeout=SOCKET_TIMEOUT)


def _content(response):
    return _on_network(response.read)


def _read_json(response):
    content = _content(response)
    try:
        return json.loads(content.decode("utf-8")) if content else {}
    except ValueError as problem:  # cut off, or some proxy's page
        raise _Trouble("the answer is not JSON: %s" % problem)


def _chunks(response):
    expected = response.length  # http.client does not complain about an early end
    got = 0
    while True:
        chunk = _on_network(response.read, CHUNK)
        if not chunk:
            break
        got += len(chunk)
        yield chunk
    if expected is not None and got != expected:
        raise _Trouble("the connection ended after %d of %d bytes" % (got, expected))


def _error(status, content):
    try:
        body = json.loads(content.decode("utf-8"))
        text = explain(body["what"], body.get("why", ""), body.get("fix", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        body = {}
        text = "The server answered with status %d: %s" % (status, _told(content))
    error = _BY_STATUS.get(status, ServiceException)(text, status_code=status)
    error.code = body.get("code", "")
    return error


def _told(content):
    return content[:500].decode("utf-8", "replace").strip() or "nothing more"


def _query(pairs):
    pairs = [(name, value) for name, value in pairs if value is not None]
    return "?" + urllib.parse.urlencode(pairs) if pairs else ""


def path_of(*segments):
    """A path of the API; `segments` are quoted, also their slashes."""
    return "/api/v1/" + "/".join(urllib.parse.quote(segment, safe="") for segment in segments)


def file_path_of(run_id, name):
    """The path of a run's file, whose name keeps its slashes."""
    return "%s/files/%s" % (path_of("runs", run_id), urllib.parse.quote(name, safe="/"))
