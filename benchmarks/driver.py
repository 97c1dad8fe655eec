"""Our end of a driver: a process of one side that is warm and waits to be told what to do."""

import json
import subprocess
from pathlib import Path
from types import TracebackType

from benchmarks.machine import end_tree

DRIVERS = Path(__file__).parent / "drivers"


class DriverFailed(Exception):
    """A driver could not do what it was told; the message is its traceback."""


class Driver:
    """A running driver. `ask` sends one request and waits for the answer."""

    def __init__(self, python: Path | str, name: str, environ: dict[str, str], cwd: Path) -> None:
        self.name = name
        self.environ = environ
        self.errors = cwd / f"driver-{name}.log"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [str(python), str(DRIVERS / f"{name}.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                cwd=cwd,
                text=True,
            )

    def ask(self, do: str, **arguments: object) -> object:
        """What the driver answers to the request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = self.errors.read_text(errors="replace")[-2000:]
            raise DriverFailed(f"{self.name} ended at '{do}':\n{tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverFailed(f"{self.name} could not '{do}':\n{answer['error']}")
        return answer["value"]

    def seconds(self, do: str, **arguments: object) -> float:
        """The time the driver took, as it measured it."""
        value = self.ask(do, **arguments)
        assert isinstance(value, float), value
        return value

    def __enter__(self) -> "Driver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            end_tree(self.process.pid)
            self.process.wait()
        self.process.stdout.close()
