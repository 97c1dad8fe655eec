"""Who answers what: the paths of a service, who may use them, and what a worker is told."""

import hmac
import json
import logging
import time
from collections.abc import Callable
from typing import Protocol

from runyard.serving import answers
from runyard.serving.access import bearer, guard
from runyard.serving.answers import JSON, TEXT, Heads
from runyard.serving.balance import Balancer
from runyard.serving.front_config import Auth, FrontConfig
from runyard.serving.metrics import Metrics, exposition
from runyard.serving.request import Reply, Request
from runyard.serving.swagger import swagger

log = logging.getLogger("runyard.serving")

_OPEN = frozenset({b"/", b"/healthz", b"/v2/health/live", b"/v2/health/ready"})
_CONTROLLED = frozenset({b"/_runyard/status"})
_UNCOUNTED = _OPEN | _CONTROLLED | {b"/metrics"}  # who only looks is no request of the service
_WORKERS = (b"/v1/", b"/v2/")  # other servers' protocols: the worker knows them
_USUAL = frozenset(
    {
        None,
        b"application/json",
        b"application/json; charset=utf-8",
        b"application/json;charset=utf-8",
        b"application/json; charset=UTF-8",
    }
)
_UNTOLD = frozenset({b"authorization", b"cookie", b"expect", b"content-length"})
_READS = (b"GET", b"HEAD")


class Client(Protocol):
    """A connection, as far as the desk keeps it."""

    def stop(self, *, patient: bool) -> None:
        """Close unless an answer is due."""

    def sweep(self, now: float) -> None:
        """End what takes too long."""


class Desk:
    """Takes complete requests and sees that each gets one answer."""

    def __init__(
        self,
        config: FrontConfig,
        balancer: Balancer,
        metrics: Metrics,
        *,
        log_line: Callable[[str], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.heads = Heads()
        self.connections: set[Client] = set()
        self.stopping = False
        self.held = 0  # bytes of large bodies that are being received or wait for an answer
        self.balancer = balancer
        self.metrics = metrics
        self._log_line = log_line
        self._clock = clock
        self.apply(config)

    def apply(self, config: FrontConfig) -> None:
        """Serve by this configuration from now on."""
        self.config = config
        self.max_body = config.limits.max_body_bytes
        self.max_held = config.limits.max_held_bytes
        self.max_connections = config.limits.max_connections
        # The second is where v1 served a model on a cluster.
        named = f"/api/v1/service/{config.name}/score".encode()
        self._scoring = frozenset({b"/score", named})
        self._may = guard(config, self._clock)
        self._pages: dict[bytes, Callable[[], Reply]] = {
            b"/": self._healthy,
            b"/healthz": self._health,
            b"/v2/health/live": lambda: (200, JSON, b'{"live": true}'),
            b"/v2/health/ready": self._health,
            b"/swagger.json": self._swagger,
            b"/metrics": self._metrics,
            b"/_runyard/status": self._status,
        }
        self.balancer.apply(config)

    def gate(self, target: bytes, headers: dict[bytes, bytes]) -> Reply | None:
        """A refusal that does not need the body; None: let it in."""
        authorization = headers.get(b"authorization")
        if target in self._scoring:
            if self._may(authorization):
                return None
            return answers.unauthorized(self.config.name, authorization)
        path = target.partition(b"?")[0]
        if path in _OPEN:
            return None
        if path not in _CONTROLLED and self._may(authorization):
            return None
        if path in self._pages and self._is_platform(authorization):
            return None
        return answers.unauthorized(self.config.name, authorization)

    def receive(self, request: Request) -> None:
        """A complete request: to a worker, or answered here."""
        if request.refusal is not None:
            request.answer(*request.refusal)
        elif request.target in self._scoring and request.method == b"POST":
            balancer, headers = self.balancer, request.headers
            if (
                headers.get(b"content-type") not in _USUAL
                or b"content-encoding" in headers
                or balancer.tells_all
            ):
                request.head = _head_of(request)
            balancer.submit(request)
        else:
            self._other(request)

    def answered(self, request: Request, status: int, seconds: float) -> None:
        """Count an answer, and write a line about one that failed."""
        if request.target in _UNCOUNTED:
            return
        self.metrics.count(status, seconds)
        if status >= 500:
            path = request.target.partition(b"?")[0]  # a query may hold what is nobody's business
            self._log_line(f"{_shown(request.method)} {_shown(path)} {status} {seconds:.6f}")

    def forget(self, request: Request) -> None:
        """The client of a request has gone before the answer came."""
        self.release(request)
        self.balancer.forgotten += 1

    def release(self, request: Request) -> None:
        """Nobody needs the body any more; it may lie in a queue for long."""
        self.held -= request.held
        request.held = 0
        request.body = b""

    def _other(self, request: Request) -> None:
        method, path = request.method, request.target.partition(b"?")[0]
        if path in self._scoring:
            methods = self.balancer.methods
            if method.decode("latin-1") in methods or method == b"POST":
                request.head = _head_of(request)
                self.balancer.submit(request)
            else:
                request.answer(*answers.wrong_method(_shown(method), _shown(path), methods))
        elif path in self._pages:
            if method in _READS:
                request.answer(*self._pages[path]())
            else:
                request.answer(*answers.wrong_method(_shown(method), _shown(path), ["GET"]))
        elif path.startswith(_WORKERS) or path == b"/v2":
            request.head = _head_of(request)
            self.balancer.submit(request)
        else:
            request.answer(*answers.not_found(_shown(path)))

    def _is_platform(self, authorization: bytes | None) -> bool:
        token = self.config.control_token.encode()
        return bool(token) and hmac.compare_digest(bearer(authorization), token)

    def _healthy(self) -> Reply:
        return (200, TEXT, b"Healthy") if self.balancer.ready else answers.no_worker()

    def _health(self) -> Reply:
        ready = self.balancer.ready
        if not ready or self.stopping:
            return answers.no_worker()
        text = json.dumps({"status": "healthy", "ready": True, "ready_workers": ready})
        return 200, JSON, text.encode()

    def _swagger(self) -> Reply:
        hello = self.balancer.hello
        if not hello:
            return answers.no_worker()
        secured = self.config.auth is not Auth.NONE
        return 200, JSON, json.dumps(swagger(self.config.name, hello, secured=secured)).encode()

    def _metrics(self) -> Reply:
        crews = self.balancer.crews.values()
        by_revision = {f'revision="{crew.revision}"': crew for crew in crews}
        ready = {label: float(crew.ready) for label, crew in by_revision.items()}
        flying = {label: float(crew.in_flight) for label, crew in by_revision.items()}
        text = exposition(
            self.config.name,
            self.metrics,
            {
                "runyard_queue_length": ("Requests that wait.", {"": float(self.balancer.waiting)}),
                "runyard_in_flight": ("Requests that workers have.", flying),
                "runyard_workers_ready": ("Workers that are ready.", ready),
                "runyard_connections": ("Open connections.", {"": float(len(self.connections))}),
            },
        )
        return 200, b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", text.encode()

    def _status(self) -> Reply:
        document = {
            "name": self.config.name,
            "configuration": self.config.configuration,
            "ready_workers": self.balancer.ready,
            "waiting": self.balancer.waiting,
            "connections": len(self.connections),
            "held_bytes": self.held,
            "hung_workers": [path for crew in self.balancer.crews.values() for path in crew.hung],
            "stopping": self.stopping,
            "revisions": {
                str(crew.revision): {
                    "in_flight": crew.in_flight,
                    "waiting": len(crew.waiting),
                    "ready_workers": crew.ready,
                    "workers": len(crew.links),
                    "hung_workers": len(crew.hung),
                    "listed": crew.listed,
                }
                for crew in self.balancer.crews.values()
            },
        }
        return 200, JSON, json.dumps(document).encode()


def _head_of(request: Request) -> bytes:
    """What a worker is told of a request that is not simply JSON to the scoring path."""
    path, _, query = request.target.partition(b"?")
    head = {
        "method": request.method.decode("latin-1"),
        "path": path.decode("latin-1"),
        "query": query.decode("latin-1"),
        "headers": {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers.items()
            if name not in _UNTOLD
        },
    }
    return json.dumps(head).encode()


def _shown(text: bytes) -> str:
    """For a message or a log: short, one line, printable."""
    return text[:200].decode("latin-1").encode("unicode_escape").decode("ascii")
