"""The Python interpreters of this machine, for tests of what must run on all of them."""

import os
import re
import sys
from pathlib import Path

_NAME = re.compile(r"python3\.(\d+)")


def interpreters(*, extremes: bool = True) -> list[str]:
    """Paths of Python 3.6 and newer, oldest first; `extremes`: oldest, newest and this one."""
    found: dict[int, str] = {sys.version_info.minor: sys.executable}
    for folder in _folders():
        for path in sorted(folder.glob("python3.*")):
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) >= 6 and os.access(path, os.X_OK):
                found.setdefault(int(match[1]), str(path))
    minors = sorted(found)
    if extremes:
        minors = sorted({minors[0], minors[-1], sys.version_info.minor})
    return [found[minor] for minor in minors]


def _folders() -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    return sorted(root.glob("versions/*/bin")) + on_path
