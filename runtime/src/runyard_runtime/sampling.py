"""Samples what a job uses of the machine, as events of kind "system"."""

import os
import time

from runyard_runtime import wire

_QUERY = [
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
]
_GPU_PATIENCE = 10.0


class Sampler:
    """Measures the job's process tree since the last time and appends the events."""

    def __init__(self, path, find, fresh=True, group="system"):
        self._path = path
        self._group = group  # what the names of the metrics begin with
        self._find = find  # → {pid: processes.Stat}
        self._at = time.monotonic()
        # What ranks that were taken over did before is not the work of this interval.
        self._ticks = {} if fresh else {pid: one.ticks for pid, one in find().items()}
        self._has_gpu = _which("nvidia-smi", os.environ.get("PATH", os.defpath))

    def sample(self):
        """One sample, appended with one write."""
        found, now = self._find(), time.monotonic()
        values = [
            ("system/cpu_percent", cpu_percent(self._ticks, found, now - self._at)),
            ("system/memory_mb", memory_mb(found.values())),
        ]
        self._ticks = {pid: one.ticks for pid, one in found.items()}
        self._at = now
        if self._has_gpu:
            values += gpu_values(_ask(_QUERY))
        values = [(name.replace("system", self._group, 1), value) for name, value in values]
        at = time.time()
        lines = [
            wire.encode_event({"e": "metric", "k": "system", "t": at, "n": name, "v": value})
            for name, value in values
        ]
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, "".join(lines).encode("ascii"))
        finally:
            os.close(handle)


def cpu_percent(before, found, seconds):
    """How busy the processes were since `before` (their ticks then); 100 is one core."""
    hertz = os.sysconf("SC_CLK_TCK")
    spent = sum(one.ticks - before.get(pid, 0) for pid, one in found.items())
    return round(100.0 * max(spent, 0) / hertz / max(seconds, 0.001), 1)


def memory_mb(found):
    """Resident memory of the processes, in MiB."""
    page = os.sysconf("SC_PAGE_SIZE")
    return round(sum(one.pages for one in found) * page / 1048576.0, 1)


def gpu_values(text):
    """The metrics in nvidia-smi's answer; a GPU that does not say is left out."""
    values = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[0].isdigit():
            continue
        for name, cell in (("percent", cells[1]), ("memory_mb", cells[2])):
            try:
                values.append(("system/gpu%s_%s" % (cells[0], name), float(cell)))
            except ValueError:
                pass  # "[N/A]"
    return values


def _ask(command):
    import subprocess

    with open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            return process.communicate(timeout=_GPU_PATIENCE)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""


def _which(name, path):
    return any(os.access(os.path.join(one, name), os.X_OK) for one in path.split(os.pathsep) if one)
