"""Writing a file so that it is there whole, or not at all."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` fill a draft beside `target`, and put it in place when it is complete."""
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}-{threading.get_ident()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as sink:
            write(sink)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
