"""Where the bytes of a dataset's files are: a public address, the server, or blobs here."""

import collections
import hashlib
import os
import time
from urllib.parse import quote

from runyard_runtime import job_folder
from runyard_runtime.fetch import Fetcher, FetchFailed

File = collections.namedtuple("File", "path size origin stamp")

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0
_SERVER_ERRORS = 3  # how often an error of the server itself is doubted
_HEX = frozenset("0123456789abcdef")


def files_of(resolved):
    """The files of a ResolvedData as it came over the wire."""
    return [File(*(list(row) + [""])[:4]) for row in resolved["files"]]


class Origins:
    """Fetches the bytes of `File`s. `plan` is the agent's, or has the same keys.

    A server that is away is waited for as long as `is_wanted()`; `sleep` may raise to end it.
    """

    def __init__(self, plan, is_wanted=None, sleep=time.sleep):
        fetching = plan.get("fetching") or {}
        self._web = Fetcher(
            mirrors=fetching.get("mirrors"),
            allow_private=bool(fetching.get("allow_private")),
            max_bytes=fetching.get("max_bytes"),
            sleep=sleep,
        )
        token = ("Authorization", "Bearer %s" % plan["token"])
        # The server's own address was given by the server: neither guard nor proxy is for it.
        self._server = Fetcher(
            allow_private=True, environ={}, headers=[token], sleep=sleep, tries=1
        )
        self._url = plan["url"].rstrip("/")
        self._address_file = plan.get("address_file")
        self._blobs = plan.get("blobs")
        self._is_wanted = is_wanted or (lambda: True)
        self._sleep = sleep

    def local(self, file):
        """The path of its content if this machine has the server's own blob of it, or None."""
        digest = digest_of(file)
        if digest is None or not self._blobs:
            return None
        place = os.path.join(self._blobs, digest[:2], digest[2:])
        try:
            return place if os.stat(place).st_size == file.size else None
        except OSError:
            return None

    def fetch(self, file, stream, beginning=None, begun=None, arrived=None):
        """Fill an open file with it; see `Fetcher.fetch`."""
        known = [beginning]

        def remember(found):
            known[0] = found
            if begun is not None:
                begun(found)

        def once(url, fetcher):
            return fetcher.fetch(url, stream, known[0], remember, arrived)

        return self._patiently(file, once)

    def read(self, file, start, end):
        """The bytes [start, end) of it."""

        def once(url, fetcher):
            pieces = fetcher.read(url, start, end, stamp_of(file))
            return b"".join(bytes(piece) for piece in pieces)

        return self._patiently(file, once)

    def close(self):
        """Close connections."""
        self._web.close()
        self._server.close()

    def _patiently(self, file, once):
        kind, _, rest = file.origin.partition(":")
        if kind == "url":
            return once(rest, self._web)
        path = _server_path(kind, rest)
        delay, errors = _FIRST_DELAY, 0
        while True:
            try:
                return once(self._url + path, self._server)
            except FetchFailed as error:
                errors += error.status > 0
                if not error.again or errors >= _SERVER_ERRORS or not self._is_wanted():
                    raise FetchFailed(
                        "%r cannot be had from the server." % file.path,
                        error.why,
                        again=error.again,
                        status=error.status,
                    )
            self._sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
            known = job_folder.read_json(self._address_file) if self._address_file else None
            if isinstance(known, dict) and known.get("url"):
                self._url = known["url"].rstrip("/")


def digest_of(file):
    """The digest of a `blob:` origin, or None."""
    kind, _, digest = file.origin.partition(":")
    return digest if kind == "blob" and len(digest) == 64 and _HEX.issuperset(digest) else None


def stamp_of(file):
    """The stamp that an answer with its content has, or "": not known. Of blobs none is needed."""
    kind, _, rest = file.origin.partition(":")
    if kind == "store" and file.stamp:
        return '"%s"' % store_tag(rest.partition("/")[2], file.stamp)
    return file.stamp if kind == "url" else ""


def store_tag(path, stamp):
    """The etag under which the server hands out a store's file.

    A stamp is the store's text and may hold anything; a header may not.
    """
    text = "%s\n%s" % (path, stamp)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _server_path(kind, rest):
    if kind == "blob":
        return "/api/v1/blobs/" + quote(rest, safe="")
    if kind == "store":
        store, _, path = rest.partition("/")
        return "/api/v1/stores/%s/files/%s" % (quote(store, safe=""), quote(path))
    raise FetchFailed("The origin %r is not one that this runtime knows." % (kind + ":"))
