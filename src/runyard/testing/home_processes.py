"""The processes of a server's home: found by what they are, and ended as by a power cut."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runyard.domain.server import ADDRESS_FILE
from runyard.testing.front_service import Load, own_numbers, wait_for

# Answers what it was sent, and says who did.
ECHO = """
import json
import os


def init():
    pass


def run(data):
    who = "VERSION %d" % os.getpid()
    return {"aml_response_body": json.loads(data), "aml_response_headers": {"X-Worker": who}}
"""


class HomeProcesses:
    """What runs for one home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def server(self) -> int:
        """The server that runs, or ran last."""
        return int(json.loads((self.home / ADDRESS_FILE).read_text())["pid"])

    def kill_server(self) -> None:
        """End the server without a word to it."""
        kill(self.server())

    def agent(self, run: str) -> int:
        """The process that looks after a run; 0: there is none."""
        for plan in (self.home / "jobs").glob("*/plan.json"):
            for file in plan.parent.glob("agent-*/pid"):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    pid = int(json.loads(file.read_text())["pid"])
                    if run in plan.read_text() and is_alive(pid):
                        return pid
        return 0

    def processes(self, mark: str) -> list[int]:
        """Every live process with that word in its command or variables."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if mark.encode() in words and is_alive(int(entry.name)):
                        found.append(int(entry.name))
        return found


def is_alive(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(*pids: int) -> None:
    """End processes without a word to them, and wait until they are gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_for(lambda pid=pid: not is_alive(pid), f"the end of {pid}")  # type: ignore[misc]


@contextmanager
def steady_load(port: int, clients: int = 4) -> Iterator[Load]:
    """Clients that ask an echo all the time; no request may fail."""
    load = Load(port, clients, own_numbers)
    try:
        load.wait_more(20)
        yield load
        load.wait_more(20)
    finally:
        load.stop()
    assert not load.failures, load.failures[:3]
