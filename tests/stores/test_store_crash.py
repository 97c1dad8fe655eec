"""A process that writes is killed again and again: what it acknowledged is there, once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from runyard.domain.runs import RunRecord
from runyard.stores import SqlStore
from runyard.testing.store_suite import new_run, values

WRITER = Path(__file__).with_name("store_writer.py")
LINE_BYTES = 9


def write_until_killed(database_url: str, blobs: Path, acknowledgements: int) -> dict[str, int]:
    """The last count that the writer acknowledged of each thing."""
    command = [sys.executable, str(WRITER), database_url, str(blobs)]
    seen: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(acknowledgements):
            what, count = process.stdout.readline().split()
            seen[what] = int(count)
        process.kill()
        # It went on until the signal came; what it said meanwhile counts too. The last line may
        # have been cut.
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                what, count = line.split()
                seen[what] = int(count)
    return seen


def test_what_was_acknowledged_survives_kill_9_once(
    database_url: str, tmp_path: Path, reopen: Callable[[], SqlStore]
) -> None:
    store = reopen()
    store.records.insert(new_run())
    for acknowledgements in (3, 60, 150):
        seen = write_until_killed(database_url, tmp_path / "blobs", acknowledgements)

        # PostgreSQL may still be committing for the dead: take a turn as the writer first.
        store.database.write(lambda _: None)

        single = values(store, name="single")
        assert single == list(range(len(single)))
        assert len(single) >= seen.get("points", 0)

        end = store.streams.end("run", "events")
        assert end >= seen.get("events", 0)
        assert values(store, name="event") == list(range(end))
        assert store.records.get(RunRecord, "run").tags == ({"end": str(end)} if end else {})

        end = store.streams.end("run", "log")
        assert end >= seen.get("log", 0)
        content = store.streams.read_log("run", "log", 0, end + 1)
        assert content == b"".join(b"%08d\n" % number for number in range(end // LINE_BYTES))
    assert any(path.name != "tmp" for path in (tmp_path / "blobs").iterdir()), "nothing was packed"
