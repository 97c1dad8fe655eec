"""Many nodes in one process: each reports over a connection of its own, as often as agents do.

Usage: python -m benchmarks.simulated_nodes FILE, where FILE grows by a line per started job.
Prints twice a second how many nodes have reported, how many reports were answered and broken, and
how long the slowest answer took since the last line.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from runyard_runtime import wire
from runyard_runtime.beside import ALIVE_SECONDS


class Nodes:
    """All nodes, and what they met."""

    def __init__(self) -> None:
        self.reporting = 0
        self.answered = 0
        self.failures = 0
        self.slowest = 0.0

    async def live(self, job: dict[str, object], node: int) -> None:
        """One node's life: it reports that it started, and then that it lives."""
        parts = urlsplit(str(job["url"]))
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        phase, first = (wire.STARTED if node == 0 else wire.ALIVE), True
        while True:
            body = json.dumps({"attempt": job["attempt"], "node": node, "phase": phase}).encode()
            head = (
                f"POST /api/v1/runs/{job['run_id']}/reports HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                f"Authorization: Bearer {job['agent_token']}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            begun = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            self.slowest = max(self.slowest, time.perf_counter() - begun)
            self.answered += 1
            self.failures += b" 200 " not in answer.split(b"\r\n")[0]
            self.reporting += first
            # Nodes do not come up in step.
            await asyncio.sleep(ALIVE_SECONDS * (random.random() if first else 1.0))
            phase, first = wire.ALIVE, False

    async def follow(self, path: Path) -> None:
        """Play the nodes of every job in the file, and say how many there are."""
        tasks: set[asyncio.Task[None]] = set()
        said = 0.0
        while not path.exists():
            await asyncio.sleep(0.1)
        with path.open() as file:
            rest = ""
            while True:
                *lines, rest = (rest + file.read()).split("\n")
                for job in map(json.loads, lines):
                    new = range(job["nodes"])
                    tasks |= {asyncio.create_task(self.live(job, node)) for node in new}
                if time.monotonic() - said > 0.5:
                    said = time.monotonic()
                    broken = self.failures + sum(task.done() for task in tasks)
                    seen = [self.reporting, self.answered, broken, self.slowest]
                    print(json.dumps(seen), flush=True)
                    self.slowest = 0.0
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(Nodes().follow(Path(sys.argv[1])))
