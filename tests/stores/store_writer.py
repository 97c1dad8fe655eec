"""Writes to a store until it is killed, and says on stdout what was acknowledged."""

import sys
import threading

from runyard.domain.metrics import Point
from runyard.stores import open_store
from runyard.stores.base import EventEffects

LINE = b"%08d\n"


def main(database_url: str, blobs_url: str) -> None:
    """Three threads: single points, chunks of events, and a log; each goes on where it was."""
    store = open_store(database_url, blobs_url)
    lock = threading.Lock()

    def say(what: str, count: int) -> None:
        with lock:
            sys.stdout.write(f"{what} {count}\n")
            sys.stdout.flush()

    def points() -> None:
        count = sum(len(series.values) for series in store.metrics.series("run", "single"))
        while True:
            store.metrics.append("run", [Point(name="single", value=count)])
            count += 1
            say("points", count)

    def events() -> None:
        end = store.streams.end("run", "events")
        while True:
            new = [Point(name="event", value=value) for value in range(end, end + 10)]
            effects = EventEffects(points={"run": new}, set_tags={"run": {"end": str(end + 10)}})
            end = store.streams.append_events("run", "events", end, end + 10, effects)
            say("events", end)

    def log() -> None:
        end = store.streams.end("run", "log")
        while True:
            first = end // 9
            lines = b"".join(LINE % number for number in range(first, first + 20_000))
            end = store.streams.append_log("run", "log", end, lines)
            say("log", end)

    for work in (points, events, log):
        threading.Thread(target=work).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
