"""The examples of deployment, with real frameworks, run as a user would run them.

Their environments are kept beside uv's cache: the first time takes minutes, others seconds.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import urllib3

from runyard.environments.uv_tool import find_uv

if TYPE_CHECKING:
    from tests.examples.conftest import Shell

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.story, pytest.mark.heavy]


@pytest.fixture
def warm_shell(shell: "Shell", tmp_path: Path) -> Iterator["Shell"]:
    """A shell whose environments outlive the test."""
    found = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True)
    kept = Path(found.stdout.strip()).with_name("runyard-tests") / "environments"
    kept.mkdir(parents=True, exist_ok=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "environments").symlink_to(kept)
    shell.runyard("init", "examples")
    yield shell
    for service in json.loads(shell.runyard("service", "ls", "--json")):
        shell.runyard("service", "rm", service["name"])


def test_the_example_with_an_entry_script_answers_and_describes_itself(
    warm_shell: "Shell",
) -> None:
    printed = warm_shell.python(str(EXAMPLES / "entry-script" / "deploy.py"))
    kinds = re.findall(r"^\[.*\] is (\w+), \d+% sure$", printed, re.MULTILINE)
    assert kinds == ["setosa", "versicolor", "virginica"]
    assert '"example": {"flowers": [[5.1, 3.5, 1.4, 0.2]]}' in printed
    key = re.search(r"Bearer (\S+)'", printed)
    address = re.search(r"describes itself at (\S+)\.$", printed, re.MULTILINE)
    assert key is not None, printed
    assert address is not None, printed
    page = urllib3.request("GET", address[1], headers={"Authorization": f"Bearer {key[1]}"})
    assert "flowers" in json.dumps(page.json()["definitions"]["ServiceInput"])


@pytest.mark.parametrize("framework", ["pytorch", "keras"])
def test_a_trained_network_is_served_as_onnx(warm_shell: "Shell", framework: str) -> None:
    printed = warm_shell.python(str(EXAMPLES / "onnx" / "deploy.py"), framework)
    assert "answers as the model does" in printed
    assert "the service says 0 1 2 3 4 5 6 7 8 9" in printed
