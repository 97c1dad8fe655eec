"""The front end and the real worker together, with an entry script."""

import json
import subprocess
import sys

from runyard.testing.front_service import Service

SCRIPT = """
import json

def init():
    global factor
    factor = 2

def run(data):
    rows = json.loads(data)["data"]
    return [factor * value for value in rows]
"""


def start(service: Service, script: str) -> None:
    (service.folder / "score.py").write_text(script)
    spec = {
        "scorer": "script",
        "models": [],
        "models_dir": str(service.folder),
        "entry_script": "score.py",
        "source_directory": str(service.folder),
        "sockets": [str(service.folder / "w0.sock")],
    }
    (service.folder / "scoring.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "runyard_runtime.scoring"]
    service.workers["w0"] = subprocess.Popen([*command, str(service.folder / "scoring.json"), "0"])
    service.start()
    service.wait_ready()


def test_a_script_answers_through_both(service: Service) -> None:
    start(service, SCRIPT)
    answer = service.score(b'{"data": [1, 2.5]}')
    assert (answer.status, json.loads(answer.body)) == (200, [2, 5.0])
    assert service.score(b"\xff").status == 400
    broken = service.score(b'{"wrong": 1}')
    assert broken.status == 500
    assert "KeyError" in str(broken.json()["error"])
    with service.load_of(b'{"data": [4]}', b"[8]") as load:
        load.wait_more(200)
    assert not load.failures


def test_a_script_that_wants_headers_has_them_in_every_request(service: Service) -> None:
    start(
        service, "def init(): pass\ndef run(data, request_headers): return request_headers['X-A']"
    )
    assert json.loads(service.score(b"[1]", **{"X-A": "b"}).body) == "b"
