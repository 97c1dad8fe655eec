"""Fixtures for all tests."""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runyard.environments.pip_configuration import (
    existing_only,
    load_pip_configuration,
    network_variables,
    render_options,
)
from runyard.environments.uv_tool import find_uv
from runyard.testing.postgres import postgres_server, postgres_url
from runyard.testing.slurm_cluster import slurm_of_session

__all__ = ["postgres_server", "postgres_url", "slurm_of_session"]


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and processes inherit that; tests of
    # Ctrl-C need it back.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


FRAMEWORKS = (
    "inference-schema==1.8",
    "keras==3.15.1",
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxruntime==1.31.0",
    "pandas==3.1.1",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "tensorflow-cpu==2.21.0",
    "torch==2.13.0",
)


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The interpreter of an environment with real frameworks, one for all tests and sessions.

    It lies beside uv's cache, whose files it links to: the first time takes a minute, others
    nothing. `uv cache clean` removes it.
    """
    uv = find_uv()
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True)
    name = hashlib.sha256("\n".join([sys.version, *FRAMEWORKS]).encode()).hexdigest()[:16]
    folder = Path(cache.stdout.strip()) / "runyard-tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed: other workers wait here
        if not folder.exists():
            _install_frameworks(uv, folder)
    return folder / "bin" / "python"


def _install_frameworks(uv: str, folder: Path) -> None:
    configuration = load_pip_configuration(os.environ)
    options, _ = existing_only(configuration.options)
    network = network_variables(configuration, options.trusted_hosts, os.environ)
    environment = {**os.environ, **network, "UV_PYTHON_DOWNLOADS": "never"}
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        requirements = building / "requirements.txt"
        requirements.write_text(render_options(options) + "\n".join(FRAMEWORKS) + "\n")
        made = building / "environment"
        commands: tuple[list[str | Path], ...] = (
            [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, made],
            [
                *(uv, "pip", "install", "--quiet", "--python", made, "-r", requirements),
                *("--index-strategy", "unsafe-best-match"),  # as pip chooses
            ],
        )
        for command in commands:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                pytest.skip(f"the frameworks cannot be installed here: {ended.stderr[-500:]}")
        made.rename(folder)
    finally:
        shutil.rmtree(building)


MODEL_MAKER = Path(__file__).parent / "runtime" / "scoring_models" / "make_models.py"


@pytest.fixture(scope="session")
def scoring_models(frameworks: Path) -> Path:
    """The folder of small real models, made once for each version of the maker and frameworks."""
    root = frameworks.parents[1]
    digest = hashlib.sha256(MODEL_MAKER.read_bytes()).hexdigest()[:16]
    folder = root.with_name(f"{root.name}-models-{digest}")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            building = tempfile.mkdtemp(dir=folder.parent)
            kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
            ended = subprocess.run(
                [frameworks, MODEL_MAKER, building],
                env=kept,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr
            Path(building).rename(folder)
    return folder
