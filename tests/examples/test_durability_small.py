"""The durability benchmark in small: real jobs, a real server, real kill -9."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.examples.conftest import Shell

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.story


def test_nothing_is_lost_or_doubled_while_servers_and_agents_are_killed(
    shell: "Shell", tmp_path: Path
) -> None:
    shell.folder = ROOT
    answer = tmp_path / "answer.json"
    shell.python(
        "-m", "benchmarks", "durability", "--points", "20000", "--kills", "3", "--runs", "6",
        "--json", str(answer), codes=(0, 1),  # 1: a busy machine, and a kill came too late
    )  # fmt: skip
    (report,) = json.loads(answer.read_text())["reports"]
    measured = {row["promise"]: row["measured"] for row in report["rows"]}
    assert measured.pop("kills while jobs were logging") > 0
    assert measured == {
        "points lost": 0,
        "points doubled": 0,
        "series that differ from what was logged": 0,
        "runs that ended in the wrong state, or without their outputs or metrics": 0,
    }
