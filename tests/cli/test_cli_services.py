"""Services from the command line: real server, front end and worker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("RUNYARD_", "AZUREML_"))
}
SCORE = """
import json
import os


def init():
    global table
    folder = os.environ["AZUREML_MODEL_DIR"]
    with open(os.path.join(folder, "words.json")) as source:
        table = json.load(source)


def run(data):
    return table[json.loads(data)["word"]]
"""


class Shell:
    """A user's shell in a folder that is a workspace."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._variables = {**ENVIRONMENT, "RUNYARD_HOME": str(home), "NO_COLOR": "1"}
        self._variables["RUNYARD_SAMPLE_SECONDS"] = "0"
        self.folder = folder

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "runyard", *arguments],
            cwd=self.folder,
            env=self._variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def good(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    tmp_path = tmp_path_factory.mktemp("shell")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "words.json").write_text('{"yes": 1, "no": 0}')
    (folder / "score.py").write_text(SCORE)
    (folder / "broken.py").write_text("def init():\n    1 / 0\n\ndef run(data):\n    pass\n")
    made = Shell(tmp_path / "home", folder)
    made.good("init", "yard")
    made.good("model", "register", "words", "words.json")
    yield made
    for one in json.loads(made.good("service", "ls", "--json")):
        made.good("service", "rm", one["name"])
    made.good("down")


def test_a_service_lives_from_deploy_to_rm(shell: Shell) -> None:
    assert "No services" in shell.run("service", "ls").stderr
    bare = shell.run("deploy", "words:1", "--name", "words-service")
    assert "--framework" in bare.stderr
    assert "--script" in bare.stderr
    made = shell.run("deploy", "words:1", "--name", "words-service", "--script", "score.py")
    assert made.stdout.strip().endswith("/score")
    assert "Try it: runyard service score words-service '{}'" in made.stderr
    assert "Healthy" in shell.good("service", "ls")
    assert json.loads(shell.good("service", "score", "words-service", '{"word": "yes"}')) == 1
    (shell.folder / "body.json").write_text('{"word": "no"}')
    assert shell.good("service", "score", "words-service", "@body.json").strip() == "0"
    said = shell.good("service", "score", "words-service", "--json", stdin='{"word": "no"}')
    assert json.loads(said) == {"answer": 0}
    bad = shell.run("service", "score", "words-service", '{"word": "x"}')
    assert bad.returncode == 1
    assert "KeyError" in bad.stderr

    failed = shell.run("service", "update", "words-service", "--script", "broken.py")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    assert "Revision 1 goes on serving" in failed.stderr
    shown = shell.good("service", "show", "words-service")
    for word in ("ZeroDivisionError", "broken.py", "serves", "failed", "words:1"):
        assert word in shown
    assert "Revision 2 did not come up:" in shown
    assert "Revision 1 goes on serving." in shown
    assert "revision 2 did not come up: " in shell.good("service", "ls")
    assert "ZeroDivisionError" in shell.good("service", "logs", "words-service")

    after = json.loads(
        shell.good("service", "update", "words-service", "--auth", "key", "--tag", "a=b", "--json")
    )
    assert (after["access"]["auth"], after["tags"]) == ("key", {"a": "b"})
    keys = json.loads(shell.good("service", "keys", "words-service", "--json"))
    renewed = shell.good("service", "keys", "words-service", "--renew", "primary", "--json")
    assert json.loads(renewed)["secondary"] == keys["secondary"]
    assert json.loads(renewed)["primary"] != keys["primary"]
    assert shell.good("service", "score", "words-service", '{"word": "no"}').strip() == "0"

    stopped = shell.run("down")
    assert "go on without it: words-service." in stopped.stderr
    assert "removed words-service" in shell.good("service", "rm", "words-service")
    gone = shell.run("service", "show", "words-service", "--json")
    assert gone.returncode == 1
    assert "error" in json.loads(gone.stdout)


def test_wrong_deployments_are_refused_in_words(shell: Shell) -> None:
    for arguments, words in (
        (("words", "--name", "Words"), "cannot be the name of a service"),
        (("words", "--name", "words-service"), "without an entry script"),
        (("wrods", "--name", "words-service"), "Did you mean 'words'"),
        (("words:9", "--name", "words-service"), "It has the versions: 1"),
        (("words", "--name", "words-service", "--script", "none.py"), "is not there"),
        (("words", "--name", "words-service", "--source-directory", "."), "Give --script"),
    ):
        refused = shell.run("deploy", *arguments)
        assert refused.returncode in (1, 2)
        assert words in refused.stderr
    nothing = shell.run("service", "update", "words-service")
    assert nothing.returncode == 1


def test_outside_of_a_workspace_folder_the_only_workspace_is_meant(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home, outside = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("outside")
    inside = tmp_path_factory.mktemp("inside")
    shell = Shell(home, outside)
    try:
        assert "the server has none" in shell.run("service", "ls").stderr
        Shell(home, inside).good("init", "yard")
        assert "No services" in shell.run("service", "ls").stderr
        Shell(home, tmp_path_factory.mktemp("other")).good("init", "another")
        assert "several: another, yard." in shell.run("service", "ls").stderr
    finally:
        shell.good("down")
