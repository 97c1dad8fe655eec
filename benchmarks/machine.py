"""What the machine is and does: conditions, clean variables, processes, ports."""

import os
import platform
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def conditions() -> dict[str, object]:
    """What a reader must know to judge a figure."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load before": round(os.getloadavg()[0], 2),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "durability": "SQLite WAL, synchronous FULL: a write has returned when it is on disk",
    }


def clean_environ(**more: str) -> dict[str, str]:
    """This process's variables without what would favour one side: ours, Python's, the peers'."""
    dropped = ("RUNYARD_", "PYTHON", "MLFLOW_", "RAY_", "AZUREML_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return kept | more


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="runyard-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(check: Callable[[], bool], *, timeout: float, pause: float = 0.01) -> float:
    """Seconds until `check` is true; TimeoutError after `timeout`."""
    begun = time.perf_counter()
    while not check():
        if time.perf_counter() - begun > timeout:
            raise TimeoutError(f"nothing after {timeout:g} s")
        time.sleep(pause)
    return time.perf_counter() - begun


def descendants(pid: int) -> list[int]:
    """The process and all that it started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo.extend(children.get(one, []))
    return found


def resident_mb(pid: int) -> float:
    """Resident memory of a process and all that it started, in MB."""
    total = 0
    for one in descendants(pid):
        with suppress(OSError):
            pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total / 1e6


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors so far, without what it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_marked(mark: str) -> None:
    """Kill every process with `mark` in its command or variables: what left its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if mark.encode() in words:
                    os.kill(int(entry.name), signal.SIGKILL)


def end_tree(pid: int) -> None:
    """Kill a process that we started, and all that it started."""
    for one in reversed(descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def alive(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
