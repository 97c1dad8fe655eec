"""Under steady load: updates and the death of any one process, and no request fails."""

import http.client
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from azureml.core import Model, Webservice, Workspace
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AciWebservice
from azureml.exceptions import WebserviceException
from runyard.testing.front_service import Load, wait_for
from runyard.testing.home_processes import ECHO, kill, steady_load

if TYPE_CHECKING:
    from tests.deployment.conftest import Yard

pytestmark = pytest.mark.story

Script = Callable[..., InferenceConfig]


@pytest.fixture
def service(ws: Workspace, script: Script) -> Iterator[AciWebservice]:
    """An echo with one worker, made for the first test and used by all."""
    if "echo" not in ws.webservices:
        Model.deploy(ws, "echo", [], script())
    service = Webservice(ws, "echo")
    service.wait_for_deployment()
    assert isinstance(service, AciWebservice)
    yield service
    wait_for(lambda: Webservice(ws, "echo").state == "Healthy", "the service being well again")


def port_of(service: Any) -> int:
    return urlsplit(str(service.scoring_uri)).port or 0


def workers(load: Load, version: str = "") -> set[str]:
    """The workers that have answered."""
    return {name for name in load.workers_seen if name.startswith(version)}


def test_an_update_fails_no_request(service: AciWebservice, script: Script) -> None:
    with steady_load(port_of(service)) as load:
        for version in ("two", "three"):
            service.update(inference_config=script(ECHO.replace("VERSION", version)))
            service.wait_for_deployment()
            wait_for(lambda name=version: workers(load, name), version)  # type: ignore[misc]
    last = Load(port_of(service), 1, lambda _: (b"[1]", b"[1]"))
    last.wait_more(3)
    last.stop()
    assert workers(last) == workers(last, "three"), "the old revision still answers"


def test_an_update_that_fails_leaves_the_old_revision_and_says_why(
    service: AciWebservice, script: Script
) -> None:
    broken = "def init():\n    raise OSError('no weights')\n\ndef run(data):\n    return data\n"
    with steady_load(port_of(service)) as load:
        before = workers(load)
        service.update(inference_config=script(broken))
        with pytest.raises(
            WebserviceException, match=r"Revision \d+ goes on serving[\s\S]*OSError: no weights"
        ):
            service.wait_for_deployment()
        assert "OSError: no weights" in str(service.error)
        assert "raise OSError('no weights')" in service.get_logs()
    assert workers(load) == before
    service.update(inference_config=script())
    service.wait_for_deployment()
    assert service.error is None


def test_a_killed_worker_fails_no_request(service: AciWebservice) -> None:
    with steady_load(port_of(service)) as load:
        (only,) = workers(load)
        kill(int(only.split()[1]))
        wait_for(lambda: len(workers(load)) == 2, "a successor")


def test_killed_agents_fail_no_request(service: AciWebservice, yard: "Yard") -> None:
    record = service._record
    assert record.serving is not None
    with steady_load(port_of(service)) as load:
        for run in (record.front, record.serving.run):
            assert run is not None
            agent = yard.agent(run)
            assert agent
            kill(agent)
            wait_for(lambda run=run, old=agent: yard.agent(run) not in (0, old), "another agent")  # type: ignore[misc]
    assert len(workers(load)) == 1, "the worker should not have been started again"


def test_a_killed_server_fails_no_request(service: AciWebservice, yard: "Yard") -> None:
    with steady_load(port_of(service)) as load:
        yard.kill_server()
        load.wait_more(50)
        yard.start()
        load.wait_more(50)
    assert len(workers(load)) == 1


def test_a_killed_front_end_is_back_in_a_moment(service: AciWebservice, yard: "Yard") -> None:
    uid, port = service._record.uid, port_of(service)
    fronts = [pid for pid in yard.processes(uid) if is_front(pid)]
    kill(*fronts)
    begun = time.monotonic()
    wait_for(lambda: answers(port), "an answer")
    print(f"nobody answered for {time.monotonic() - begun:.2f} s")
    assert [pid for pid in yard.processes(uid) if is_front(pid)] != fronts


def is_front(pid: int) -> bool:
    """True if the process is the front end itself, not who keeps it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return bool(re.search(rb"python[\d.]*$", words[0])) and b"runyard.serving.front" in words


def answers(port: int) -> bool:
    """True if a request is answered."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("POST", "/score", b"[1]")
        return link.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()
