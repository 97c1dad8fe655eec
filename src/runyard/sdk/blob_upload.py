"""Requests that refer to contents: only what the server lacks travels."""

from collections.abc import Callable, Mapping
from typing import BinaryIO, TypeVar

import msgspec

from runyard.domain.errors import BlobsMissing, Conflict, Invalid, RunyardError
from runyard.sdk.exceptions import as_v1, user_error
from runyard.sdk.session import Session

T = TypeVar("T")

ROUNDS = 5  # each round uploads what is missing; more than two means something else removes it
THREADS = 4


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A content that can be uploaded, as often as needed."""

    name: str  # for errors
    size: int
    open: Callable[[], BinaryIO]


def post_with_contents(
    session: Session,
    path: str,
    body: object,
    contents: Mapping[str, Content],
    *,
    answer: type[T],
    about_to_upload: Callable[[tuple[str, ...]], None] | None = None,
    timeout_seconds: float = 60.0,
    method: str = "POST",
) -> T:
    """Send `body`; upload the contents that the server says it lacks, and send it again.

    The request must be safe to repeat. Errors are the domain's.
    """
    for _ in range(ROUNDS):
        try:
            return session.client.request(
                method,
                path,
                body=body,
                answer=answer,
                safe_to_repeat=True,
                timeout_seconds=timeout_seconds,
            )
        except BlobsMissing as missing:
            unknown = [digest for digest in missing.digests if digest not in contents]
            if unknown or not missing.digests:
                raise
            if about_to_upload is not None:
                about_to_upload(missing.digests)
            upload_contents(session, {digest: contents[digest] for digest in missing.digests})
    raise RunyardError(
        "The server keeps losing contents that were just uploaded.",
        fix="See its log: runyard doctor",
    )


def upload_missing(
    session: Session,
    contents: Mapping[str, Content],
    *,
    about_to_upload: Callable[[tuple[str, ...]], None] | None = None,
) -> None:
    """Upload those of the contents that the server lacks."""
    missing = session.client.request(
        "POST",
        "/api/v1/blobs/missing",
        body=list(contents),
        answer=tuple[str, ...],
        safe_to_repeat=True,
    )
    if about_to_upload is not None:
        about_to_upload(missing)
    upload_contents(session, {digest: contents[digest] for digest in missing})


def upload_contents(session: Session, contents: Mapping[str, Content]) -> None:
    """Upload contents, a few at a time. The first failure is raised when all have ended."""
    if len(contents) < 2:
        for digest, content in contents.items():
            _upload(session, digest, content)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS, thread_name_prefix="runyard-upload") as pool:
        jobs = [pool.submit(_upload, session, *item) for item in contents.items()]
        try:
            for job in jobs:
                job.result()
        finally:
            for job in jobs:
                job.cancel()


def _upload(session: Session, digest: str, content: Content) -> None:
    try:
        with content.open() as source:
            session.client.upload(f"/api/v1/blobs/{digest}", source, content.size)
    except (Invalid, Conflict):
        raise user_error(
            f"'{content.name}' changed while it was being uploaded.",
            why="What arrived is not what was announced.",
            fix="Wait until nothing writes to it, and try again.",
        ) from None
    except OSError as error:
        raise user_error(
            f"'{content.name}' cannot be read.", why=f"{error.strerror or error}."
        ) from None
    except RunyardError as error:
        raise as_v1(error) from None
