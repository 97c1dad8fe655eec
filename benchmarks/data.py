"""Data on a node: mounted, downloaded, and found in the cache, against a local disk."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.report import Report, short
from runyard.engines.base import NodeGroup
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import DRIVER_LOG, ended
from runyard.testing.fake_server import FakeServer

JOB = Path(__file__).parent / "jobs" / "read_data.py"
MOUNTER = [sys.executable, "-m", "runyard.data.mount"]
SMALL_BYTES = 4096
EPOCHS = 5


@dataclass(frozen=True)
class Reading:
    """What a job said, in seconds: from its start to the end of its first epoch; its second epoch;
    later ones, which took turns with the same epochs on a local copy."""

    first: float
    second_small: float
    second_big: float
    later: float
    plain_small: float
    plain_big: float

    @property
    def ratio(self) -> float:
        """Later epochs, all of it, against the local copy."""
        return self.later / (self.plain_small + self.plain_big)


def measure(options: Options) -> Report:
    """Jobs on fresh caches in turn, so that the machine's noise hits all alike."""
    count, size, rounds = (100, 8 << 20, 1) if options.quick else (3000, 256 << 20, 5)
    report = Report(f"data: {count} files of 4 kB and one of {size >> 20} MiB over local HTTP")
    kinds: dict[str, list[Reading]] = {kind: [] for kind in ("download", "mount", "again")}
    with scratch() as folder:
        source = _make_files(folder / "source", count, size)
        for number in range(rounds):
            yard = folder / f"round-{number}"
            with _web(source) as url, _node(yard, source, url) as run:
                kinds["download"].append(run("download", "download"))
                kinds["mount"].append(run("mount", "mount"))
                mounted = "mounted input" in (yard / "said-mount").read_text()
            with _node(yard, source, url) as run:  # the web server is gone: nothing can be fetched
                kinds["again"].append(run("again", "mount", cache="mount"))
            shutil.rmtree(yard)
    _judge(report, kinds, mounted=mounted)
    return report


def _judge(report: Report, kinds: dict[str, list[Reading]], *, mounted: bool) -> None:
    middle = statistics.median
    mount, download = (middle(one.first for one in kinds[kind]) for kind in ("mount", "download"))
    if mounted:
        report.at_most(
            "job start to end of first epoch, mounted against downloaded and read",
            mount / download, 1.2, f"mounted {short(mount)}, downloaded {short(download)}",
        )  # fmt: skip
        for name, bound in (("big", 1.5), ("small", 6)):
            ours = [getattr(one, f"second_{name}") for one in kinds["mount"]]
            plain = [getattr(one, f"plain_{name}") for one in kinds["mount"]]
            ratio = middle(one / other for one, other in zip(ours, plain, strict=True))
            report.at_most(
                f"second epoch through the mount against local disk, {name}",
                ratio, bound, f"{short(middle(ours))}, disk {short(middle(plain))}",
            )  # fmt: skip
        report.shown("later epochs, all of it", middle(one.ratio for one in kinds["mount"]))
    else:
        report.not_measured("mounted against downloaded", "FUSE cannot be used here")
    report.at_most(
        "a second job, which downloads nothing, reads against local disk",
        middle(one.ratio for one in kinds["again"]), 1.2,
    )  # fmt: skip
    first = middle(one.first for one in kinds["again"])
    report.shown("the second job's start to the end of its first epoch", first, unit="s")


def _make_files(folder: Path, count: int, size: int) -> Path:
    (folder / "small").mkdir(parents=True)
    for number in range(count):
        (folder / "small" / f"{number:05d}.bin").write_bytes(os.urandom(SMALL_BYTES))
    block = os.urandom(1 << 20)
    with (folder / "big.bin").open("wb") as stream:
        for _ in range(size >> 20):
            stream.write(block)
    return folder


def _reading(said: str, began: float) -> Reading:
    line = next(one for one in said.splitlines() if one.startswith("EPOCHS "))
    said_epochs = json.loads(line.removeprefix("EPOCHS "))
    ours, plain = said_epochs["ours"], said_epochs["plain"]
    return Reading(
        first=ours[0]["at"] - began,
        second_small=ours[1]["small"],
        second_big=ours[1]["big"],
        later=statistics.median(one["small"] + one["big"] for one in ours[2:]),
        plain_small=statistics.median(one["small"] for one in plain),
        plain_big=statistics.median(one["big"] for one in plain),
    )


@contextmanager
def _web(source: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.web", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


class _Runner:
    def __init__(self, folder: Path, source: Path, url: str, server: FakeServer) -> None:
        self._folder = folder
        self._source = source
        self._server = server
        self._engine = LocalEngine(folder / "jobs")
        paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
        server.inputs["data"] = {
            "files": [
                [
                    str(path.relative_to(source)),
                    path.stat().st_size,
                    f"url:{url}/{path.relative_to(source)}",
                    f'"{path.stat().st_mtime_ns:x}"',
                ]
                for path in paths
            ],
            "single": False,
        }

    def __call__(self, key: str, mode: str, cache: str | None = None) -> Reading:
        """Run the job with its input in that mode, on the cache of that name."""
        server = self._server
        server.streams.clear()
        plan = server.plan(
            ["read_data.py", "DatasetConsumptionConfig:data", str(self._source), str(EPOCHS)],
            files={"read_data.py": JOB.read_text()},
            inputs=[{"name": "data", "mode": mode}],
            cache=str(self._folder / f"cache-{cache or key}"),
            cache_bytes=1 << 40,
            mounter=MOUNTER,
            fetching={"allow_private": True},
        )
        began = time.time()
        job = self._engine.start(NodeGroup(key=key, plan=json.dumps(plan).encode()))
        ended(self._engine, job, timeout=120)
        said = server.log("azureml-logs/55_azureml-execution.txt")
        (self._folder / f"said-{key}").write_text(said)
        try:
            return _reading(server.log(DRIVER_LOG), began)
        except StopIteration:
            raise RuntimeError(said + server.log(DRIVER_LOG)) from None


@contextmanager
def _node(folder: Path, source: Path, url: str) -> Iterator[_Runner]:
    folder.mkdir(exist_ok=True)
    with FakeServer() as server:
        yield _Runner(folder, source, url, server)
