"""Texts and records without the credentials that URLs in them may hold. Pure."""

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

HIDDEN = "***@"

# A URL goes up to a blank, a quote or the next URL. Its scheme is short: a log may hold anything,
# and the search must not be slow on it.
_SCHEME = r"[A-Za-z][\w+.-]{0,15}://"
_URL = re.compile(rf"({_SCHEME})((?:(?!{_SCHEME})[^\s'\"])+)")
_MAY_HOLD = re.compile(rb"://[^\s'\"]*(?:@|/t/)")
_HOST = r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d*)?"
_AUTHORITY = re.compile(r"[^/?#]*")
_PLAIN = re.compile(_HOST)
_BEFORE_HOST = re.compile(rf"@(?={_HOST}(?:[^\w.:@-]|$))")
# A repository has a path: the @main behind it is a revision, no host.
_BEFORE_REPOSITORY = re.compile(rf"@(?={_HOST}/)")
_CONDA_TOKEN = re.compile(r"(?<=/t/)[\w-]+(?=/)")  # https://host/t/TOKEN/channel


def redact(text: str, hidden: str = HIDDEN) -> str:
    """The text with `hidden` in place of the user names and passwords of its URLs, *** of tokens.

    Passwords may hold @ and / as they are, which no URL should: where that leaves a doubt, rather
    too much is hidden than too little. Only `user:12/34@host` reads as a port and a path.
    """
    if "://" not in text or ("@" not in text and "/t/" not in text):
        return text
    return _URL.sub(lambda found: found[1] + _hide(found[1], found[2], hidden), text)


def _hide(scheme: str, rest: str, hidden: str) -> str:
    rest = _CONDA_TOKEN.sub("***", rest)
    authority = _AUTHORITY.match(rest)
    assert authority is not None  # it may be empty
    if "@" not in rest or _PLAIN.fullmatch(authority[0]) or not authority[0]:
        return rest
    before = _BEFORE_REPOSITORY if "+" in scheme else _BEFORE_HOST
    places = [found.start() for found in before.finditer(rest)]
    return hidden + rest[(places[-1] if places else rest.rindex("@")) + 1 :]


def redact_all(value: T) -> T:
    """The same value with every text in it redacted, however deep."""
    if isinstance(value, msgspec.Struct) and not _MAY_HOLD.search(msgspec.json.encode(value)):
        return value  # nearly always
    redacted: T = _redact_any(value)
    return redacted


def _redact_any(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redact_any(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_redact_any(item) for item in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _redact_any(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value
