"""Who may call a service: keys, of which only hashes are known here, and tokens that run out."""

import hashlib
import hmac
from collections.abc import Callable

from runyard.serving.front_config import Auth, FrontConfig


def hash_key(key: str) -> str:
    """What front.json holds in place of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def mint_token(secret: str, service: str, expires: int) -> str:
    """A token for one service, valid until `expires`, in seconds since the epoch."""
    return f"{expires}.{_signature(secret, service, str(expires))}"


def token_holds(secret: str, service: str, token: bytes, now: float) -> bool:
    """True if the token was signed for this service and has not run out."""
    expires, _, signature = token.partition(b".")
    if not (secret and expires.isdigit() and len(expires) < 20):
        return False
    wanted = _signature(secret, service, expires.decode("ascii"))
    return hmac.compare_digest(signature, wanted.encode()) and int(expires) >= now


def bearer(authorization: bytes | None) -> bytes:
    """The secret in an Authorization header; empty if there is none."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return b""
    return authorization[7:].strip()


def guard(config: FrontConfig, clock: Callable[[], float]) -> Callable[[bytes | None], bool]:
    """A function that says whether an Authorization header opens the door."""
    if config.auth is Auth.NONE:
        return lambda _: True
    if config.auth is Auth.TOKEN:
        secret, name = config.token_secret, config.name
        return lambda given: token_holds(secret, name, bearer(given), clock())
    digests = [bytes.fromhex(text) for text in config.key_hashes]

    def has_key(authorization: bytes | None) -> bool:
        digest = hashlib.sha256(bearer(authorization)).digest()
        # All are compared, so that the time does not say which one was near.
        return any([hmac.compare_digest(digest, known) for known in digests])

    return has_key


def _signature(secret: str, service: str, expires: str) -> str:
    claim = f"service.{service}.{expires}".encode()
    return hmac.new(secret.encode(), claim, hashlib.sha256).hexdigest()
