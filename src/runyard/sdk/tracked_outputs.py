"""The folder of an interactive run whose files are kept when the run ends."""

import contextlib
import os
import time
from pathlib import Path

from runyard.sdk.run_files import StrPath, folder_paths

CLOCK_SLACK_SECONDS = 2.0  # file systems and clocks do not agree to the second


class TrackedOutputs:
    """A folder; with `since`, only what was written there after that time counts."""

    def __init__(self, folder: StrPath, since: float | None = None) -> None:
        self._folder = Path(os.fspath(folder)).absolute()
        self._since = since
        self._made = False

    @classmethod
    def default(cls) -> "TrackedOutputs":
        """`./outputs`, made if it is missing, as v1 did: notebooks write there unasked.

        What earlier runs left there is not this run's.
        """
        tracked = cls("outputs", since=time.time() - CLOCK_SLACK_SECONDS)
        with contextlib.suppress(OSError):  # a folder one may not write to has no outputs either
            tracked._folder.mkdir()
            tracked._made = True
        return tracked

    def files(self) -> dict[str, StrPath]:
        """What is to be kept, by the name it gets."""
        if not self._folder.is_dir():
            return {}
        found = folder_paths(self._folder.name, self._folder)
        if self._since is None:
            return found
        return {name: path for name, path in found.items() if os.stat(path).st_mtime >= self._since}

    def let_go(self) -> None:
        """The run is over: a folder that was made for it and never used goes too."""
        if self._made:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
