"""Inputs and outputs of a job: agents on a node with a real web server to read from."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import runyard_runtime
from runyard.engines.base import JobId, JobPhase, NodeGroup
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import DRIVER_LOG, FOREVER, agent_pid, ended, lives, says
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.faulty_web import FaultyWeb, cut, hang, status
from runyard.testing.fuse import why_no_fuse
from runyard.testing.interpreters import interpreters
from runyard_runtime import mounts, wire

MOUNTER = [sys.executable, "-m", "runyard.data.mount"]
NAMES = ["a.txt", "deep/er/b c.txt", "deep/ü – \n.txt"]
CONTENTS = {name: f"content of {name}\n".encode() * 50 for name in NAMES}
with_fuse = pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())

# Prints what a script sees of its input.
LOOK = """
import json, os, sys
top = sys.argv[1]
seen = {}
for folder, names, files in os.walk(top):
    for name in files:
        path = os.path.join(folder, name)
        data = open(path, "rb").read()
        assert os.stat(path).st_size == len(data)
        seen[os.path.relpath(path, top)] = data.decode()
print("SEEN " + json.dumps(seen), flush=True)
"""


@pytest.fixture
def web() -> Iterator[FaultyWeb]:
    with FaultyWeb() as web:
        yield web


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "address.json") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(tmp_path / "jobs")
    yield engine
    for job in engine.jobs():
        engine.kill(job)
    assert not mounts.mount_points(str(tmp_path)), "a mount was left behind"


class Node:
    """Runs scripts whose inputs come from the web or the server."""

    def __init__(self, engine: LocalEngine, server: FakeServer, web: FaultyWeb, folder: Path):
        self.engine, self.server, self.web, self.folder = engine, server, web, folder

    def offer(
        self, contents: dict[str, bytes] = CONTENTS, name: str = "data", single: bool = False
    ) -> None:
        """Have an input lead to these files on the web."""
        rows = []
        for number, (path, data) in enumerate(contents.items()):
            page = self.web.put(f"/{name}/{number}", data)
            rows.append([path, len(data), f"url:{self.web.url}/{name}/{number}", page.etag])
        self.server.inputs[name] = {"files": rows, "single": single}

    def start(self, code: str, mode: str, key: str = "job", /, **changes: object) -> JobId:
        """Start a script that gets its input as its first argument.

        Changes are made to the plan; those that begin with `input_` to the input.
        """
        one = {"name": "data", "mode": mode, "dataset": "d1", "path_on_compute": None}
        plan: dict[str, object] = {
            "inputs": [one],
            "cache": str(self.folder / "cache"),
            "cache_bytes": 1 << 40,
            "mounter": MOUNTER if mode == "mount" else None,
            "fetching": {"allow_private": True},
        }
        for name, value in changes.items():
            if name.startswith("input_"):
                one[name.removeprefix("input_")] = value  # type: ignore[assignment]
            else:
                plan[name] = value
        words = ["script.py", "DatasetConsumptionConfig:data"]
        whole = self.server.plan(words, files={"script.py": code}, **plan)
        return self.engine.start(NodeGroup(key=key, plan=json.dumps(whole).encode()))

    def run(self, code: str, mode: str, key: str = "job", /, **changes: object) -> int | None:
        """Run it to its end; the exit code."""
        self.server.streams.clear()
        return ended(self.engine, self.start(code, mode, key, **changes)).exit_code

    def wait_until_gone(self, job: JobId) -> None:
        """Until the engine knows that the agent was lost."""
        wait_until(lambda: self.engine.poll([job])[job].phase is JobPhase.GONE)

    def seen(self) -> dict[str, str]:
        """What LOOK printed."""
        log = self.server.log(DRIVER_LOG)
        lines = [line for line in log.splitlines() if line.startswith("SEEN ")]
        assert lines, log + self.server.log(wire.CONTROL_LOG)
        found: dict[str, str] = json.loads(lines[-1].removeprefix("SEEN "))
        return found

    def account(self) -> str:
        """What the agent said."""
        return self.server.log(wire.CONTROL_LOG)


EXPECTED = {name: data.decode() for name, data in CONTENTS.items()}


@pytest.fixture
def node(engine: LocalEngine, server: FakeServer, web: FaultyWeb, tmp_path: Path) -> Node:
    node = Node(engine, server, web, tmp_path)
    node.offer()
    return node


@pytest.mark.parametrize(
    "interpreter", interpreters(extremes=True), ids=lambda path: Path(path).parts[-3]
)
def test_a_download_is_there_before_the_script_starts(
    node: Node, tmp_path: Path, interpreter: str
) -> None:
    node.engine = LocalEngine(tmp_path / "jobs", interpreter=interpreter)
    assert node.run(LOOK, "download", interpreter=interpreter) == 0
    assert node.seen() == EXPECTED
    assert "3 files laid out" in node.account()


@with_fuse
def test_a_mount_looks_the_same(node: Node) -> None:
    assert node.run(LOOK, "mount") == 0
    assert node.seen() == EXPECTED
    assert "mounted input 'data': 3 files" in node.account()


def test_without_fuse_a_mount_is_laid_out_and_looks_the_same(node: Node) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no FUSE here')"]
    assert node.run(LOOK, "mount", mounter=broken) == 0
    assert node.seen() == EXPECTED
    assert "laid out instead of mounted" in node.account()


def test_a_second_job_finds_all_in_the_cache(node: Node) -> None:
    node.run(LOOK, "download", "first")
    asked = len(node.web.requests)
    code = LOOK + "print('FUSE' if 'runyard' in open('/proc/mounts').read() else 'plain')"
    node.run(code, "mount", "second")
    assert node.seen() == EXPECTED
    assert len(node.web.requests) == asked
    assert "nothing fetched" in node.account()


def test_one_file_is_given_by_its_own_path(node: Node) -> None:
    node.offer({"only one.zip": b"zip"}, single=True)
    code = "import sys; print(sys.argv[1].endswith('/only one.zip'), open(sys.argv[1]).read())"
    node.run(code, "download")
    assert node.server.log(DRIVER_LOG) == "True zip\n"


def test_placeholders_and_variables(node: Node) -> None:
    code = """
import os, sys
path = os.environ["data"]
print(sys.argv[1] == "--data=%s/x" % path, sys.argv[2] == path, sys.argv[3] == path)
print(sys.argv[4], os.environ["AZUREML_DATASET_ENVIRONMENT_VARS"])
print(os.environ["AZUREML_DATAREFERENCE_data"] == path)
"""
    arguments = [
        "script.py",
        "--data=DatasetConsumptionConfig:data/x",
        "$AZUREML_DATAREFERENCE_data",
        "${AZUREML_DATAREFERENCE_data}",
        "DatasetConsumptionConfig:database",
    ]
    node.run(code, "download", arguments=arguments)
    assert node.server.log(DRIVER_LOG).splitlines() == [
        "True True True",
        "DatasetConsumptionConfig:database data:Download",
        "True",
    ]


def test_a_shell_command_gets_the_path_too(node: Node) -> None:
    command = ["cat DatasetConsumptionConfig:data/a.txt | wc -c"]
    node.run("", "download", arguments=command, is_command=True)
    assert int(node.server.log(DRIVER_LOG)) == len(CONTENTS["a.txt"])


def test_direct_mode_gives_the_id_alone(node: Node) -> None:
    node.run("import os, sys; print(sys.argv[1], os.environ['data'])", "direct")
    assert node.server.log(DRIVER_LOG) == "d1 d1\n"
    assert not node.web.requests


@pytest.mark.parametrize("mode", ["download", "mount"])
@pytest.mark.parametrize("absolute", [True, False])
def test_path_on_compute(node: Node, tmp_path: Path, mode: str, absolute: bool) -> None:
    wanted = str(tmp_path / "somewhere" / "else") if absolute else "inputs/mine"
    code = LOOK + f"import os.path; print(os.path.samefile(sys.argv[1], {wanted!r}), sys.argv[1])"
    node.run(code, mode, input_path_on_compute=wanted)
    assert node.seen() == EXPECTED
    same, path = node.server.log(DRIVER_LOG).splitlines()[-1].split(" ", 1)
    assert same == "True"
    assert path.endswith(wanted)
    assert not os.path.lexists(tmp_path / "somewhere" / "else")


def test_a_path_on_compute_that_leads_out_fails_the_run(node: Node) -> None:
    assert node.run(LOOK, "download", input_path_on_compute="../../elsewhere") == 1
    assert "leads out of the working directory" in str(node.server.report("failed")["error"])


def test_a_path_that_is_taken_is_no_reason_to_fail(node: Node, tmp_path: Path) -> None:
    (tmp_path / "other run's data").mkdir()
    (tmp_path / "shared").symlink_to(tmp_path / "other run's data")
    node.run(LOOK, "mount", input_path_on_compute=str(tmp_path / "shared"))
    assert node.seen() == EXPECTED
    assert "cannot be at" in node.account()
    assert os.readlink(tmp_path / "shared") == str(tmp_path / "other run's data")


def test_what_the_snapshot_has_is_not_overwritten_unless_asked(node: Node) -> None:
    code = LOOK + "print(open('a.txt').read(7))"
    arguments = ["script.py", "DatasetConsumptionConfig:data"]
    files = [node.server.add_file(name, "another") for name in ("a.txt", "script.py")]
    files[1] = node.server.add_file("script.py", code)
    changes = {"snapshot": files, "input_path_on_compute": ".", "arguments": arguments}
    assert node.run(code, "download", "kept", **changes) == 1
    assert "has another content" in str(node.server.report("failed")["error"])
    node.server.reports.clear()
    assert node.run(code, "download", "replaced", input_overwrite=True, **changes) == 0
    assert node.server.log(DRIVER_LOG).endswith("content\n")


def test_a_download_is_the_scripts_own(node: Node) -> None:
    code = "import sys; open(sys.argv[1] + '/a.txt', 'w').write('changed')"
    assert node.run(code, "download", "first") == 0
    assert node.run(LOOK, "download", "second") == 0
    assert node.seen() == EXPECTED


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", ""])
def test_a_name_that_traverses_fails_the_run(node: Node, tmp_path: Path, path: str) -> None:
    node.offer({path: b"x"})
    assert node.run(LOOK, "download") == 1
    assert node.server.report("failed")["error"]["code"] == "InputFailed"  # type: ignore[index]
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("mode", ["download", "mount"])
def test_a_file_that_is_gone_is_named(node: Node, mode: str) -> None:
    node.web.next("/data/1", *[status(404)] * 9)
    changes = {"mounter": None} if mode == "mount" else {}
    assert node.run(LOOK, mode, **changes) == 1
    message = node.server.report("failed")["error"]["message"]  # type: ignore[index]
    assert "Input 'data'" in message
    assert "/data/1" in message
    assert "no such file" in message


def test_an_input_that_the_server_does_not_know_fails_the_run(node: Node) -> None:
    node.server.refuse = ("/inputs/", 400)
    assert node.run(LOOK, "download") == 1
    assert "refused to order" in str(node.server.report("failed")["error"])


def test_cuts_on_the_way_are_no_reason_to_fail(node: Node) -> None:
    node.web.next("/data/0", cut(10), status(503), cut(0))
    assert node.run(LOOK, "download") == 0
    assert node.seen() == EXPECTED


def test_a_stop_while_data_is_fetched_is_heard(node: Node) -> None:
    node.web.next("/data/0", hang(5))
    job = node.start(LOOK, "download")
    wait_until(lambda: node.web.asked("/data/0"))
    node.engine.stop(job)
    ended(node.engine, job)
    assert node.server.report("finished")["stopped"] is True
    assert node.server.log(DRIVER_LOG) == ""


def test_an_agent_killed_while_it_fetches_is_replaced(node: Node, tmp_path: Path) -> None:
    node.web.next("/data/0", hang(5))
    job = node.start(LOOK, "download")
    wait_until(lambda: node.web.asked("/data/0"))
    os.kill(agent_pid(tmp_path / "jobs" / "job"), signal.SIGKILL)
    node.wait_until_gone(job)
    assert node.start(LOOK, "download") == job
    ended(node.engine, job)
    assert node.seen() == EXPECTED


@with_fuse
def test_a_mount_outlives_its_agent_and_ends_with_the_job(node: Node, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    node.offer({"first": b"1", "later": b"2" * 9_000_000})
    code = f"""
import os, sys, time
print(open(sys.argv[1] + "/first").read(), flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
print(len(open(sys.argv[1] + "/later").read()), flush=True)
"""
    job = node.start(code, "mount")
    says(node.server, "1\n")
    os.kill(agent_pid(tmp_path / "jobs" / "job"), signal.SIGKILL)
    node.wait_until_gone(job)
    assert mounts.mount_points(str(tmp_path))
    node.start(code, "mount")
    gate.touch()
    assert ended(node.engine, job).exit_code == 0
    says(node.server, "9000000")
    assert not mounts.mount_points(str(tmp_path))


def mount_pid(tmp_path: Path) -> int:
    known = json.loads((tmp_path / "jobs" / "job" / "agent-0" / "inputs.json").read_text())
    return int(known["mounts"][0]["pid"])


@with_fuse
def test_a_mount_that_is_killed_comes_back(node: Node, tmp_path: Path) -> None:
    node.offer({"first": b"1", "later": b"2" * 9_000_000})
    code = """
import sys, time
print(open(sys.argv[1] + "/first").read(), flush=True)
while True:
    try:
        print(len(open(sys.argv[1] + "/later").read()), flush=True)
        break
    except OSError as error:
        print("lost", flush=True)
        time.sleep(0.1)
"""
    node.web.next("/data/1", hang(5))
    job = node.start(code, "mount")
    says(node.server, "1\n")
    wait_until(lambda: (tmp_path / "jobs/job/agent-0/inputs.json").exists())
    pid = mount_pid(tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert ended(node.engine, job).exit_code == 0
    assert "9000000" in node.server.log(DRIVER_LOG)
    assert "was lost" in node.account()
    assert not lives(mount_pid(tmp_path))


@with_fuse
def test_a_mount_that_cannot_be_made_again_does_not_end_the_next_agent(
    node: Node, tmp_path: Path
) -> None:
    gate, state = tmp_path / "gate", tmp_path / "jobs" / "job" / "agent-0" / "inputs.json"
    node.offer({"first": b"1", "later": b"2" * 9_000_000})
    code = f"""
import os, sys, time
print(open(sys.argv[1] + "/first").read(), flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
print("at its end", flush=True)
"""
    job = node.start(code, "mount")
    says(node.server, "1\n")
    wait_until(state.exists)
    os.kill(agent_pid(tmp_path / "jobs" / "job"), signal.SIGKILL)
    node.wait_until_gone(job)
    os.kill(mount_pid(tmp_path), signal.SIGKILL)
    wait_until(lambda: not lives(mount_pid(tmp_path)))
    known = json.loads(state.read_text())
    known["mounts"][0]["command"] = ["/bin/false"]
    state.write_text(json.dumps(known))
    node.start(code, "mount")
    wait_until(lambda: "cannot be mounted" in node.account())
    gate.touch()
    assert ended(node.engine, job).exit_code == 0
    says(node.server, "at its end")


@with_fuse
def test_killing_a_job_leaves_no_mount(node: Node, tmp_path: Path) -> None:
    job = node.start(
        "import sys; print(len(open(sys.argv[1] + '/a.txt').read()))\n" + FOREVER, "mount"
    )
    says(node.server, "running")
    pid = mount_pid(tmp_path)
    node.engine.kill(job)
    assert not lives(pid)
    assert not mounts.mount_points(str(tmp_path))
    node.engine.forget(job)
    assert not (tmp_path / "jobs" / "job").exists()


def test_progress_is_told_while_data_is_fetched(node: Node, tmp_path: Path) -> None:
    # The agent is another process, so it gets a runtime that is less patient.
    runtime = tmp_path / "runtime" / "runyard_runtime"
    runtime.mkdir(parents=True)
    for path in Path(runyard_runtime.__file__).parent.glob("*.py"):
        text = path.read_text().replace("_PROGRESS_SECONDS = 5.0", "_PROGRESS_SECONDS = 0.1")
        (runtime / path.name).write_text(text)
    node.web.next("/data/0", hang(5))
    node.start(LOOK, "download", runtime=str(runtime.parent))
    wait_until(lambda: "2 of 3 files" in node.account())
    assert "/s" in node.account()


def outputs(**changes: object) -> list[dict[str, object]]:
    known: dict[str, object] = {
        "name": "result",
        "datastore": "workspaceblobstore",
        "path": "dataset/{run-id}/{output-name}",
        "mode": "upload",
    }
    return [{**known, **changes}]


WRITE = """
import os, sys
top = sys.argv[1]
assert top == os.environ["result"] == os.environ["AZUREML_DATAREFERENCE_result"]
assert os.environ["AZUREML_DATASET_FILE_OUTPUTS"] == "result"
os.makedirs(os.path.join(top, "deep"))
open(os.path.join(top, "deep", "a.csv"), "w").write("1,2")
open(os.path.join(top, "b.txt"), "w").write("b")
"""
GIVEN = ["script.py", "DatasetOutputConfig:result"]


@pytest.mark.parametrize("code", [0, 3])
def test_an_output_folder_is_kept_in_its_datastore(node: Node, code: int) -> None:
    source = WRITE + f"sys.exit({code})"
    assert node.run(source, "direct", arguments=GIVEN, inputs=[], outputs=outputs()) == code
    below = "dataset/fake run/1/result/"
    assert set(node.server.stored) == {below + "deep/a.csv", below + "b.txt"}
    assert node.server.blobs[node.server.stored[below + "b.txt"][0]] == b"b"
    assert "kept 2 files" in node.account()
    assert node.server.phases() == ["started", "ended", "finished"]


@pytest.mark.parametrize(
    ("globs", "kept"),
    [
        (["**/*.csv"], {"deep/a.csv"}),
        (["*.txt"], {"b.txt"}),
        (["*"], {"b.txt"}),
        (["**"], {"deep/a.csv", "b.txt"}),
        (["b.tx?", "deep/*"], {"deep/a.csv", "b.txt"}),
    ],
)
def test_only_what_matches_is_kept(node: Node, globs: list[str], kept: set[str]) -> None:
    changes = {"inputs": [], "outputs": outputs(globs=globs, path="out")}
    node.run(WRITE, "direct", arguments=GIVEN, **changes)
    assert {path.removeprefix("out/") for path in node.server.stored} == kept


@pytest.mark.parametrize("overwrite", [True, False])
def test_what_was_there_before_is_replaced_only_if_asked(node: Node, overwrite: bool) -> None:
    _, digest, size, mode = node.server.add_file("", "old")
    node.server.stored["out/b.txt"] = (str(digest), int(str(size)), int(str(mode)))
    changes = {"inputs": [], "outputs": outputs(path="out", overwrite=overwrite)}
    node.run(WRITE, "direct", arguments=GIVEN, **changes)
    content = node.server.blobs[node.server.stored["out/b.txt"][0]]
    assert content == (b"b" if overwrite else b"old")
    assert "out/deep/a.csv" in node.server.stored
    assert ("exists already" in node.account()) is not overwrite


def test_a_mounted_output_is_kept_while_the_script_runs(node: Node) -> None:
    changes = {"inputs": [], "outputs": outputs(mode="mount"), "checkpoint_seconds": 0.1}
    job = node.start(WRITE + FOREVER, "direct", arguments=GIVEN, **changes)
    wait_until(lambda: len(node.server.stored) == 2)
    node.engine.stop(job)
    ended(node.engine, job)


def test_an_output_may_be_in_the_working_directory(node: Node) -> None:
    changes = {"inputs": [], "outputs": outputs(path_on_compute="mine", path="out")}
    node.run(WRITE + "assert os.path.samefile(top, 'mine')", "direct", arguments=GIVEN, **changes)
    assert set(node.server.stored) == {"out/deep/a.csv", "out/b.txt"}
