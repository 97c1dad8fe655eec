"""The examples and the README's own code, run as a user would run them."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.examples.conftest import Shell

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.story

EXAMPLES = ROOT / "examples"


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def write_conda_file(folder: Path) -> None:
    """An environment that needs no download: this Python, and what the platform itself brings."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "conda_dependencies.yml").write_text(
        f"dependencies:\n  - python={version}\n  - pip:\n      - azureml-defaults\n"
    )


def test_the_example_without_a_framework_trains_and_brings_its_model_home(shell: "Shell") -> None:
    shell.runyard("init", "example")
    printed = shell.python(str(EXAMPLES / "no-framework" / "submit.py"))
    for marker in ("RunId: line_", "Streaming azureml-logs/70_driver_log.txt", "Execution Summary"):
        assert marker in printed
    assert "epoch 30: loss" in printed
    line = json.loads((shell.folder / "model" / "line.json").read_text())
    assert line["slope"] == pytest.approx(3, abs=0.1)
    assert line["intercept"] == pytest.approx(-1, abs=0.1)


def test_a_finished_run_is_still_there_after_the_server_was_stopped(shell: "Shell") -> None:
    shell.runyard("init", "example")
    shell.python(str(EXAMPLES / "no-framework" / "submit.py"))
    shell.runyard("down")
    (run,) = json.loads(shell.runyard("ls", "--json"))["runs"]
    assert run["state"] == "Completed"
    assert "epoch 30: loss" in shell.runyard("logs", "latest")


def test_the_readme_runs_as_it_is_written(shell: "Shell") -> None:
    submit, in_the_script = blocks(ROOT / "README.md")
    assert "Run.get_context()" in in_the_script
    source = shell.folder / "src"
    shutil.copytree(EXAMPLES / "no-framework" / "src", source)
    script = (source / "train.py").read_text()
    (source / "train.py").write_text(in_the_script + script)
    write_conda_file(shell.folder)
    (shell.folder / "submit.py").write_text(submit)
    shell.runyard("init")
    printed = shell.python("submit.py")
    assert "'slope'" in printed
    assert (shell.folder / "model" / "line.json").exists()


def test_getting_started_runs_as_it_is_written(shell: "Shell") -> None:
    train, submit = blocks(ROOT / "docs" / "getting-started.md")
    (shell.folder / "src").mkdir()
    (shell.folder / "src" / "train.py").write_text(train)
    (shell.folder / "submit.py").write_text(submit)
    shell.runyard("init", "my-project")
    printed = shell.python("submit.py")
    assert "'loss': [1.0, 0.5, " in printed
    assert "'outputs/model.txt'" in printed


@pytest.mark.heavy
def test_the_quickstart_goes_from_training_to_answers_twice(shell: "Shell") -> None:
    for version in (1, 2):
        printed = shell.python(str(EXAMPLES / "quickstart" / "quickstart.py"))
        accuracy = re.search(r"^ +accuracy +([\d.]+) on all", printed, re.MULTILINE)
        assert accuracy is not None, printed
        assert float(accuracy[1]) > 0.9
        assert (shell.folder / "quickstart-run" / "model" / "saved_model.pb").exists()
        assert row_before(printed, "is") == list(range(10))
        assert row_before(printed, "the service says") == list(range(10))
        assert f"digits:{version};" in printed
    runs = json.loads(shell.runyard("ls", "--json"))["runs"]
    assert [run["state"] for run in runs] == ["Completed", "Completed"]
    assert runs[0]["environment"]["key"] == runs[1]["environment"]["key"]
    (service,) = json.loads(shell.runyard("service", "ls", "--workspace", "quickstart", "--json"))
    assert (service["state"], service["serving"]["number"]) == ("Healthy", 2)
    end = re.search(r"until you end it: \S+ (.*)$", printed, re.MULTILINE)
    assert end is not None, printed
    shell.runyard(*end[1].split())


def row_before(printed: str, words: str) -> list[int]:
    """The digits on the line that ends with these words."""
    found = re.search(rf"^((?: +\d)+) +{words}$", printed, re.MULTILINE)
    assert found is not None, printed
    return [int(digit) for digit in found[1].split()]
