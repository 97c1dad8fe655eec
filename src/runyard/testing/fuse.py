"""Whether FUSE can be used here, for tests that need it and say so when they cannot run."""

import os
import shutil
from importlib.util import find_spec


def why_no_fuse() -> str:
    """Empty if FUSE can be used; else what is missing."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used here"
    if find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    if shutil.which("fusermount3") is None:
        return "fuse3 is not installed"
    return ""
