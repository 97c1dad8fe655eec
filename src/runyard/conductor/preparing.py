"""Builds the environments that runs wait for: one build per content key, however many wait."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import RunyardError
from runyard.domain.runs import RunError
from runyard.environments.base import Builder
from runyard.stores.base import Streams
from runyard_runtime import wire

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25  # how long a line of a build log may wait to be shown
LAST_FLUSHES = 20  # how often the end of a log is tried; then the runs go on without it
BUILDS_AT_ONCE = 2  # a build is mostly network and disk; more at once only get in each other's way


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """How a build ended: with an environment, or with the reason why not."""

    environment: EnvironmentUse | None = None
    error: RunError | None = None


class BuildLog:
    """The build log of every run that waits for one environment. Safe from several threads."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._text = b""  # everything so far, for those who come later
        self._written: dict[str, int] = {}  # run id → how much of it is in that run's log
        self._flushed = 0.0

    def follow(self, run_id: str) -> None:
        """From now on that run gets every line, the past ones first."""
        with self._lock:
            self._written.setdefault(run_id, 0)
        self.flush()

    def line(self, text: str) -> None:
        """One more line; written at once if the last flush was a while ago."""
        with self._lock:
            self._text += text.encode("utf-8", "replace") + b"\n"
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> bool:
        """Write what is not written yet; True if that is all. The rest is tried next time."""
        with self._lock:
            self._flushed = time.monotonic()
            for run_id, done in self._written.items():
                if done < len(self._text):
                    self._write(run_id, done)
            return all(done == len(self._text) for done in self._written.values())

    def _write(self, run_id: str, done: int) -> None:
        try:
            # After a restart of the server the log has a beginning already: go on there.
            end = self._streams.end(run_id, wire.BUILD_LOG)
            self._streams.append_log(run_id, wire.BUILD_LOG, end, self._text[done:])
        except Exception:  # a build, and the runs that wait for it, must not fail for its log
            log.exception("the build log of run %s cannot be written now", run_id)
        else:
            self._written[run_id] = len(self._text)


class Preparing:
    """Runs builders in threads of their own and tells when they are done."""

    def __init__(self, streams: Streams, done: Callable[[Sequence[str], Prepared], None]) -> None:
        self._streams = streams
        self._done = done
        self._lock = threading.Lock()
        self._waiting: dict[str, list[str]] = {}  # content key → runs
        self._logs: dict[str, BuildLog] = {}
        self._places = threading.Semaphore(BUILDS_AT_ONCE)

    def request(self, run_id: str, builder: Builder, spec: EnvironmentSpec) -> None:
        """Build `spec` for that run, or let it wait with those who asked before. Idempotent."""
        key = builder.key(spec)
        with self._lock:
            first = key not in self._waiting
            runs = self._waiting.setdefault(key, [])
            if run_id in runs:
                return
            runs.append(run_id)
            build_log = self._logs.setdefault(key, BuildLog(self._streams))
        build_log.follow(run_id)
        if first:
            # A daemon: a server that stops does not wait for a download of gigabytes. What a
            # build leaves half made is never taken for whole.
            threading.Thread(
                target=self._build, args=(key, builder, spec, build_log), daemon=True
            ).start()

    def _build(
        self, key: str, builder: Builder, spec: EnvironmentSpec, build_log: BuildLog
    ) -> None:
        with self._places:
            prepared = self._try(builder, spec, build_log)
        if prepared.error is not None:
            build_log.line(prepared.error.message)
        for _ in range(LAST_FLUSHES):
            if build_log.flush():
                break
            time.sleep(FLUSH_SECONDS)
        with self._lock:
            runs = self._waiting.pop(key)
            del self._logs[key]
        self._done(runs, prepared)

    def _try(self, builder: Builder, spec: EnvironmentSpec, build_log: BuildLog) -> Prepared:
        try:
            return Prepared(environment=builder.build(spec, build_log.line))
        except RunyardError as error:
            return Prepared(error=RunError(code="EnvironmentFailed", message=str(error)))
        except Exception as error:
            log.exception("building the environment '%s' failed by a bug", spec.name)
            message = f"Building the environment '{spec.name}' failed: {error!r}. See server.log."
            return Prepared(error=RunError(code="InternalError", message=message))
