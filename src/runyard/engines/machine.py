"""What this machine has for nodes: cores, memory, GPUs."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from runyard.domain.compute import Machine

_GPU_SECONDS = 10.0
_GIGABYTE = 2**30


def read_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Look at the machine once. GPUs that CUDA_VISIBLE_DEVICES hides from us stay hidden."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(cores=cores or 1, memory_gb=_memory_gb(), gpus=visible(_gpus(), environ))


def visible(gpus: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of `gpus` that the variable allows; ids that only CUDA knows (UUIDs) are taken over."""
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None or not gpus:
        return gpus
    words = [word.strip() for word in allowed.split(",") if word.strip()]
    kept = []
    for word in words:
        if (word.isdecimal() and word not in gpus) or word.startswith("-"):
            break  # as CUDA does: nothing after a wrong one counts
        kept.append(word)
    return tuple(dict.fromkeys(kept))


def _memory_gb() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIGABYTE, 1)
    except (ValueError, OSError):
        return 0.0


def _gpus() -> tuple[str, ...]:
    """The indices of the NVIDIA GPUs, as CUDA counts them."""
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return ()
        return tuple(line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal())
    found = [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return tuple(str(index) for index in range(len(found)))
