"""What can go wrong that a user can do something about.

    RunyardError(what, why=, fix=)
    ├── NotFound        the thing does not exist
    ├── NoModelFiles    the run has no files where a model was looked for
    ├── Conflict        it exists already, or its state does not allow this
    ├── Stale           somebody else changed the record first; look again
    ├── Invalid         the request makes no sense as it stands
    ├── BlobsMissing    upload these contents first (`digests`)
    ├── WrongVerb       the path is there, but not for this HTTP verb
    ├── Unsupported     a sensible request that this platform or engine cannot serve
    ├── Denied          the token is missing, wrong or not allowed to do this
    ├── TooLarge        over a limit
    ├── EngineFailed    an engine or an environment builder could not do its work
    ├── Unavailable     the server cannot be reached or is stopping
    └── TimedOut        it took longer than allowed

`what` names the thing and the value, `why` states the fact, `fix` says what to type next.
Every class crosses HTTP and arrives as itself: `to_wire` and `from_wire` are inverse.
Bugs of the platform are plain exceptions and are never dressed as one of these.
"""

import re

import msgspec


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it travels."""

    code: str
    what: str
    why: str = ""
    fix: str = ""
    digests: tuple[str, ...] = ()


class RunyardError(Exception):
    """Something a user can mend: what happened, why, and what to do."""

    code = "error"
    status = 400  # the HTTP status that carries it

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class NotFound(RunyardError):
    """The thing does not exist."""

    code = "not_found"
    status = 404


class NoModelFiles(RunyardError):
    """The run has no files where a model was looked for."""

    code = "no_model_files"
    status = 404


class Conflict(RunyardError):
    """It exists already, or its state does not allow this."""

    code = "conflict"
    status = 409


class Stale(RunyardError):
    """Somebody else changed the record first; look again."""

    code = "stale"
    status = 412


class Invalid(RunyardError):
    """The request makes no sense as it stands."""

    code = "invalid"
    status = 400


class BlobsMissing(RunyardError):
    """The server lacks contents that the request refers to; upload them and ask again."""

    code = "blobs_missing"
    status = 424

    def __init__(
        self, what: str, *, why: str = "", fix: str = "", digests: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.digests = digests


class WrongVerb(RunyardError):
    """The path is there, but not for this HTTP verb."""

    code = "wrong_verb"
    status = 405


class Unsupported(RunyardError):
    """A sensible request that this platform or engine cannot serve."""

    code = "unsupported"
    status = 422


class Denied(RunyardError):
    """The token is missing, wrong, or not allowed to do this."""

    code = "denied"
    status = 403


class TooLarge(RunyardError):
    """Over a limit."""

    code = "too_large"
    status = 413


class EngineFailed(RunyardError):
    """An engine or an environment builder could not do its work."""

    code = "engine_failed"
    status = 502


class Unavailable(RunyardError):
    """The server cannot be reached, or is stopping."""

    code = "unavailable"
    status = 503


class TimedOut(RunyardError):
    """It took longer than allowed."""

    code = "timed_out"
    status = 504


BY_CODE: dict[str, type[RunyardError]] = {
    cls.code: cls
    for cls in (
        NotFound,
        NoModelFiles,
        Conflict,
        Stale,
        Invalid,
        BlobsMissing,
        WrongVerb,
        Unsupported,
        Denied,
        TooLarge,
        EngineFailed,
        Unavailable,
        TimedOut,
    )
}


def to_wire(error: RunyardError) -> ErrorBody:
    """The error as a value that can be sent."""
    digests = error.digests if isinstance(error, BlobsMissing) else ()
    return ErrorBody(
        code=error.code, what=error.what, why=error.why, fix=error.fix, digests=digests
    )


_TEXT = re.compile(r"(?P<what>.*?)(\n  why: (?P<why>.*?))?(\n  fix: (?P<fix>.*))?", re.DOTALL)


def from_text(text: str) -> RunyardError:
    """The error that reads so: the inverse of `str`, for a text that has lost its class."""
    found = _TEXT.fullmatch(text)
    assert found is not None  # it matches anything
    return RunyardError(found["what"], why=found["why"] or "", fix=found["fix"] or "")


def from_wire(body: ErrorBody) -> RunyardError:
    """The error that `to_wire` was given; an unknown code becomes the base class."""
    if body.code == BlobsMissing.code:
        return BlobsMissing(body.what, why=body.why, fix=body.fix, digests=body.digests)
    return BY_CODE.get(body.code, RunyardError)(body.what, why=body.why, fix=body.fix)
