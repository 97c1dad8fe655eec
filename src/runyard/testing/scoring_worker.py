"""A scoring worker as its own process, and the front end's side of its socket."""

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from runyard_runtime import scoring_wire

PACKAGE = Path(scoring_wire.__file__).parents[1]


class Worker:
    """Starts a worker for a spec; `ask` sends requests, `failure` is how it failed to load."""

    def __init__(self, interpreter: Path, spec: dict[str, Any], **variables: str) -> None:
        # Not pytest's own folder: a socket's path may have 107 characters only.
        self.folder = tempfile.TemporaryDirectory(prefix="ry-w-")
        path = Path(self.folder.name)
        self.socket_path = path / "w0.sock"
        spec = {"sockets": [str(self.socket_path)], "max_batch": 64, **spec}
        (path / "scoring.json").write_text(json.dumps(spec))
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        search = f"{PACKAGE}{os.pathsep}{PACKAGE / 'runyard_runtime' / 'shims'}"
        self.log = path / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [interpreter, "-m", "runyard_runtime.scoring", path / "scoring.json", "0"],
                env={**kept, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **variables},
                stdout=log,
                stderr=log,
                cwd=path,
            )

    def __enter__(self) -> "Worker":
        while not self.socket_path.exists():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.connection = self.connect()
        self.stream = self.connection.makefile("rb")
        self.hello = scoring_wire.read_hello(self.stream)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stream.close()
        self.connection.close()
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.socket_path))
        return connection

    def send(self, *requests: tuple[bytes, bytes]) -> list[tuple[int, bytes, bytes]]:
        """The replies to one batch of (head, body)."""
        self.connection.sendall(scoring_wire.encode_batch(requests))
        replies: list[tuple[int, bytes, bytes]] = scoring_wire.read_replies(self.stream)
        return replies

    def ask(self, *documents: Any, **head: Any) -> list[tuple[int, Any]]:
        """(status, document) for each of a batch of JSON bodies."""
        told = json.dumps(head).encode() if head else b""
        found = self.send(*((told, json.dumps(one).encode()) for one in documents))
        return [(status, json.loads(body)) for status, _, body in found]

    def get(self, path: str) -> tuple[int, Any]:
        """What a GET of a path answers."""
        [(status, _, body)] = self.send((json.dumps({"method": "GET", "path": path}).encode(), b""))
        return status, json.loads(body)

    def failure(self) -> tuple[int, str]:
        """The exit code of a worker that cannot load, and all that it printed."""
        try:
            code = self.process.wait(timeout=120)
            return code, self.log.read_text()
        finally:
            self.folder.cleanup()
