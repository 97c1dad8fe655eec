"""Where the workers of services listen: in the service's folder, or in a short one of our own.

The kernel takes only short paths for sockets. Where the home folder lies too deep, a folder is
made below the temporary one: with a name that nobody can know before, for its owner alone, and
noted in the service's folder, so that the next server finds it.
"""

import os
import shutil
import stat
import tempfile
from pathlib import Path

from runyard_runtime import job_folder

_LONGEST = 100  # the kernel takes 107 bytes
_LONGEST_NAME = 20  # of a socket
_NOTE = "sockets"


def find_folder(service_folder: Path) -> Path | None:
    """The folder of a service's sockets; None: it has to be made."""
    if len(os.fsencode(str(service_folder))) <= _LONGEST - _LONGEST_NAME:
        return service_folder if service_folder.is_dir() else None
    noted = _noted(service_folder)
    return noted if noted is not None and _is_ours(noted) else None


def make_folder(service_folder: Path) -> Path:
    """The folder of a service's sockets, made if it is not there."""
    service_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if found := find_folder(service_folder):
        return found
    made = Path(tempfile.mkdtemp(prefix="runyard-"))
    job_folder.write_atomically(str(service_folder / _NOTE), os.fsencode(str(made)), mode=0o600)
    return made


def remove_folders(service_folder: Path) -> None:
    """Remove the folder of a service, and that of its sockets."""
    noted = _noted(service_folder)
    if noted is not None and _is_ours(noted):
        shutil.rmtree(noted, ignore_errors=True)
    shutil.rmtree(service_folder, ignore_errors=True)


def _noted(service_folder: Path) -> Path | None:
    try:
        return Path(os.fsdecode((service_folder / _NOTE).read_bytes()))
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user's, and nobody else can do anything in it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and stat.S_IMODE(found.st_mode) == stat.S_IRWXU
    )
