"""Building an environment through the platform beside uv alone, and finding one that is built."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uv

from benchmarks.options import Options
from benchmarks.report import Report, Times
from runyard.domain.environments import EnvironmentSpec
from runyard.environments import open_builders
from runyard.environments.base import builder_for

PACKAGES = ("numpy==2.4.6", "pandas==3.1.1", "scikit-learn")
SMALL = ("click==8.5.1",)


def measure(options: Options) -> Report:
    """Both sides in turn, each into a fresh folder; uv's own cache is warm for both."""
    report = Report("environments: building beside uv alone")
    packages = SMALL if options.quick else PACKAGES
    times = 2 if options.quick else 5
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="runyard-bench-") as folder:
        _by_uv(Path(folder, "warm-up"), packages)
        for number in range(times):
            theirs.append(_by_uv(Path(folder, f"uv-{number}"), packages))
            ours.append(_by_us(Path(folder, f"ours-{number}"), packages))
        us, them = Times(ours), Times(theirs)
        note = f"{us} against {them}; {', '.join(packages)}; {times} times each"
        report.at_most("the same packages on a fresh cache", us.p50 / them.p50, 1.2, note)
        ready, bare = _ready(Path(folder, "ours-0"), packages), _bare_start()
        found = f"{ready} against {bare}"
        report.at_most("preparing a second run / a bare start", ready.p50 / bare.p50, 1, found)
    return report


def _by_uv(folder: Path, packages: tuple[str, ...]) -> float:
    """Seconds of making a venv and installing, with the flags that the platform uses."""
    tool = uv.find_uv_bin()
    begun = time.perf_counter()
    subprocess.run(
        [tool, "venv", "-q", "--relocatable", "--python", sys.executable, str(folder)], check=True
    )
    python = str(folder / "bin" / "python")
    install = [tool, "pip", "install", "-q", "--compile-bytecode", "--python", python, *packages]
    subprocess.run(install, check=True, env=_environ())
    return time.perf_counter() - begun


def _by_us(folder: Path, packages: tuple[str, ...]) -> float:
    spec, begun = _spec(packages), time.perf_counter()
    builder_for(spec, open_builders(folder)).build(spec, lambda line: None)
    return time.perf_counter() - begun


def _ready(folder: Path, packages: tuple[str, ...]) -> Times:
    """Seconds of finding an environment that is there, as every later run does."""
    spec = _spec(packages)
    builder = builder_for(spec, open_builders(folder))
    taken = []
    for _ in range(50):
        begun = time.perf_counter()
        assert builder.ready(spec) is not None
        taken.append(time.perf_counter() - begun)
    return Times(taken)


def _bare_start() -> Times:
    taken = []
    for _ in range(20):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        taken.append(time.perf_counter() - begun)
    return Times(taken)


def _spec(packages: tuple[str, ...]) -> EnvironmentSpec:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return EnvironmentSpec(name="bench", python=version, pip=packages)


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
