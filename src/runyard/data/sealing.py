"""Credentials at rest: readable only with the server's secret, and never shown."""

import base64
import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from runyard.domain.errors import Conflict

_PURPOSE = b"runyard datastore credentials"  # the same secret also signs tokens, by another key
SHORTEST_SECRET = 4  # hiding shorter texts would hide half of every message


def seal(secrets: Mapping[str, str], server_secret: bytes) -> str:
    """The credentials as a text that says nothing without the server's secret."""
    if not secrets:
        return ""
    return _fernet(server_secret).encrypt(msgspec.json.encode(secrets)).decode()


def unseal(sealed: str, server_secret: bytes, *, of: str) -> dict[str, str]:
    """What `seal` was given; `Conflict` if it was sealed by another server."""
    if not sealed:
        return {}
    try:
        data = _fernet(server_secret).decrypt(sealed.encode())
    except InvalidToken:
        raise Conflict(
            f"The credentials of {of} cannot be read.",
            why="They were kept with another secret than the server's present one.",
            fix="Register or deploy it again, with overwrite=True.",
        ) from None
    return msgspec.json.decode(data, type=dict[str, str])


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without any of the secrets in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def _fernet(server_secret: bytes) -> Fernet:
    key = hashlib.blake2b(server_secret, key=_PURPOSE, digest_size=32).digest()
    return Fernet(base64.urlsafe_b64encode(key))
