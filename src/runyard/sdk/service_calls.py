"""One request to a service, as any HTTP client would send it."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from runyard.sdk.exceptions import WebserviceException, error_text

TIMEOUT_SECONDS = 300.0  # longer than any service lets its callers wait


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def parsed(self) -> Any:
        """The JSON of a good answer; `WebserviceException` with the service's words for a bad."""
        if self.status != 200:
            raise WebserviceException(
                "Received bad response from service. More information can be found by calling "
                "`.get_logs()` on the webservice object.\n"
                f"Response Code: {self.status}\n"
                f"Headers: {self.headers}\n"
                f"Content: {self.body.decode(errors='replace')}"
            )
        try:
            return json.loads(self.body)
        except ValueError:
            # A script that answers a text or an image: better than v1's JSONDecodeError.
            try:
                return self.body.decode()
            except UnicodeDecodeError:
                return self.body


def call_service(
    url: str,
    data: object,
    secret: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Answer:
    """POST data to a service: texts and bytes as they are, anything else as JSON."""
    import urllib3

    sent = {"Content-Type": "application/json", **(headers or {})}
    if secret:
        sent["Authorization"] = f"Bearer {secret}"
    with urllib3.PoolManager() as pool:
        try:
            answer = pool.request(
                "POST",
                url,
                body=_body(data),
                headers=sent,
                retries=False,
                timeout=urllib3.Timeout(connect=10.0, read=timeout_seconds),
            )
        except urllib3.exceptions.HTTPError as error:
            raise WebserviceException(
                error_text(
                    f"The service at {url} does not answer.",
                    why=f"{error}.",
                    fix="See how it is: service.update_deployment_state(), service.state, "
                    "service.get_logs()",
                )
            ) from None
    return Answer(status=answer.status, headers=dict(answer.headers), body=answer.data)


def example_body(url: str, secret: str = "") -> str:
    """A request that the service at this address of its swagger document says it takes; empty if
    it says nothing of the kind."""
    import urllib3

    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    with urllib3.PoolManager() as pool:
        try:
            answer = pool.request("GET", url, headers=headers, retries=False, timeout=2.0)
            return json.dumps(json.loads(answer.data)["definitions"]["ServiceInput"]["example"])
        except (urllib3.exceptions.HTTPError, ValueError, LookupError, TypeError):
            return ""


def _body(data: object) -> bytes:
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    if isinstance(data, str):
        return data.encode()
    try:
        return json.dumps(data).encode()
    except (TypeError, ValueError) as error:
        raise WebserviceException(
            error_text(
                f"A {type(data).__name__} cannot be sent.",
                why=f"{error}.",
                fix="Send a text, bytes, or what json.dumps takes: array.tolist()",
            )
        ) from None
