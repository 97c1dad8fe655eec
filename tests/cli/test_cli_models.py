"""`runyard model …` on a real server, as somebody types it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.story


def type_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runyard", *words],
        cwd=folder,
        env={**os.environ, "RUNYARD_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def said(folder: Path, *words: str) -> str:
    done = type_in(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(folder: Path, *words: str) -> str:
    done = type_in(folder, *words)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is a workspace, with a server of its own and a run that left a model."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(
        "import os\nos.makedirs('outputs/net')\nopen('outputs/net/a', 'w').write('A')\n"
        "open('outputs/net/b', 'w').write('B')\n"
    )
    type_in(folder, "init", "yard")
    said(folder, "submit", "--wait", "code/train.py")
    yield folder
    type_in(folder, "down")


def test_a_model_is_registered_shown_downloaded_and_removed(place: Path) -> None:
    words = ["model", "register", "net", "outputs/net", "--run", "latest"]
    words += ["--framework", "tensorflow", "--framework-version", "2.2", "--tag", "stage=new"]
    words += ["--tag", "flag", "--property", "p=1", "--cpu", "2", "--description", "digits"]
    assert said(place, *words) == "net:1\n"
    (place / "x y.pkl").write_text("pickle")
    assert said(place, "model", "register", "pickle", "x y.pkl") == "pickle:1\n"
    assert said(place, "model", "register", "net", "outputs/net/a", "--run", "latest") == "net:2\n"
    listed = said(place, "model", "ls")
    assert "net     2" in listed
    assert "pickle  1" in listed
    versions = json.loads(said(place, "model", "ls", "net", "--json"))
    assert [one["number"] for one in versions] == [2, 1]
    found = json.loads(said(place, "model", "ls", "--all", "--tag", "stage=new", "--json"))
    assert [(one["name"], one["number"]) for one in found] == [("net", 1)]
    assert (
        json.loads(said(place, "model", "ls", "--run", "latest", "--framework", "Onnx", "--json"))
        == []
    )
    shown = said(place, "model", "show", "net:1")
    for text in ("net:1", "TensorFlow 2.2", "stage=new, flag", "p=1", "2 CPU", "net/b", "digits"):
        assert text in shown
    document = json.loads(said(place, "model", "show", "net:1", "--json"))
    assert document["lineage"]["snapshot"]
    assert document["model"]["run"] == document["lineage"]["run"]
    assert json.loads(said(place, "show", "latest", "--json"))["models"] == ["net:2", "net:1"]
    assert said(place, "model", "download", "net:1", "here") == "here/net\n"
    assert (place / "here" / "net" / "b").read_text() == "B"
    assert "--overwrite" in refusal(place, "model", "download", "net:1", "here")
    assert said(place, "model", "download", "net:1", "here", "--overwrite") == "here/net\n"
    assert said(place, "model", "rm", "net:1", "pickle:1") == "net:1\npickle:1\n"
    assert "There is no model 'net:1'" in refusal(place, "model", "show", "net:1")
    assert json.loads(said(place, "model", "ls", "net", "--json"))[0]["number"] == 2


def test_errors_say_what_to_type(place: Path) -> None:
    said(place, "model", "register", "kept", "outputs/net", "--run", "latest")
    assert "runyard model rm kept:1" in refusal(place, "model", "rm", "kept")
    assert "runyard model ls" in refusal(place, "model", "show", "never")
    assert "NAME:VERSION" in refusal(place, "model", "show", "kept:new")
    assert "Did you mean 'outputs/net'" in refusal(
        place, "model", "register", "kept", "outputs/ner", "--run", "latest"
    )
    assert "PATH" in refusal(place, "model", "register", "kept")
    assert "no file or folder 'gone'" in refusal(place, "model", "register", "kept", "gone")
    assert "cannot be the name" in refusal(place, "model", "register", "a b", "home/token")
    done = type_in(place, "model", "show", "never", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "not_found"
