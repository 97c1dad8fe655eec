"""Ray's HTTP API, as far as we need it: its jobs and its nodes.

Nothing of Ray is imported. What answers may be of any version, or no Ray at all: each way in which
that shows is put in words.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from runyard.domain.errors import (
    Denied,
    EngineFailed,
    Invalid,
    RunyardError,
    Unavailable,
    Unsupported,
)
from runyard.engines.ray_driver import STATE

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
_OLDEST = (2, 0)  # the first with both the Jobs API and the list of nodes
_AWAY = (502, 503, 504)  # what stands before a head that is just starting, or gone
_COMES_UP = "No available agent"  # what a head says that is just starting
_TAIL = 2000
_DASHBOARD = "The address is that of Ray's dashboard, usually http://HEAD:8265"


class RayApi:
    """Asks one cluster."""

    def __init__(self, address: str, token: str) -> None:
        self.address = _web_address(address)
        self._token = token
        self._pool: Any = None

    def check(self) -> None:
        """Raise if this is no Ray that takes jobs."""
        answer = self._call("GET", "/api/version")
        version = str(answer.get("ray_version") or "") if isinstance(answer, dict) else ""
        if not version:
            raise self._not_ray("it does not say which version of Ray it is")
        if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST:
            raise Unsupported(
                f"The Ray cluster at {self.address} is too old.",
                why=f"It has Ray {version}; jobs are taken over HTTP since Ray 2.0.",
                fix="Start the cluster with a newer Ray.",
            )
        self.jobs()

    def jobs(self) -> dict[str, Any]:
        """All jobs that were submitted, by their ids."""
        listed = self._call("GET", "/api/jobs/")
        if not isinstance(listed, list):
            raise self._not_ray("it answers with something that is no list of jobs")
        return {one["submission_id"]: one for one in listed if one.get("submission_id")}

    def job(self, name: str) -> Any:
        """What Ray knows of a job; None: nothing."""
        return self._call("GET", f"/api/jobs/{name}", missing=True)

    def submit(self, request: Mapping[str, object]) -> None:
        """Submit a job, unless one of that id is there."""
        self._call("POST", "/api/jobs/", body=request, accept="already exists")

    def stop(self, name: str) -> None:
        """Have a job's process told to end."""
        self._call("POST", f"/api/jobs/{name}/stop", missing=True)

    def delete(self, name: str) -> None:
        """Forget a job that is over."""
        self._call("DELETE", f"/api/jobs/{name}", missing=True)

    def printed_state(self, name: str) -> Any:
        """The last state that a driver printed: for a Ray whose table it could not write to."""
        answer = self._call("GET", f"/api/jobs/{name}/logs", missing=True) or {}
        return find_state(str(answer.get("logs") or ""))

    def living(self) -> dict[str, Mapping[str, float]]:
        """What each living node has in all, by its id."""
        answer = self._call("GET", "/api/v0/nodes?limit=10000&detail=false")
        try:
            found = answer["data"]["result"]["result"]
            living = [one for one in found if one["state"] == "ALIVE"]
            return {one["node_id"]: one.get("resources_total") or {} for one in living}
        except (KeyError, TypeError):
            raise self._not_ray("it answers with something that is no list of nodes") from None

    def _call(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        missing: bool = False,
        accept: str = "",
    ) -> Any:
        import urllib3

        if self._pool is None:
            timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_ANSWER_SECONDS)
            self._pool = urllib3.PoolManager(timeout=timeout, retries=False, maxsize=8)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        given = {"json": body} if body is not None else {}
        try:
            answer = self._pool.request(verb, self.address + path, headers=headers, **given)
        except urllib3.exceptions.SSLError as error:
            raise Unavailable(
                f"There is no trusted connection to {self.address}.",
                why=str(error),
                fix="If Ray speaks plain HTTP, as it does by itself, write http://. If its "
                "certificate is your site's own, start the server with SSL_CERT_FILE.",
            ) from error
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(
                f"No Ray answers at {self.address}.",
                why=str(error),
                fix=f"{_DASHBOARD}, and it must be reached from the server.",
            ) from error
        text = answer.data.decode("utf-8", "replace")
        if answer.status == 404 and missing:
            return None
        if answer.status >= 300:
            if accept and accept in text:
                return None
            moved = answer.headers.get("Location", "")
            raise self._refusal(f"{verb} {path}", answer.status, text.strip(), moved)
        try:
            return json.loads(text)
        except ValueError:
            raise self._not_ray("it answers with something that is no JSON") from None

    def _refusal(self, asked: str, status: int, text: str, moved: str) -> RunyardError:
        """What follows from an answer that is no success."""
        why = text[-_TAIL:] or f"It answers {status}."
        if status in (401, 403):
            what = "refuses the token" if self._token else "asks for a token, and none was given"
            return Denied(
                f"The Ray cluster at {self.address} {what}.",
                why=why,
                fix="Attach it with the token that `ray get-auth-token` prints on the cluster.",
            )
        if status in _AWAY:
            return Unavailable(f"No Ray answers at {self.address}.", why=why)
        if status >= 500 and (asked.startswith("GET") or _COMES_UP in text):
            return Unavailable(f"The Ray cluster at {self.address} does not work now.", why=why)
        if status < 400:
            return self._not_ray(f"it sends {asked} on to {moved or 'nowhere'}")
        if status == 404:
            return self._not_ray(f"there is nothing for {asked}")
        if status == 400 and "HTTPS" in text:
            return self._not_ray("it speaks TLS, so the address begins with https://")
        what = f"The Ray cluster at {self.address} failed to do {asked}."
        return EngineFailed(what, why=why)

    def _not_ray(self, why: str) -> EngineFailed:
        return EngineFailed(
            f"What answers at {self.address} is not Ray's Jobs API.",
            why=f"{why[:1].upper()}{why[1:]}.",
            fix=f"{_DASHBOARD}.",
        )


def find_state(text: str) -> Any:
    """The last state in what a driver printed, or None. Pure."""
    mark = STATE + " "
    said = [line[len(mark) :] for line in text.splitlines() if line.startswith(mark)]
    return json.loads(said[-1]) if said else None


def _web_address(address: str) -> str:
    """The address with a scheme and without an end, or Invalid."""
    text = address.strip().rstrip("/")
    if "://" not in text:
        text = "http://" + text
    if not re.fullmatch(r"https?://[^/\s:]+(:\d+)?(/.*)?", text):
        raise Invalid(
            f"'{address}' is not an address of a Ray cluster.",
            fix="Give that of its dashboard, such as http://ray-head:8265.",
        )
    return text
