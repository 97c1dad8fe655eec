"""What the processes of a service printed.

Their agents send it to the store a moment later. As the processes are on this machine, what they
printed just now is read where they write it.
"""

from pathlib import Path

from runyard.domain.errors import NotFound
from runyard.domain.runs import RunRecord
from runyard.domain.services import ServiceRecord
from runyard.stores.base import Store
from runyard_runtime import job_folder, wire

_LOG_BYTES = 1 << 20  # of one log that are looked at
_FOLDER = Path(wire.CONTROL_LOG).parent  # of all logs of a job


def read_logs(store: Store, jobs: Path, service: ServiceRecord, lines: int) -> str:
    """The end of each log, the newest workers first; `jobs` is the folder of this machine's."""
    revisions = [one for one in (service.coming, service.serving) if one is not None]
    known = [(f"revision {one.number}", one.run) for one in revisions]
    if service.failed is not None:
        known.insert(0, (f"revision {service.failed.number}, which failed", service.failed.run))
    parts: list[str] = []
    for title, run in (*known, ("front end", service.front)):
        if run is None:
            continue
        for path, data in _read_ends(store, jobs, run).items():
            text = "\n".join(data.decode(errors="replace").splitlines()[-lines:])
            if text.strip():
                parts.append(f"==== {title}, {path} ====\n{text.rstrip()}\n")
    return "\n".join(parts)


def _read_ends(store: Store, jobs: Path, run_id: str) -> dict[str, bytes]:
    """{path: the end} of every log of a run: from the job's folder where that has more of it."""
    found = {}
    sizes = {info.path: info.size for info in store.streams.logs(run_id)}
    for file in _find_files(store, jobs, run_id):
        path = str(_FOLDER / file.name)
        data = job_folder.tail(str(file), _LOG_BYTES)
        if len(data) == _LOG_BYTES or len(data) > sizes.get(path, 0):
            found[path] = data
    for path in sizes.keys() - found.keys():
        start = max(0, sizes[path] - _LOG_BYTES)
        found[path] = store.streams.read_log(run_id, path, start, _LOG_BYTES)
    return dict(sorted(found.items()))


def _find_files(store: Store, jobs: Path, run_id: str) -> list[Path]:
    """The logs that a run's job writes now; none once it is over."""
    try:
        job = store.records.get(RunRecord, run_id).job
    except NotFound:
        return []
    return list((jobs / job / _FOLDER).glob("*.txt")) if job else []
