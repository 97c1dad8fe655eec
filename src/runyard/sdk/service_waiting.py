"""Waiting for a service: when it is over, what is printed meanwhile, and what a failure says."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from runyard.domain.services import ServiceRecord, ServiceState

if TYPE_CHECKING:
    from runyard.sdk.webservice import Webservice

SUCCEEDED = "Succeeded"
_TRACEBACK_LINES = 40
_SETTLE_SECONDS = 10.0  # longer than a front end that answers ever needs


def is_settled(service: ServiceRecord) -> bool:
    """True if nothing more will come of what was asked last."""
    return service.coming is None and service.state is not ServiceState.TRANSITIONING


def succeeded(service: ServiceRecord, known: int = 0) -> bool:
    """True if what was asked last is what is served.

    Failures of revisions up to `known` are no news: what was asked since made no revision.
    """
    last_failed = service.failed is not None and service.failed.number == service.made > known
    return service.state is ServiceState.HEALTHY and not last_failed


def settle(service: "Webservice") -> None:
    """Wait a while until callers are treated as was asked last: by the new keys, say."""
    service.update_deployment_state()
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not service._record.settled and service._record.state is ServiceState.HEALTHY:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        service._look_again(left)


def failure_text(service: ServiceRecord, timeout_seconds: float | None = None) -> str:
    """What went wrong, in v1's words, and with the real reason."""
    if timeout_seconds is not None:
        return (
            f"Service deployment polling reached its timeout of {timeout_seconds:g} seconds, "
            f"current service state: {service.state}\n"
            f"It waits: {service.waiting or 'for its processes'}\n"
            "More information can be found using '.get_logs()'"
        )
    lines = [
        "Service deployment polling reached non-successful terminal state, current service "
        f"state: {service.state}",
        f"Operation ID: {service.uid}-{service.made}",
        "More information can be found using '.get_logs()'",
    ]
    if service.serving is not None:
        lines.insert(1, f"Revision {service.serving.number} goes on serving.")
    if service.error is not None:
        lines += ["Error:", f"{service.error.code}: {service.error.message}"]
        if service.error.traceback:
            lines += service.error.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
    return "\n".join(lines)


class Waiting:
    """Prints how the wait goes: v1's word, a dot now and then, and what is waited for."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._shown = ""

    def begins(self) -> None:
        """The operation has begun."""
        self._write("Running")

    def shows(self, service: ServiceRecord) -> None:
        """One look: what it waits for now, or a dot if that is as before."""
        if service.waiting and service.waiting != self._shown:
            self._shown = service.waiting
            self._write(f"\n  {service.waiting}")
        else:
            self._write(".")

    def ends(self, word: str) -> None:
        """The operation is over."""
        self._write(f"\n{word}\n")
