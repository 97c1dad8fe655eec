"""The one door for everything outbound: guarded, patient, and able to go on after a cut.

    fetcher = Fetcher(mirrors={…}, allow_private=False, max_bytes=None)
    fetcher.head(url)              → Remote(size, stamp, ranges)
    fetcher.download(url, path)    → Fetched(size, digest, stamp)
    fetcher.read(url, start, end)  → the pieces of a part

Only http and https. A name is resolved once, and the connection goes to the address that was
checked; so does every redirect. Through a proxy of the environment the proxy resolves, and is the
gate; what can be told from here is checked all the same. Names of files are never taken from an
answer. One fetcher may be used by many threads.
"""

import collections
import errno
import hashlib
import os
import threading
import time
from urllib.parse import quote, unquote, urljoin, urlsplit

from runyard_runtime import outbound
from runyard_runtime.http_connection import Broken, basic, connect, number

MOST_REDIRECTS = 5
_TRIES = 5
_HEAD_TRIES = 2  # somebody waits for the answer
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0
_IDLE_MOST = 16  # connections kept for later
_FULL = (errno.ENOSPC, errno.EDQUOT)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "/:?#[]@!$&'()*+,;=%~-._"  # of a URL; anything else is quoted

Remote = collections.namedtuple("Remote", "size stamp ranges")
Fetched = collections.namedtuple("Fetched", "size digest stamp")
Beginning = collections.namedtuple("Beginning", "validator total stamp")


class FetchFailed(Exception):
    """Something could not be fetched: what, why, and what to do. Never holds a secret.

    `again` says whether asking later may help; `status` is the HTTP answer, 0 if there was none;
    `disk_full` whether this machine has no room for it.
    """

    def __init__(self, what, why="", fix="", again=False, status=0, disk_full=False):
        Exception.__init__(self, " ".join(part for part in (what, why, fix) if part))
        self.what = what
        self.why = why
        self.fix = fix
        self.again = again
        self.status = status
        self.disk_full = disk_full


class _Cut(Exception):
    """The answer ended before it was whole; `args[0]` says how."""


class Fetcher:
    """Fetches addresses under one set of rules."""

    def __init__(
        self,
        mirrors=None,
        allow_private=False,
        max_bytes=None,
        connect_seconds=15.0,
        read_seconds=60.0,
        environ=None,
        headers=(),
        resolve=outbound.resolve,
        is_public=outbound.is_public,
        sleep=time.sleep,
        tries=_TRIES,
    ):
        self._mirrors = dict(mirrors or {})
        self._allow_private = allow_private
        self._max_bytes = max_bytes
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._environ = os.environ if environ is None else environ
        self._headers = list(headers)
        self._resolve = resolve
        self._is_public = is_public
        self._sleep = sleep
        self._tries = tries  # of one request without a byte of progress
        self._idle = {}
        self._lock = threading.Lock()

    def head(self, url):
        """Size (-1: not said), stamp ("": none) and whether parts can be had."""

        def ask():
            try:
                return self._told("HEAD", url)
            except FetchFailed as error:
                if error.status not in (400, 403, 405, 501):
                    raise
            # Some servers, and all addresses signed for GET alone, refuse HEAD.
            return self._told("GET", url, [("Range", "bytes=0-0")])

        return self._patiently(ask, min(_HEAD_TRIES, self._tries))

    def _told(self, method, url, headers=()):
        answer = self._ask(method, url, headers)
        try:
            return _remote(answer)
        finally:
            self._keep(answer)

    def read(self, url, start, end, stamp=""):
        """The pieces of the bytes [start, end). FetchFailed if that part cannot be had."""
        headers = [("Range", "bytes=%d-%d" % (start, end - 1))]
        answer = self._patiently(lambda: self._ask("GET", url, headers), self._tries)
        found = _content_range(answer)
        known = _stamp(answer.headers)
        if answer.status != 206 or found is None or found[0] != start:
            self._keep(answer)
            raise FetchFailed("%s cannot be read in parts." % outbound.shown(url), status=200)
        if stamps_differ(stamp, known):
            self._keep(answer)
            raise _changed(url)
        try:
            for piece in answer.pieces():
                yield piece
        except Broken as error:
            raise _unreachable(url, error)
        finally:
            self._keep(answer)

    def download(self, url, path):
        """Fetch into a file, beside it first; what an earlier try left is gone on from."""
        part = path + ".part"
        note = part + ".json"
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(handle, "r+b") as stream:
            found = self.fetch(url, stream, load_beginning(note), lambda one: save(note, one))
        os.rename(part, path)
        _unlink(note)
        return found

    def fetch(self, url, stream, beginning=None, begun=None, arrived=None):
        """Fill a file that is open for reading and writing.

        What it holds is gone on from if `beginning` (of an earlier try) says what it is a part
        of. `begun(beginning)` is told as soon as that is known, `arrived(count)` of every piece.
        """
        transfer = _Transfer(url, stream, beginning, begun, arrived, self._max_bytes)
        tries, delay = 0, _FIRST_DELAY
        while True:
            before = transfer.offset
            try:
                answer = self._ask("GET", url, transfer.headers())
                try:
                    if transfer.take(answer):
                        return transfer.result()
                finally:
                    self._keep(answer)
                continue  # it has changed: once more from the start
            except (FetchFailed, _Cut) as error:
                if isinstance(error, FetchFailed) and not error.again:
                    raise
                if transfer.offset > before and transfer.can_resume():
                    tries, delay = 0, _FIRST_DELAY
                tries += 1
                if tries >= self._tries:
                    if isinstance(error, FetchFailed):
                        raise
                    raise _unreachable(url, error)
            self._sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def close(self):
        """Close the connections that are kept."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for one in connections:
                one.close()

    def _patiently(self, ask, tries):
        delay = _FIRST_DELAY
        while True:
            tries -= 1
            try:
                return ask()
            except FetchFailed as error:
                if not error.again or not tries:
                    raise
            self._sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _ask(self, method, url, headers=()):
        """The answer at the end of the redirects, if it is a success."""
        first = url
        for _ in range(MOST_REDIRECTS + 1):
            url = _checked(outbound.mirrored(url, self._mirrors))
            answer = self._exchange(method, url, headers, same_host=_host(url) == _host(first))
            if answer.status in _REDIRECTS and "location" in answer.headers:
                self._keep(answer)
                url = _joined(url, answer.headers["location"])
                continue
            if answer.status < 300 or answer.status == 416:
                return answer
            self._keep(answer)
            raise _refused(url, answer.status)
        raise FetchFailed(
            "%s cannot be fetched." % outbound.shown(first),
            "It redirects more than %d times." % MOST_REDIRECTS,
        )

    def _exchange(self, method, url, headers, same_host):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname
        proxy = outbound.proxy_for(parts.scheme, host, self._environ)
        target = quote(parts.path or "/", _SAFE)
        if parts.query:
            target += "?" + quote(parts.query, _SAFE)
        named = parts.netloc.rpartition("@")[2]
        lines = [("Host", named), ("Accept-Encoding", "identity"), ("User-Agent", "runyard")]
        lines += [("Accept", "*/*")] + list(headers)
        if same_host:
            lines += self._headers
        if parts.username is not None:
            login = basic(unquote(parts.username), unquote(parts.password or ""))
            lines.append(("Authorization", login))
        if proxy and parts.scheme == "http":
            target = "http://%s%s" % (named, target)
            if proxy[2]:
                lines.append(("Proxy-Authorization", proxy[2]))
        key = (parts.scheme, host, port, proxy)
        while True:
            connection = self._take(key) or self._connect(url, key)
            fresh = not connection.used
            try:
                answer = connection.request(method, target, lines)
                answer.key, answer.connection = key, connection
                return answer
            except Broken as error:
                if fresh:
                    raise _unreachable(url, error)
                # A kept connection that the other side closed meanwhile: no reason to wait.

    def _connect(self, url, key):
        scheme, host, port, proxy = key
        tls = host if scheme == "https" else None
        tunnel = ("[%s]:%d" if ":" in host else "%s:%d") % (host, port) if proxy and tls else None
        try:
            if proxy:
                self._guard_proxied(url, host, port)
                addresses = outbound.resolve(proxy[0], proxy[1])
            else:
                addresses = self._guard(url, self._resolve(host, port))
        except (OSError, UnicodeError) as error:
            raise _unreachable(url, "the name %r cannot be resolved (%s)" % (host, error))
        try:
            return connect(
                addresses,
                self._connect_seconds,
                self._read_seconds,
                tls,
                proxy[2] if proxy else None,
                tunnel,
            )
        except Broken as error:
            raise _unreachable(url, error)

    def _guard(self, url, addresses):
        """Those of the addresses that may be connected to."""
        if self._allow_private:
            return addresses
        public = [one for one in addresses if self._is_public(one[1][0])]
        if addresses and not public:
            raise FetchFailed(
                "%s is not fetched." % outbound.shown(url),
                "It leads to the private address %s." % addresses[0][1][0],
                "If that is meant, set RUNYARD_ALLOW_PRIVATE_ADDRESSES=1 for the server.",
            )
        return public

    def _guard_proxied(self, url, host, port):
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError):
            return  # only the proxy knows the name
        self._guard(url, addresses)

    def _take(self, key):
        with self._lock:
            idle = self._idle.get(key)
            return idle.pop() if idle else None

    def _keep(self, answer):
        """Keep the connection of an answer that was read to its end."""
        answer.close()
        connection = answer.connection
        if not connection.is_open:
            return
        with self._lock:
            idle = self._idle.setdefault(answer.key, [])
            if len(idle) < _IDLE_MOST:
                idle.append(connection)
                return
        connection.close()


class _Transfer:
    """One file on its way: how much of it is here, of what."""

    def __init__(self, url, stream, beginning, begun, arrived, most):
        self._url = url
        self._stream = stream
        self._begun = begun or (lambda beginning: None)
        self._arrived = arrived or (lambda count: None)
        self._most = most
        self._restarts = 0
        self._hash = hashlib.sha256()
        self.offset = 0
        self.beginning = beginning
        if beginning is not None and beginning.validator:
            self._read_what_is_here()

    def headers(self):
        """What to ask for: the rest, if the content is still the same."""
        if not self.offset or not self.can_resume():
            return []
        rest = ("Range", "bytes=%d-" % self.offset)
        return [rest, ("If-Range", self.beginning.validator)]

    def can_resume(self):
        """True if the other side can tell whether the content is still the same."""
        return self.beginning is not None and bool(self.beginning.validator)

    def take(self, answer):
        """Write the answer's body. False: the content changed, ask again from the start."""
        found = _beginning(answer)
        if self.offset:
            if answer.status != 206:
                # All of it again: it changed, or parts cannot be had.
                return self._start_again(answer, found)
            part = _content_range(answer)
            same = part is not None and part[0] == self.offset and part[2] == self.beginning.total
            if not same or (found.stamp and found.stamp != self.beginning.stamp):
                self._count_change()
                self._rewind()
                return False
        elif answer.status in (206, 416):  # no part was asked for
            raise _refused(self._url, answer.status)
        else:
            self._rewind()
            self._set(found)
        self._write(answer)
        return True

    def result(self):
        """What was fetched."""
        return Fetched(self.offset, self._hash.hexdigest(), self.beginning.stamp)

    def _start_again(self, answer, found):
        if found != self.beginning:
            self._count_change()
        self._rewind()
        if answer.status == 416:
            return False
        self._set(found)
        self._write(answer)
        return True

    def _count_change(self):
        self._restarts += 1
        if self._restarts > 1:
            raise _changed(self._url)

    def _set(self, found):
        self.beginning = found
        self._limit(found.total)
        self._begun(found)

    def _limit(self, size):
        if self._most is not None and size > self._most:
            has = "%d" % size if self.beginning.total >= 0 else "at least %d" % size
            raise FetchFailed(
                "%s is not fetched." % outbound.shown(self._url),
                "It has %s bytes; at most %d are allowed." % (has, self._most),
                "If it is meant, raise the server's RUNYARD_FETCH_LIMIT_GB.",
            )

    def _write(self, answer):
        try:
            for piece in answer.pieces():
                self._stream_write(piece)
                self._hash.update(piece)
                self.offset += len(piece)
                self._limit(self.offset)
                self._arrived(len(piece))
        except Broken as error:
            raise _Cut(str(error))
        if self.beginning.total >= 0 and self.offset != self.beginning.total:
            raise _Cut("%d of %d bytes came" % (self.offset, self.beginning.total))

    def _stream_write(self, piece):
        view = memoryview(piece)
        try:
            while view:  # an unbuffered file may take less than all
                view = view[self._stream.write(view) :]
        except OSError as error:
            raise not_kept(outbound.shown(self._url), error)

    def _rewind(self):
        make_empty(self._stream)
        self._hash = hashlib.sha256()
        self.offset = 0

    def _read_what_is_here(self):
        size = self._stream.seek(0, os.SEEK_END)
        if 0 <= self.beginning.total < size:
            self._rewind()
            return
        # If all is here, the last byte is asked for again: the answer tells whether it is right.
        left = min(size, self.beginning.total - 1) if self.beginning.total > 0 else size
        self._stream.seek(0)
        while left:
            piece = self._stream.read(min(left, 1 << 20))
            if not piece:
                break
            left -= len(piece)
            self._hash.update(piece)
            self.offset += len(piece)
        if self.offset < size:
            self._stream.truncate(self.offset)


def make_empty(stream):
    """Have an open file be empty and at its beginning.

    One that is empty already is left alone: ext4 takes a truncation for the replacing of a file
    and writes the new content to the disk when it is closed, which costs more than fetching it.
    """
    if stream.seek(0, os.SEEK_END):
        stream.seek(0)
        stream.truncate()


def not_kept(what, error):
    """The error for something that this machine cannot write."""
    full = error.errno in _FULL
    return FetchFailed(
        "%s cannot be kept on this machine." % what,
        "The disk is full." if full else "%s." % (error.strerror or error),
        "Free some space, or have the cache on a larger disk." if full else "",
        disk_full=full,
    )


def load_beginning(path):
    """The beginning that was saved there, or None."""
    from runyard_runtime.job_folder import read_json

    known = read_json(path)
    try:
        return Beginning(*known) if known else None
    except TypeError:
        return None


def save(path, beginning):
    """Note what a part is a part of."""
    import json

    from runyard_runtime.job_folder import write_atomically

    try:
        write_atomically(path, json.dumps(beginning).encode("utf-8"))
    except OSError:
        pass  # then a later try cannot go on from here; this one is not hurt


def _checked(url):
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname)
        fine = fine and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or any(ord(char) < 33 for char in parts.netloc):
        raise FetchFailed(
            "%s cannot be fetched." % outbound.shown(url),
            "It is not an http or https address.",
        )
    return url


def _joined(url, location):
    """Where a redirect leads."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise FetchFailed(
            "%s cannot be fetched." % outbound.shown(url),
            "It redirects to what is no address.",
        )


def _host(url):
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _remote(answer):
    part = _content_range(answer)
    if part is not None:
        return Remote(part[2], _stamp(answer.headers), True)
    size = number(answer.headers.get("content-length"))
    if answer.headers.get("transfer-encoding") or answer.status == 416:
        size = -1
    return Remote(size, _stamp(answer.headers), answer.headers.get("accept-ranges") == "bytes")


def _beginning(answer):
    """What an answer with the whole of a content says it is."""
    etag = answer.headers.get("etag", "")
    validator = etag if etag.startswith('"') else answer.headers.get("last-modified", "")
    total = answer.length if answer.length is not None else -1
    return Beginning(validator, total, _stamp(answer.headers))


def _stamp(headers):
    """What changes when the content does."""
    etag = headers.get("etag", "")
    return (etag[2:] if etag.startswith("W/") else etag) or headers.get("last-modified", "")


def stamps_differ(one, other):
    """True if both are known and of one kind, and not the same: an etag is no date."""
    comparable = one and other and one.startswith('"') == other.startswith('"')
    return bool(comparable and one != other)


def _content_range(answer):
    """(first, last, total) of a 206, or None; the total is -1 if it is not said."""
    unit, _, text = answer.headers.get("content-range", "").partition(" ")
    span, _, total = text.partition("/")
    first, _, last = span.partition("-")
    if answer.status != 206 or unit.lower() != "bytes" or number(first) < 0 or number(last) < 0:
        return None
    return number(first), number(last), number(total)


def _changed(url):
    return FetchFailed(
        "%s cannot be fetched." % outbound.shown(url),
        "Its content changes while it is read.",
        "Try again when nobody writes to it any more.",
    )


def _unreachable(url, error):
    return FetchFailed(
        "%s cannot be fetched." % outbound.shown(url),
        "%s." % str(error).rstrip("."),
        "Check the address and the network; if it has moved, add it to RUNYARD_MIRRORS.",
        again=True,
    )


def _refused(url, status):
    whys = {
        206: "The server sent a part that was not asked for",
        401: "It asks for a login",
        403: "The server does not allow it",
        404: "The server says that there is no such file",
        410: "The server says that it is gone",
    }
    why = whys.get(status, "The server answered")
    return FetchFailed(
        "%s cannot be fetched." % outbound.shown(url),
        "%s (HTTP %d)." % (why, status),
        "If it has moved, add it to the server's RUNYARD_MIRRORS." if status in (404, 410) else "",
        again=status in _AGAIN,
        status=status,
    )


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass
