"""Who is calling, from where, and whether they may.

Three doors, in this order: the Host header must name this server (a page of an attacker may
make its own name point at our address), an unsafe verb must not come from another site's page,
and the token must grant what the route asks for.

A token reaches no further than it must: that of a run (what its scripts have) and that of its
agent reach the run's workspace, and die with the attempt; a viewer's ticket reaches a run and its
descendants, or everything if its subject is empty. Scripts can read their token, so it must not
let anybody run code or decide how the run ended.
"""

import functools
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.requests import cookie_parser
from starlette.types import Scope

from runyard.domain.errors import Denied, NotFound
from runyard.domain.runs import RunSpec
from runyard.domain.tokens import Grant, Role, mint, verify
from runyard.server.platform import Platform
from runyard.server.routing import Permission, header
from runyard.settings import Settings

TICKET_SECONDS = 12 * 3600

_NOBODY = Grant(role=Role.VIEWER)  # what a public route's handler sees
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ALL = frozenset(Role)
_WRITERS = _ALL - {Role.VIEWER}

# By role alone; how far it reaches is for `Guard` and, of what no address names, for handlers.
ROLES: dict[Permission, frozenset[Role]] = {
    Permission.PUBLIC: _ALL,
    Permission.READ: _ALL,
    Permission.VIEW: _ALL,
    Permission.PAGE: frozenset({Role.OWNER, Role.VIEWER}),
    Permission.WRITE: frozenset({Role.OWNER}),
    Permission.JOB: _WRITERS,
    Permission.RUN: _WRITERS,
    Permission.SUPERVISE: _WRITERS,
    Permission.REPORT: frozenset({Role.OWNER, Role.AGENT}),
    Permission.SUBMIT: _WRITERS,  # and `check_submission`
}


_OF_A_FAMILY = frozenset({Permission.RUN, Permission.SUPERVISE})


class Unauthenticated(Denied):
    """No token, or one that is not valid here."""

    status = 401


class Superseded(Denied):
    """The token of an attempt that is over, or of the agent of a run that is."""

    status = 410


class Guard:
    """Checks requests before anything else sees them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._owner = platform.owner_token.encode()
        self._hosts = allowed_hosts(platform.settings)
        self._cookie = _cookie_prefix(platform.secret)

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

    async def admit(self, scope: Scope, permission: Permission, params: Mapping[str, str]) -> Grant:
        """What the caller's token grants, if that is enough for this address; else `Denied`."""
        if permission is Permission.PUBLIC:
            return _NOBODY
        *others, last = self._authenticate(scope, permission)
        for grant in others:  # the tickets that a browser has collected
            try:
                return await self._check(permission, grant, params)
            except Denied:
                continue
        return await self._check(permission, last, params)

    def _authenticate(self, scope: Scope, permission: Permission) -> Sequence[Grant]:
        value = header(scope, b"authorization")
        if value is not None:
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                token = token.strip()
                if hmac.compare_digest(token.encode(), self._owner):
                    return [Grant(role=Role.OWNER)]
                grant = verify(self._platform.secret, token, time.time())
                if grant is not None:
                    return [grant]
            raise Unauthenticated(
                "The token is not valid here.",
                why="It is of another server, too old, or was changed on its way.",
                fix="Use the text in the file `token` of the server's home folder.",
            )
        if Role.VIEWER in ROLES[permission] and scope["method"] in _SAFE:
            found = [_ticket_of(scope)] if permission is Permission.PAGE else []
            cookies = cookie_parser(header(scope, b"cookie") or "")
            found += [text for name, text in cookies.items() if name.startswith(self._cookie)]
            grants = [viewer_grant(self._platform.secret, ticket) for ticket in found]
            if any(grants):
                return [grant for grant in grants if grant is not None]
        raise Unauthenticated(
            "A token is needed.",
            why="The request has no Authorization header.",
            fix="Send `Authorization: Bearer TOKEN`; the owner's token is in the file `token` "
            "of the server's home folder.",
        )

    async def _check(
        self, permission: Permission, grant: Grant, params: Mapping[str, str]
    ) -> Grant:
        """The grant with how far it reaches; `Denied`, or `NotFound` without such a run."""
        if grant.role is Role.RUN and permission is Permission.REPORT:
            raise Denied(
                "The token of a script does not report how its run goes.",
                why="That is for its agent, which sees the script end.",
                fix="Let the script exit, with a code other than 0 if it failed.",
            )
        if grant.role not in ROLES[permission]:
            raise _not_enough(grant)
        if grant.role in (Role.RUN, Role.AGENT):
            grant = msgspec.structs.replace(grant, workspace=await self._living(grant))
            if permission is not Permission.REPORT:  # a report is answered: stop
                await self._check_attempt(grant.subject, grant.attempt)
        run_id, lineage = params.get("run"), self._platform.lineage
        if run_id is not None and not lineage.knows(run_id):
            await self._platform.in_thread(lineage.parent, run_id)
        match grant.role:
            case Role.OWNER:
                return grant
            case Role.VIEWER:
                return await self._check_viewer(permission, grant, run_id)
            case _:
                return await self._check_job(permission, grant, run_id, params.get("workspace"))

    async def _check_viewer(
        self, permission: Permission, grant: Grant, run_id: str | None
    ) -> Grant:
        if not grant.subject:
            return grant
        scoped = permission in (Permission.VIEW, Permission.PAGE)
        if scoped and run_id is not None and await self._is_family(run_id, grant.subject):
            return grant
        refusal = Unauthenticated if permission is Permission.PAGE else Denied
        raise refusal(
            "This ticket does not open that.",
            why=f"It is for the run '{grant.subject}' and its children.",
            fix="Ask for a link to what you want to see: runyard open [RUN]",
        )

    async def _check_job(
        self, permission: Permission, grant: Grant, run_id: str | None, workspace: str | None
    ) -> Grant:
        if workspace is not None:
            check_workspace(grant, workspace)
        if run_id is None:
            return grant
        check_workspace(grant, self._platform.lineage.workspace(run_id))
        if grant.subject == run_id:
            if permission is Permission.SUPERVISE:
                raise Denied(
                    f"Run '{run_id}' may not end itself.",
                    why="Its state follows from how its script ends.",
                    fix="Let the script exit, with a code other than 0 if it failed.",
                )
            return grant
        if permission is Permission.REPORT or (
            permission in _OF_A_FAMILY and not await self._is_family(run_id, grant.subject)
        ):
            raise _not_enough(grant)
        return grant

    async def _living(self, grant: Grant) -> str:
        """The workspace of a run whose token is still good; `Unauthenticated` if it is not.

        An agent is told `Superseded`: it ends its ranks on the word of its own server alone.
        """
        run_id, lineage = grant.subject, self._platform.lineage
        try:
            if lineage.knows_end(run_id):
                over = lineage.is_over(run_id)
            else:
                over = await self._platform.in_thread(lineage.is_over, run_id)
            if not over:
                return lineage.workspace(run_id)
        except NotFound:
            if grant.role is Role.AGENT:
                raise  # which is doubted for a while: the store may be being restored
        refusal = Superseded if grant.role is Role.AGENT else Unauthenticated
        raise refusal(
            "The token is not valid any more.",
            why=f"It is of the run '{run_id}', which is over.",
            fix="Use the owner's token: the text in the file `token` of the server's home folder.",
        )

    async def _check_attempt(self, run_id: str, attempt: int) -> None:
        """`Superseded` if another attempt has begun: a node that was cut off may be back."""
        lineage = self._platform.lineage
        if not attempt:
            return
        if lineage.knows_attempt(run_id, attempt):
            is_past = lineage.is_past(run_id, attempt)
        else:
            is_past = await self._platform.in_thread(lineage.is_past, run_id, attempt)
        if is_past:
            raise Superseded(
                f"Attempt {attempt} of run '{run_id}' is over.",
                why="The run was started again, and what an earlier attempt still sends would "
                "mix with that.",
                fix="End what still runs of it: there is nothing for it to do.",
            )

    async def _is_family(self, run_id: str, ancestor: str) -> bool:
        if run_id == ancestor:
            return True
        return await self._platform.in_thread(self._platform.lineage.descends, run_id, ancestor)


def viewer_grant(secret: bytes, ticket: str) -> Grant | None:
    """What a ticket grants; None if it is not valid, or no viewer's."""
    grant = verify(secret, ticket, time.time()) if ticket else None
    return grant if grant is not None and grant.role is Role.VIEWER else None


def _ticket_of(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"))
    return next((value for key, value in pairs if key == "ticket"), "")


def check_submission(platform: Platform, grant: Grant, spec: RunSpec) -> None:
    """`Denied` unless the caller may submit that: jobs only children, and none with a script."""
    if grant.role is Role.OWNER:
        return
    parent = spec.parent
    if parent is None or not may_write(platform, grant, parent):
        raise _not_enough(grant)
    if spec.script is not None:
        raise Denied(
            "A job may not submit a script.",
            why="Its token is in the environment of its processes; whoever got hold of it could "
            "run what they like.",
            fix="Submit from the client. Inside a job, run.child_run() makes runs to log to.",
        )


def check_workspace(grant: Grant, name: str) -> None:
    """`Denied` if the caller is a job of another workspace."""
    if grant.workspace not in ("", name):
        raise Denied(
            f"This token does not reach the workspace '{name}'.",
            why=f"It is of a run in '{grant.workspace}'.",
            fix="Use the owner's token.",
        )


def may_write(platform: Platform, grant: Grant, run_id: str) -> bool:
    """True if the caller may write that run: it is the owner, the run, or an ancestor."""
    if grant.role is Role.OWNER:
        return True
    return grant.subject == run_id or platform.lineage.descends(run_id, grant.subject)


def make_ticket(secret: bytes, run_id: str, now: float) -> str:
    """A ticket that lets a browser read a run and its descendants, for a while; "": everything."""
    return mint(secret, Role.VIEWER, run_id, int(now) + TICKET_SECONDS)


def _not_enough(grant: Grant) -> Denied:
    if grant.role in (Role.RUN, Role.AGENT):
        why = f"The token of run '{grant.subject}' writes that run and its children only."
    else:
        why = "A viewer's ticket only reads."
    return Denied("This token does not allow that.", why=why, fix="Use the owner's token.")


def cookie_name(secret: bytes, subject: str) -> str:
    """The cookie of a ticket: one for each run, so that a link does not close another's page."""
    return _cookie_prefix(secret) + hashlib.sha256(subject.encode()).hexdigest()[:12]


def _cookie_prefix(secret: bytes) -> str:
    # Ours alone: browsers mix up the cookies of ports of one host.
    return f"runyard_{hashlib.sha256(b'cookie' + secret).hexdigest()[:12]}_"


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The names this server answers to, in lower case."""
    public = urlsplit(settings.public_url or "").hostname or ""
    names = {"127.0.0.1", "localhost", "::1", settings.host, public, *settings.allowed_hosts}
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
