"""A quick web server for the data benchmarks, in a process of its own: `python -m benchmarks.web`.

It serves the files of a folder with Range, ETag and kept connections, by sendfile: it must not be
what is measured.
"""

import os
import socket
import sys
import threading
from pathlib import Path


def serve(folder: Path) -> None:
    """Print the port and answer until the process is ended."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listening.getsockname()[1], flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_answer_all, args=(connection, folder), daemon=True).start()


def _answer_all(connection: socket.socket, folder: Path) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as reader:
        while line := reader.readline():
            method, target, _ = line.split()
            wanted = b""
            for header in iter(reader.readline, b"\r\n"):
                if header.lower().startswith(b"range:"):
                    wanted = header.split(b"=")[1].strip()
            _answer(connection, method, folder / target.decode().lstrip("/"), wanted)


def _answer(connection: socket.socket, method: bytes, path: Path, wanted: bytes) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    try:
        known = os.fstat(file)
        start, end, status, more = 0, known.st_size, "200 OK", ""
        if wanted:
            first, _, last = wanted.partition(b"-")
            start, end = int(first), min(int(last) + 1 if last else end, end)
            status = "206 Partial Content"
            more = f"Content-Range: bytes {start}-{end - 1}/{known.st_size}\r\n"
        connection.sendall(
            f"HTTP/1.1 {status}\r\nContent-Length: {end - start}\r\nAccept-Ranges: bytes\r\n"
            f'ETag: "{known.st_mtime_ns:x}"\r\n{more}\r\n'.encode()
        )
        while method == b"GET" and start < end:
            start += os.sendfile(connection.fileno(), file, start, end - start)
    finally:
        os.close(file)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
