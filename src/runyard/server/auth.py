"""Who is calling, from where, and whether they may.

Three doors, in this order: the Host header must name this server (a page of an attacker may
make its own name point at our address), an unsafe verb must not come from another site's page,
and the token must grant what the route asks for.
"""

import functools
import hashlib
import hmac
import ipaddress
import time
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import cookie_parser
from starlette.types import Scope

from runyard.domain.errors import Denied
from runyard.domain.tokens import Grant, Role, mint, verify
from runyard.server.platform import Platform
from runyard.server.routing import Permission, header
from runyard.settings import Settings

TICKET_SECONDS = 12 * 3600

_NOBODY = Grant(role=Role.VIEWER)  # what a public route's handler sees
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_READERS = frozenset({Role.OWNER, Role.RUN, Role.VIEWER})
_WRITERS = frozenset({Role.OWNER, Role.RUN})

ROLES: dict[Permission, frozenset[Role]] = {
    Permission.PUBLIC: _READERS,
    Permission.READ: _READERS,
    Permission.PAGE: _READERS,
    Permission.WRITE: frozenset({Role.OWNER}),
    Permission.JOB: _WRITERS,
    Permission.RUN: _WRITERS,  # and `check_run`
    Permission.SUPERVISE: _WRITERS,  # and `check_run`
    Permission.SUBMIT: _WRITERS,  # and `check_parent`
}


class Unauthenticated(Denied):
    """No token, or one that is not valid here."""

    status = 401


class Guard:
    """Checks requests before anything else sees them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._owner = platform.owner_token.encode()
        self._hosts = allowed_hosts(platform.settings)
        self.cookie = cookie_name(platform.secret)

    def check_origin(self, scope: Scope) -> None:
        """`Denied` unless the request is meant for us and not another site's idea."""
        host = header(scope, b"host") or ""
        if host_name(host) not in self._hosts:
            raise Denied(
                f"This server does not answer to the name {host[:100]!r}.",
                why="The Host header is checked, so that no web page can reach it by a trick.",
                fix="Use its own address, or add the name to RUNYARD_ALLOWED_HOSTS.",
            )
        if scope["method"] in _SAFE:
            return
        site = header(scope, b"sec-fetch-site")
        origin = header(scope, b"origin")
        foreign = site is not None and site not in ("same-origin", "none")
        if foreign or (origin is not None and not _same_origin(origin, host)):
            raise Denied("A page of another site may not change anything here.")

    def grant(self, scope: Scope, permission: Permission) -> Grant:
        """What the caller's token grants, if that is enough by its role; else `Denied`."""
        if permission is Permission.PUBLIC:
            return _NOBODY
        grant = self._authenticate(scope, permission)
        if grant.role not in ROLES[permission]:
            raise _not_enough(grant)
        return grant

    def _authenticate(self, scope: Scope, permission: Permission) -> Grant:
        value = header(scope, b"authorization")
        if value is not None:
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                token = token.strip()
                if hmac.compare_digest(token.encode(), self._owner):
                    return Grant(role=Role.OWNER)
                grant = verify(self._platform.secret, token, time.time())
                if grant is not None:
                    return grant
            raise Unauthenticated(
                "The token is not valid here.",
                why="It is of another server, too old, or was changed on its way.",
                fix="Use the text in the file `token` of the server's home folder.",
            )
        if Role.VIEWER in ROLES[permission] and scope["method"] in _SAFE:
            ticket = cookie_parser(header(scope, b"cookie") or "").get(self.cookie, "")
            secret = self._platform.secret
            grant = viewer_grant(secret, ticket)
            if grant is None and permission is Permission.PAGE:
                grant = viewer_grant(secret, _ticket_of(scope))
            if grant is not None:
                return grant
        raise Unauthenticated(
            "A token is needed.",
            why="The request has no Authorization header.",
            fix="Send `Authorization: Bearer TOKEN`; the owner's token is in the file `token` "
            "of the server's home folder.",
        )

    async def check_run(self, permission: Permission, grant: Grant, run_id: str) -> None:
        """`NotFound` without such a run; `Denied` if the caller is no part of its family."""
        lineage = self._platform.lineage
        if not lineage.knows(run_id):
            await self._platform.in_thread(lineage.parent, run_id)
        if grant.role is Role.OWNER:
            return
        if grant.subject == run_id:
            if permission is Permission.SUPERVISE:
                raise Denied(
                    f"Run '{run_id}' may not end itself.",
                    why="Its state follows from how its script ends.",
                    fix="Let the script exit, with a code other than 0 if it failed.",
                )
            return
        if not await self._platform.in_thread(lineage.descends, run_id, grant.subject):
            raise _not_enough(grant)


def viewer_grant(secret: bytes, ticket: str) -> Grant | None:
    """What a ticket grants; None if it is not valid, or no viewer's."""
    grant = verify(secret, ticket, time.time()) if ticket else None
    return grant if grant is not None and grant.role is Role.VIEWER else None


def _ticket_of(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"))
    return next((value for key, value in pairs if key == "ticket"), "")


def check_parent(platform: Platform, grant: Grant, parent: str | None) -> None:
    """`Denied` unless the caller may give that run a child."""
    if grant.role is Role.OWNER or grant.subject == parent:
        return
    if parent is None or not platform.lineage.descends(parent, grant.subject):
        raise _not_enough(grant)


def may_write(platform: Platform, grant: Grant, run_id: str) -> bool:
    """True if the caller may write that run: it is the owner, the run, or an ancestor."""
    if grant.role is Role.OWNER:
        return True
    return grant.subject == run_id or platform.lineage.descends(run_id, grant.subject)


def make_ticket(secret: bytes, now: float) -> str:
    """A ticket that lets a browser read, for a while."""
    return mint(secret, Role.VIEWER, "", int(now) + TICKET_SECONDS)


def _not_enough(grant: Grant) -> Denied:
    if grant.role is Role.RUN:
        why = f"The token of run '{grant.subject}' writes that run and its children only."
    else:
        why = "A viewer's ticket only reads."
    return Denied("This token does not allow that.", why=why, fix="Use the owner's token.")


def cookie_name(secret: bytes) -> str:
    """The cookie of this server: browsers mix up the cookies of ports of one host."""
    return "runyard_" + hashlib.sha256(b"cookie" + secret).hexdigest()[:12]


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The names this server answers to, in lower case."""
    names = {"127.0.0.1", "localhost", "::1", settings.host, *settings.allowed_hosts}
    return frozenset(name.strip("[]").lower() for name in names) - {"0.0.0.0", "::", ""}


@functools.lru_cache(maxsize=256)  # every request asks, nearly always for the same one
def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; empty if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises on a port that is no number
        name = parts.hostname or ""
    except ValueError:
        return ""
    if parts.netloc != host or "@" in host:
        return ""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".")


def _same_origin(origin: str, host: str) -> bool:
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
