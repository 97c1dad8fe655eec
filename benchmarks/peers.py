"""The peers we measure beside us, each in an environment of its own under `.peers/`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import clean_environ
from runyard.environments.pip_configuration import load_pip_configuration

FOLDER = Path(__file__).parent / ".peers"

# Pinned, so that a figure says what it was measured against.
PEERS = {
    "mlflow": ("mlflow==3.17.2",),
    "ray": ("ray[default]==2.60.0",),
    # What serves the same model file as we do. Our own workers run in the first two as well: the
    # model's environment is the same on both sides.
    "fastapi": (
        "fastapi==0.162.4",
        "uvicorn[standard]==0.54.0",
        "scikit-learn==1.9.1",
        "numpy==2.4.6",
        "onnxruntime==1.31.1",
        "skl2onnx==1.20.0",
    ),
    "fastapi-tensorflow": (
        "fastapi==0.162.4",
        "uvicorn[standard]==0.54.0",
        "tensorflow-cpu==2.21.0",
    ),
    "torch": ("torch==2.13.0", "numpy==2.4.6"),
    "litserve": ("litserve==0.2.19", "scikit-learn==1.9.1", "numpy==2.4.6"),
    "bentoml": ("bentoml==1.4.39", "scikit-learn==1.9.1", "numpy==2.4.6"),
}


class PeerMissing(Exception):
    """A peer that could not be installed here; the message says why."""


def peer(name: str) -> Path:
    """The `bin` folder of a peer's environment, made on first use."""
    folder = FOLDER / name
    bin_folder = folder / "bin"
    wanted = "\n".join(PEERS[name])
    done = folder / "installed.txt"
    if done.exists() and done.read_text() == wanted:
        return bin_folder
    print(f"installing {', '.join(PEERS[name])} into {folder.name} …", file=sys.stderr, flush=True)
    uv = Path(sys.executable).parent / "uv"
    command = str(uv) if uv.exists() else shutil.which("uv")
    if command is None:
        raise PeerMissing("uv was not found beside this Python; run `make install` first")
    _run([command, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
    python = str(bin_folder / "python")
    install = [command, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    # uv does not read pip's configuration, which knows where the small PyTorch without CUDA is.
    links = load_pip_configuration(os.environ).options.find_links
    _run([*install, *(f"--find-links={link}" for link in links), *PEERS[name]])
    done.write_text(wanted)
    return bin_folder


def _run(command: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    result = subprocess.run(command, env=clean_environ(), capture_output=True, text=True)
    if result.returncode != 0:
        last = result.stderr.strip().splitlines()[-3:]
        raise PeerMissing(" ".join(last) or f"{command[0]} ended with {result.returncode}")
