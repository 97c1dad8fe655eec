"""Tokens: who may do what. Pure; the secret comes in as an argument.

The owner's token is a random text in a file. Those of runs and agents and a viewer's ticket are
signed: `role.subject.expiry.signature`, so that no table of them is needed; those of an attempt
of a run have its number behind the expiry. What a run's and an agent's token are worth ends with
the attempt, whatever their expiry (`runyard.server.auth`).
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Whose token it is."""

    OWNER = "owner"  # may do everything
    RUN = "run"  # a script: reads its workspace, writes its own run and that run's children
    AGENT = "agent"  # who runs the script: may do the same, and reports how it goes
    VIEWER = "viewer"  # a link from `get_portal_url`: reads a run and its children


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid token says."""

    role: Role
    subject: str = ""  # a run's id; empty: the owner's, or a viewer's who sees everything
    attempt: int = 0  # of the run, whose later ones it does not speak for; 0: of all
    workspace: str = ""  # the only one it reaches, not part of the token; empty: all


def mint(secret: bytes, role: Role, subject: str, expires: int, *, attempt: int = 0) -> str:
    """A signed token that is valid until `expires`, in seconds since the epoch."""
    name = urlsafe_b64encode(subject.encode()).decode().rstrip("=")
    claim = f"{role}.{name}.{expires}" + (f".{attempt}" if attempt else "")
    return f"{claim}.{_signature(secret, claim)}"


def verify(secret: bytes, token: str, now: float) -> Grant | None:
    """What the token grants; None if it is forged, malformed or too old."""
    claim, _, signature = token.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(secret, claim).encode()):
        return None
    role, name, expires, *rest = claim.split(".")
    if float(expires) < now:
        return None
    subject = urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    return Grant(role=Role(role), subject=subject, attempt=int(rest[0]) if rest else 0)


def _signature(secret: bytes, claim: str) -> str:
    return hmac.new(secret, claim.encode(), hashlib.sha256).hexdigest()
