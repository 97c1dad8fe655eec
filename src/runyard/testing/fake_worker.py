"""A small real worker: `python -m runyard.testing.fake_worker SOCKET [OPTION=VALUE …]`.

It speaks as scoring workers do and echoes. What it does with a request is in the request: a JSON
body {"sleep": seconds}, {"die": true}, {"status": 418}, {"headers": {…}}, {"head": "the head of the
reply"}; anything else comes back as it is. Heads come back in the header X-Head. Options:
max_batch, load (seconds before it listens), name (in the header X-Worker), methods (with commas),
headers (wanted of every request), once (a file: die only while it does not exist).
"""

import base64
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from runyard_runtime import scoring_wire


class Echo:
    """Answers batches."""

    def __init__(self, options: dict[str, str]) -> None:
        self.name = options.get("name", "")
        self.once = options.get("once", "")

    def answer(self, head: bytes, body: bytes, together: int) -> tuple[int, bytes, bytes]:
        """One reply."""
        headers = {"X-Worker": self.name} if self.name else {}
        if head:
            headers["X-Head"] = base64.b64encode(head).decode()
        status = 200
        if body.startswith(b'{"'):
            asked = json.loads(body)
            status = asked.get("status", 200)
            headers |= asked.get("headers", {})
            time.sleep(asked.get("sleep", 0))
            if asked.get("die") and not (self.once and Path(self.once).exists()):
                if self.once:
                    Path(self.once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if "head" in asked:
                return status, asked["head"].encode(), body
            if asked.get("batch"):
                body = json.dumps(together).encode()
        return status, json.dumps({"headers": headers}).encode() if headers else b"", body


def serve(connection: socket.socket, hello: bytes, echo: Echo) -> None:
    """One front end, until it goes."""
    with connection:
        stream = connection.makefile("rb")
        connection.sendall(hello)
        while (batch := scoring_wire.read_batch(stream)) is not None:
            replies = [echo.answer(head, body, len(batch)) for head, body in batch]
            connection.sendall(scoring_wire.encode_replies(replies))


def main(arguments: list[str]) -> None:
    """Listen until killed."""
    path, options = arguments[0], dict(word.split("=", 1) for word in arguments[1:])
    time.sleep(float(options.get("load", "0")))
    hello = scoring_wire.encode_hello(
        {
            "scorer": "echo",
            "max_batch": int(options.get("max_batch", "32")),
            "methods": options.get("methods", "POST").split(","),
            "headers": "headers" in options,
            "swagger": {"input": {"type": "array"}, "output": {"type": "array"}},
            "models": [{"name": "echo", "version": 1}],
        }
    )
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        arguments_of_thread = (connection, hello, Echo(options))
        threading.Thread(target=serve, args=arguments_of_thread, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
