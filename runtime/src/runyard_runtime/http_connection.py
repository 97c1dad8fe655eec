"""One HTTP/1.1 connection, spoken by hand, for many small answers or a long one.

`http.client` parses headers as mail and cannot be told which address to connect to.
"""

import base64
import os
import select
import socket

_PIECE = 1 << 20
_LONGEST_LINE = 1 << 16
_MOST_HEADERS = 200
_MOST_HEADS = 10  # of one answer: "100 Continue" and the like come before it
_LONGEST_NUMBER = 18
_DIGITS = frozenset("0123456789")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_MOMENT_MS = 2  # how long more is waited for before a piece is handed on
_DRAINED = 1 << 16  # the rest of an answer that is read to keep the connection

# Where systems keep certificates, for interpreters that were built elsewhere and find none.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


class Broken(Exception):
    """The connection could not be made, or ended before the answer did."""


class Connection:
    """An open connection; `request` gives one answer at a time."""

    def __init__(self, connected):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._reader = connected.makefile("rb", 1 << 16)
        self.used = 0
        self.is_open = True

    def request(self, method, target, headers):
        """Send a request without a body; the answer's head."""
        lines = ["%s %s HTTP/1.1" % (method, target)]
        lines += ["%s: %s" % one for one in headers]
        data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        try:
            self._socket.sendall(data)
            answer = Answer(self, self._reader, method)
        except (OSError, ValueError) as error:
            self.close()
            raise Broken(words(error))
        except Broken:
            self.close()
            raise
        self.used += 1
        return answer

    def has_more(self):
        """True if more has come, or comes in a moment."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(_MOMENT_MS))

    def close(self):
        """Give it up."""
        self.is_open = False
        for one in (self._reader, self._socket):
            try:
                one.close()
            except OSError:
                pass


class Answer:
    """The head of an answer, and its body to be read once."""

    def __init__(self, connection, reader, method):
        self._connection = connection
        self._reader = reader
        for _ in range(_MOST_HEADS):
            first = self._line().split(None, 2)
            if len(first) < 2 or not first[0].startswith("HTTP/1.") or number(first[1]) < 100:
                raise Broken("this is not HTTP")
            self.status = number(first[1])
            self.headers = self._read_headers()
            if self.status >= 200:
                break
        else:
            raise Broken("the answer is announced again and again, and does not come")
        self.length = self._body_length(method)  # None: until the connection ends, or in chunks
        self._keep = self.headers.get("connection", "").lower() != "close"
        self._keep = self._keep and first[0] != "HTTP/1.0"
        self._over = self.length == 0
        self._begun = False

    def pieces(self):
        """The body as memoryviews; each is good until the next is asked for. Broken if cut."""
        self._begun = True
        try:
            for piece in self._pieces():
                yield piece
            self._over = True
        except (OSError, ValueError) as error:
            raise Broken(words(error))
        finally:
            self.close()

    def close(self):
        """Done with this answer; the connection stays only if the body was read."""
        short = self.length is not None and self.length < _DRAINED
        if short and self._keep and not self._over and not self._begun:
            self._drain()
        if not (self._over and self._keep):
            self._connection.close()

    def _drain(self):
        try:
            self._over = len(self._reader.read(self.length)) == self.length
        except (OSError, ValueError):
            pass

    def _pieces(self):
        if self._over:
            return
        view = memoryview(bytearray(min(self.length or _PIECE, _PIECE)))
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            for piece in self._chunks(view):
                yield piece
        elif self.length is None:
            self._keep = False
            for count in iter(lambda: self._reader.readinto(view), 0):
                yield view[:count]
        else:
            for piece in self._some(self.length, view):
                yield piece

    def _chunks(self, view):
        while True:
            size = number(self._line().partition(";")[0].strip(), 16)
            if size < 0:
                raise Broken("the answer has a chunk without a length")
            for piece in self._some(size, view):
                yield piece
            if size == 0:
                self._read_headers()  # trailers
                return
            self._line()

    def _some(self, left, view):
        """The next `left` bytes, in pieces as large as come in a moment.

        Large, because the kernel reads a file faster that was written in large pieces; but what
        comes slowly is handed on, since somebody may be waiting for it.
        """
        while left:
            most = min(left, len(view))
            filled, problem = 0, None
            while filled < most and (not filled or self._connection.has_more()):
                try:
                    count = self._reader.readinto1(view[filled:most])
                except OSError as error:
                    count, problem = 0, error
                if not count:
                    problem = problem or Broken("the connection ended before the answer did")
                    break
                filled += count
            if filled:
                left -= filled
                yield view[:filled]
            if problem is not None:
                raise problem

    def _line(self):
        line = self._reader.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise Broken("the connection ended before the answer did")
        return line.rstrip(b"\r\n").decode("latin-1")

    def _read_headers(self):
        headers = {}
        for count, line in enumerate(iter(self._line, "")):
            if count >= _MOST_HEADERS:
                raise Broken("the answer has too many headers")
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return headers

    def _body_length(self, method):
        if method == "HEAD" or self.status in (204, 304):
            return 0
        if "transfer-encoding" in self.headers or "content-length" not in self.headers:
            return None
        length = number(self.headers["content-length"])
        if length < 0:
            raise Broken("the answer has a length that is no number")
        return length


def number(text, base=10):
    """The number that an answer writes with digits alone; -1 if it is none, or absurdly long."""
    digits = _DIGITS if base == 10 else _HEX_DIGITS
    fine = text and len(text) <= _LONGEST_NUMBER and digits.issuperset(text)
    return int(text, base) if fine else -1


def connect(addresses, timeout, read_timeout, tls_name=None, proxy=None, tunnel=None):
    """A connection to the first of these socket addresses that answers.

    `tls_name` is the name that the certificate must have; `tunnel` is the "host:port" that a proxy
    is asked for first, with the value `proxy` for its Proxy-Authorization.
    """
    problem = None
    for family, address in addresses:
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout)
            opened.connect(address)
            if tunnel is not None:
                _ask_tunnel(opened, tunnel, proxy)
            if tls_name is not None:
                opened = _encrypt(opened, tls_name)
            opened.settimeout(read_timeout)
            return Connection(opened)
        except (OSError, ValueError, Broken) as error:
            opened.close()
            problem = problem or error
    raise Broken(words(problem) if problem else "it has no address")


def basic(user, password):
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode("utf-8")).decode("ascii")


def words(error):
    """An error in words for people."""
    if isinstance(error, socket.timeout):
        return "it does not answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _ask_tunnel(opened, tunnel, authorization):
    lines = ["CONNECT %s HTTP/1.1" % tunnel, "Host: " + tunnel]
    if authorization:
        lines.append("Proxy-Authorization: " + authorization)
    opened.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # a byte at a time: what follows is not ours to read
        byte = opened.recv(1)
        if not byte or len(head) > _LONGEST_LINE:
            raise Broken("the proxy closed the connection")
        head += byte
    first = head.split(b"\r\n")[0].decode("latin-1").split(None, 2)
    if len(first) < 2 or first[1] != "200":
        raise Broken("the proxy refused: %s" % " ".join(first[1:]))


def _encrypt(opened, name):
    import ssl

    context = ssl.create_default_context()
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        place = os.environ.get(variable)
        if place and os.path.isdir(place):
            context.load_verify_locations(capath=place)
        elif place and os.path.exists(place):
            context.load_verify_locations(place)
    if not context.cert_store_stats()["x509_ca"]:
        for place in BUNDLES:
            if os.path.exists(place):
                context.load_verify_locations(place)
                break
    return context.wrap_socket(opened, server_hostname=name)
