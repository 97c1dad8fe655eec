"""Requests to workers: a queue for each revision, whole batches to whoever is free.

No request has a task or a timer of its own. What a lost worker leaves is given once more, each
request alone: if one of them is what kills workers, it does not take the others with it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from runyard.serving import answers
from runyard.serving.batching import BATCH_BYTES, batch_size, within_bytes
from runyard.serving.front_config import FrontConfig, Limits, Revision
from runyard.serving.metrics import Metrics
from runyard.serving.request import Request
from runyard.serving.workers import Reply, WorkerLink

log = logging.getLogger("runyard.serving")

_HUNG_GRACE = 30.0  # seconds that a worker has when nobody waits for its answers any more


class Crew:
    """The workers of one revision, and the requests that wait for them."""

    def __init__(self, revision: Revision, balancer: "Balancer") -> None:
        self.revision = revision.revision
        self.listed = True  # False: a newer front.json no longer has it
        self.waiting: deque[Request] = deque()
        self.links: dict[str, WorkerLink] = {}
        self.free: list[WorkerLink] = []
        self.hello: Mapping[str, object] = {}
        self._balancer = balancer
        self._timer: asyncio.TimerHandle | None = None  # somebody waits for company

    @property
    def ready(self) -> int:
        """How many workers can be given something, now or soon."""
        return sum(link.ready for link in self.links.values())

    @property
    def in_flight(self) -> int:
        """Requests that workers have."""
        return sum(len(link.batch) for link in self.links.values())

    @property
    def hung(self) -> list[str]:
        """Where workers listened that were given up and have not come back."""
        return [link.path for link in self.links.values() if link.hung]

    def worker_ready(self, link: WorkerLink) -> None:
        """A worker said hello."""
        self.free.append(link)
        self.hello = link.hello
        self._balancer.metrics.worker_connections += 1
        log.info("revision %d: a worker is ready at %s", self.revision, link.path)
        self._balancer.settle()
        self.give()
        self._balancer.on_worker()

    def worker_done(self, link: WorkerLink, batch: list[Request], replies: list[Reply]) -> None:
        """The next batch goes out before the answers do, so that the worker does not idle."""
        if link.leaving:
            _release([self.links.pop(link.path)])
        else:
            self.free.append(link)
        if self.waiting:
            self.give()
        for request, (status, head, body) in zip(batch, replies, strict=True):
            asker = request.asker
            if asker is not None:
                request.asker = None
                if head or status != 200:
                    asker.reply(request, *answers.passed_on(status, head, body))
                else:
                    asker.reply(request, status, b"", body)
        if not self.listed:
            self._balancer.settle()

    def worker_lost(self, link: WorkerLink, batch: list[Request]) -> None:
        """What it had goes back to the front of the queue, once."""
        if link in self.free:
            self.free.remove(link)
        balancer = self._balancer
        if self.listed:
            balancer.metrics.workers_lost += 1
            log.warning("revision %d: the worker at %s is gone", self.revision, link.path)
        again = [request for request in batch if request.asker is not None and not request.lost]
        for request in batch:
            if request.lost:
                request.answer(*answers.worker_lost())
            request.lost = True
        balancer.metrics.given_again += len(again)
        self.waiting.extendleft(reversed(again))
        if link.leaving:
            _release([self.links.pop(link.path)])
        balancer.settle()
        self.give()

    def drop_forgotten(self) -> None:
        """Requests whose clients have gone take no place in the queue."""
        alive = [request for request in self.waiting if request.asker is not None]
        self.waiting.clear()
        self.waiting.extend(alive)

    def give_up_hung(self, overdue: float) -> None:
        """Workers that got their batch before `overdue` and keep nobody waiting any more."""
        for link in self.links.values():
            batch = link.batch
            if not batch or link.hung or link.since > overdue:
                continue
            if all(request.asker is None for request in batch):
                self._balancer.metrics.workers_hung += 1
                log.error(
                    "revision %d: the worker at %s hangs; it is given up", self.revision, link.path
                )
                link.give_up()

    def give(self) -> None:
        """Waiting requests to free workers, as far as both are there."""
        waiting, free, balancer = self.waiting, self.free, self._balancer
        while free and waiting:
            link = free[-1]
            count = 1
            if len(waiting) > 1 or balancer.delay:
                count = self._count(link)
                if not count:
                    self._give_later()
                    return
            batch = [waiting.popleft() for _ in range(count)]
            batch = [request for request in batch if request.asker is not None]
            if batch:
                free.pop()
                balancer.metrics.batches.add(len(batch))
                link.send(batch, balancer.clock())

    def _give_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._balancer.after_delay(self.waiting[0].started, self.give)

    def _count(self, link: WorkerLink) -> int:
        waiting, balancer = self.waiting, self._balancer
        first = waiting[0]
        if first.lost:
            return 1
        count = batch_size(
            waiting=len(waiting),
            free=len(self.free),
            limit=link.limit,
            waited=balancer.clock() - first.started if balancer.delay else 0.0,
            delay=balancer.delay,
        )
        if count > 1 and balancer.largest_body * count > BATCH_BYTES:
            count = within_bytes((len(request.body) for request in waiting), count)
        return count


class Balancer:
    """All revisions of a service: who gets the next request, and what becomes of the old ones."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        on_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = metrics
        self.on_worker = on_worker  # called when one is ready
        self.clock = clock
        self.delay = 0.0
        self.tells_all = False  # a script looks at headers: no request goes without its head
        self.largest_body = 0  # seen so far; saves adding up the small ones
        self.forgotten = 0  # requests whose clients left since the queues were last looked through
        self.crews: dict[int, Crew] = {}
        self._loop = loop
        self._folder = folder
        self._limits = Limits()
        self._target: Crew | None = None  # whoever gets the requests; None: nobody is ready
        self._ready_until = float("-inf")  # when a worker was last seen ready
        self._scheduled = False

    def apply(self, config: FrontConfig) -> None:
        """Serve what the configuration lists. What it lists no longer finishes what it has."""
        self._limits = config.limits
        self.delay = config.limits.max_batch_delay_ms / 1000
        listed = {revision.revision: revision for revision in config.revisions}
        for number, revision in listed.items():
            crew = self.crews.get(number)
            if crew is None:
                crew = self.crews[number] = Crew(revision, self)
            crew.listed = True
            self._man(crew, [str(self._folder / path) for path in revision.sockets])
        for number, crew in self.crews.items():
            if number not in listed:
                crew.listed = False
        self.settle()

    def submit(self, request: Request) -> None:
        """Queue a request for a worker, or refuse it."""
        crew = self._target or self._awaited()
        if crew is None:
            request.answer(*answers.no_worker())
            return
        waiting = crew.waiting
        if len(waiting) >= self._limits.queue and self.forgotten:
            self._drop_forgotten()
        if len(waiting) >= self._limits.queue:
            request.answer(*answers.queue_full(self._limits.queue))
            return
        waiting.append(request)
        if len(request.body) > self.largest_body:
            self.largest_body = len(request.body)
        if crew.free and not self._scheduled:
            # At the end of this round of the loop: what came in the same round goes as one batch.
            self._scheduled = True
            self._loop.call_soon(self._give_all)

    def after_delay(self, started: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call when a request that started then has waited for company long enough."""
        pause = max(0.0, started + self.delay - self.clock()) + 1e-4
        return self._loop.call_later(pause, call)

    def expire(self, now: float) -> None:
        """Answer what has waited too long; call this some times a second."""
        limit = self._limits.timeout_seconds
        oldest = now - limit
        if self.forgotten:
            self._drop_forgotten()
        for crew in self.crews.values():
            waiting = crew.waiting
            while waiting and (waiting[0].asker is None or waiting[0].started < oldest):
                late = answers.timed_out(limit) if crew.ready else answers.no_worker()
                waiting.popleft().answer(*late)
            for link in crew.links.values():
                for request in link.batch:
                    if request.started < oldest:
                        request.answer(*answers.timed_out(limit))
            crew.give_up_hung(oldest - _HUNG_GRACE)
        if any(crew.ready for crew in self.crews.values()):
            self._ready_until = now

    def settle(self) -> None:
        """Decide who is served from now on, and let go of revisions that are done."""
        ready = [crew for crew in self.crews.values() if crew.ready]
        current = [crew for crew in ready if crew.listed]
        # Until what is listed is ready, what was listed before goes on; unless nothing is to be.
        over = bool(current) or self._next_listed() is None
        chosen = current if over else ready
        self._target = max(chosen, key=lambda crew: crew.revision, default=None)
        self.tells_all = bool(self.hello.get("headers"))
        if ready:
            self._ready_until = self.clock()
        heir = self._target if over else self._next_listed()
        for crew in [crew for crew in self.crews.values() if not crew.listed]:
            self._retire(crew, heir, over=over)

    @property
    def ready(self) -> int:
        """Workers that are ready, of all revisions."""
        return sum(crew.ready for crew in self.crews.values())

    @property
    def waiting(self) -> int:
        """Requests in queues."""
        return sum(len(crew.waiting) for crew in self.crews.values())

    @property
    def busy(self) -> bool:
        """True if a request waits or is being answered."""
        return any(crew.waiting or crew.in_flight for crew in self.crews.values())

    @property
    def methods(self) -> list[str]:
        """Verbs that the scoring path answers."""
        return _methods(self.hello)

    @property
    def hello(self) -> Mapping[str, object]:
        """What the worker that would get the next request said of itself; empty: none is ready."""
        return self._target.hello if self._target is not None else {}

    def close(self) -> None:
        """Let go of all workers."""
        for crew in self.crews.values():
            _release(crew.links.values())

    def _man(self, crew: Crew, paths: list[str]) -> None:
        for path in paths:
            if path not in crew.links:
                crew.links[path] = WorkerLink(path, crew)
                crew.links[path].start(self._loop)
        for path in [path for path in crew.links if path not in paths]:
            link = crew.links[path]
            if link in crew.free:
                crew.free.remove(link)
            link.leaving = True
            if not link.batch:
                _release([crew.links.pop(path)])

    def _awaited(self) -> Crew | None:
        # Nobody is ready. If somebody was a moment ago, a worker is being replaced: wait for it.
        recent = self.clock() - self._ready_until < self._limits.timeout_seconds
        return self._next_listed() if recent else None

    def _next_listed(self) -> Crew | None:
        return next((crew for crew in self.crews.values() if crew.listed), None)

    def _retire(self, crew: Crew, heir: Crew | None, *, over: bool) -> None:
        """Move on what waits for an old revision; close it when its workers have finished."""
        if crew.ready and not over:
            return
        waiting = list(crew.waiting)
        crew.waiting.clear()
        if heir is None:
            for request in waiting:
                request.answer(*answers.no_worker())
        elif waiting:
            heir.waiting.extendleft(reversed(waiting))
            heir.give()
        if not crew.in_flight:
            _release(crew.links.values())
            del self.crews[crew.revision]
            log.info("revision %d is no longer in use", crew.revision)

    def _drop_forgotten(self) -> None:
        self.forgotten = 0
        for crew in self.crews.values():
            crew.drop_forgotten()

    def _give_all(self) -> None:
        self._scheduled = False
        for crew in list(self.crews.values()):
            if crew.waiting and crew.free:
                crew.give()


def _methods(hello: Mapping[str, object]) -> list[str]:
    given = hello.get("methods")
    return [str(word) for word in given] if isinstance(given, list) and given else ["POST"]


def _release(links: Iterable[WorkerLink]) -> None:
    for link in links:
        link.close()
