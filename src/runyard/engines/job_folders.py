"""What engines share that keep a folder for each job: its name, words for agents, its removal."""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from runyard.domain.errors import Invalid
from runyard_runtime import inherited, job_folder, supervision

log = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_LOG_TAIL = 2000


def is_job_key(key: str) -> bool:
    """True if it can be the key of a job: it becomes a folder."""
    return _KEY.fullmatch(key) is not None


def check_job_key(key: str) -> None:
    """`Invalid` if it cannot be the key of a job."""
    if not is_job_key(key):
        raise Invalid(
            f"'{key}' cannot be the key of a job.",
            why="It becomes a name and a folder: letters, digits, '.', '_' and '-' only.",
        )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of `environ` agents and jobs see."""
    cleaned: dict[str, str] = inherited.clean(environ)
    return cleaned


def leave_word_to_stop(own: Path) -> None:
    """Have the agent of that folder that is starting, or the next one, stop at once."""
    path = own / "state.json"
    with contextlib.suppress(OSError):  # it is told again by the server when it reports
        own.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # else it is ending already, and says why
            word = json.dumps({"reason": supervision.STOPPED}).encode()
            job_folder.write_atomically(str(path), word)


def last_words(logs: Iterable[Path]) -> str:
    """The end of the first of those logs that has anything; empty: none has."""
    for path in logs:
        with contextlib.suppress(OSError):
            words = path.read_bytes()[-_LOG_TAIL:]
            if words.strip():
                return words.decode("utf-8", "replace").strip()
    return ""


def remove_folder(folder: Path) -> None:
    """Remove a folder, also if a script has closed parts of it to itself."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    for parent, names, _ in os.walk(folder):  # from the top: what is opened is looked into
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        log.warning("%s could not be removed; it takes space and does no harm", folder)
