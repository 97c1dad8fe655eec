"""`runyard …`: the entry point. Kept light: what a command needs is imported when it runs."""

import os
import sys
from collections.abc import Sequence

from runyard import __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):  # without click this takes a third of the time
        sys.stdout.write(f"runyard {__version__}\n")
        return
    from runyard.cli.commands import run

    code = run(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`head`) has seen enough; what is buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
