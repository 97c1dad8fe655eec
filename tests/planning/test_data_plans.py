"""Names, patterns and paths of data, as tables."""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from runyard.domain.data import (
    DataFile,
    DataInput,
    DataOutput,
    DatasetSpec,
    InputMode,
    Step,
    StoreSource,
)
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import Invalid
from runyard.domain.runs import RunRecord, RunSpec, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning import data
from runyard.planning.job import Surroundings, plan_job

MOUNT = InputMode.MOUNT
A_STORE = StoreSource(datastore="d", path="x")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/b", "a/b"), ("/a//b/", "a/b"), ("./a/./b", "a/b"), ("", ""), ("/", ""), ("a/*", "a/*")],
)
def test_a_path_is_relative_and_plain(path: str, expected: str) -> None:
    assert data.plain_path(path, of="it") == expected


@pytest.mark.parametrize("path", ["..", "a/../b", "/../etc/passwd", "a\0b"])
def test_a_path_that_leaves_its_store_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        data.plain_path(path, of="it")


@pytest.mark.parametrize(
    ("path", "folder", "pattern"),
    [
        ("a/b", "a/b", ""),
        ("a/b/*.csv", "a/b", "*.csv"),
        ("a/b*/c.csv", "a", "b*/c.csv"),
        ("**", "", "**"),
        ("a/?", "a", "?"),
        ("a[1]/b", "a[1]/b", ""),
    ],
)
def test_what_stands_before_a_pattern(path: str, folder: str, pattern: str) -> None:
    assert data.split_pattern(path) == (folder, pattern)


PATHS = ["a.csv", "b.txt", "x/a.csv", "x/y/a.csv", "x/y/[z].csv", "xy/a.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", "a.csv b.txt"),
        ("*.csv", "a.csv"),
        ("?.csv", "a.csv"),
        ("**", " ".join(PATHS)),
        ("**/*.csv", "a.csv x/a.csv x/y/a.csv x/y/[z].csv xy/a.csv"),
        ("**/y/*", "x/y/a.csv x/y/[z].csv"),
        ("x*/**", "x/a.csv x/y/a.csv x/y/[z].csv xy/a.csv"),
        ("x/*/a.csv", "x/y/a.csv"),
        ("**/**/a.csv", "a.csv x/a.csv x/y/a.csv xy/a.csv"),
        ("x/**/a.csv", "x/a.csv x/y/a.csv"),
        ("x/y/[z].csv", "x/y/[z].csv"),
        ("*/*/*/*", ""),
        ("*.CSV", ""),
        ("a", ""),
    ],
)
def test_patterns(pattern: str, found: str) -> None:
    fits = data.compile_pattern(pattern)
    assert " ".join(path for path in PATHS if fits(path)) == found


def test_a_spiteful_pattern_takes_no_time() -> None:
    fits = data.compile_pattern("/".join(["**", "*a" * 40] * 10) + "/b")
    assert not fits("/".join(["a" * 200] * 50))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://yann.lecun.com/exdb/mnist/x.gz", "yann.lecun.com/exdb/mnist/x.gz"),
        ("https://Host.Example:8443/a%20b/c?sig=1", "host.example_8443/a b/c"),
        ("https://h.example//a///b/", "h.example/a/b"),
        ("https://h.example", "h.example"),
        ("http://[::1]:80/x", "__1_80/x"),
    ],
)
def test_where_a_fetched_file_stands(url: str, path: str) -> None:
    assert data.url_path(url) == path
    assert data.url_name(url) == path.rpartition("/")[2]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/x",
        "file:///etc/passwd",
        "http://",
        "http://h:99999/",
        "http://h/a b",
        "http://user:word@h/x",
        "http://h/%2e%2e/x",
        "http://h/a/..%2f..%2fx",
        "http://h/%00",
        "x",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(Invalid):
        data.url_path(url)


def test_addresses_that_differ_in_their_query_do_not_share_a_file() -> None:
    urls = ["http://h/x?a=1", "http://h/x?a=/2", "http://h/y?a=1"]
    assert data.plan_url_paths(urls) == ["h/x?a=1", "h/x?a=_2", "h/y"]


@pytest.mark.parametrize("path", ["", "a//b", "../x", "a/..", "a/./b", "x" * 256, "a\0b"])
def test_a_file_that_no_folder_can_hold_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        data.check_laid_out(["fine", path])


def test_a_path_cannot_be_a_file_and_a_folder() -> None:
    data.check_laid_out(["a-b", "a/b", "a/c/d"])
    with pytest.raises(Invalid, match="a file and a folder"):
        data.check_laid_out(["a/b", "a/b/c"])


@pytest.mark.parametrize(
    ("folders", "shared"),
    [(["a/b", "a/c"], "a"), (["a/b", "a/b"], "a/b"), (["ab", "a"], ""), (["", "a"], "")],
)
def test_the_folder_that_is_cut_off(folders: list[str], shared: str) -> None:
    assert data.common_folder(folders) == shared


FILES = [DataFile(f"{index:03}.png", index, "blob:x") for index in range(200)]


def spec(*steps: Step) -> DatasetSpec:
    return DatasetSpec(sources=(A_STORE,), steps=steps)


def step(op: str, **arguments: object) -> Step:
    return Step(op=op, arguments=arguments)


def test_steps_follow_each_other() -> None:
    kept = data.apply_steps(FILES, spec(step("skip", count=5), step("take", count=2)))
    assert [file.path for file in kept] == ["005.png", "006.png"]


def test_the_parts_of_a_split_complete_each_other_and_stay_the_same() -> None:
    def part(rest: bool) -> set[str]:
        wanted = spec(step("split", percentage=0.7, seed=7, rest=rest))
        return {file.path for file in data.apply_steps(FILES, wanted)}

    assert part(rest=False) | part(rest=True) == {file.path for file in FILES}
    assert not part(rest=False) & part(rest=True)
    assert 100 < len(part(rest=False)) < 180
    assert min(part(rest=False)) == "000.png"  # the same on every machine


@pytest.mark.parametrize(
    "wrong", [step("explode"), step("keep_columns", columns=["a"]), step("take", count="many")]
)
def test_a_step_that_makes_no_sense_is_refused(wrong: Step) -> None:
    with pytest.raises(Invalid):
        data.apply_steps(FILES, spec(wrong))


# ---- inputs and outputs ----------------------------------------------------------------------


def check(*things: DataInput | DataOutput) -> None:
    inputs = [one for one in things if isinstance(one, DataInput)]
    data.check_data(inputs, [one for one in things if isinstance(one, DataOutput)])


def reads(name: str, **more: object) -> DataInput:
    return DataInput(**{"name": name, "mode": MOUNT, "dataset": "id", **more})  # type: ignore[arg-type]


def writes(name: str, path: str = "p", **more: object) -> DataOutput:
    return DataOutput(name=name, datastore="d", path=path, **more)  # type: ignore[arg-type]


def test_ordinary_inputs_and_outputs_are_fine() -> None:
    check(
        reads("mnist"),
        reads("input__0a1b2c3d", path_on_compute="/tmp/data"),
        reads("0a1b", dataset=None, source=A_STORE),
        reads("workspaceblobstore", dataset=None, source=A_STORE),
        writes("out", "runs/{run-id}/{output-name}", register_as="my results"),
        writes("AZUREML_DATAREFERENCE_up"),
    )


@pytest.mark.parametrize(
    ("things", "word"),
    [
        ([reads("path")], "needed"),
        ([reads("HOME")], "needed"),
        ([reads("PythonPath")], "needed"),
        ([reads("AZUREML_RUN_ID")], "needed"),
        ([reads("0a")], "variable"),
        ([reads("a-b")], "variable"),
        ([reads("")], "variable"),
        ([reads("a"), reads("a")], "two"),
        ([reads("a"), writes("a")], "two"),
        ([reads("a", dataset=None, source=A_STORE), writes("AZUREML_DATAREFERENCE_a")], "two"),
        ([reads("a", dataset=None)], "either"),
        ([reads("a-b", dataset=None, source=A_STORE)], "reference"),
        ([reads("a", dataset=None, source=A_STORE, mode=InputMode.DIRECT)], "mount or"),
        ([reads("a", path_on_compute="../x")], "cannot be at"),
        ([writes("shell")], "needed"),
        ([writes("a", "x/{run_id}")], "placeholder"),
        ([writes("a", "../x")], "not a path"),
        ([writes("a", mode="link")], "mode"),
        ([writes("a", register_as="../x")], "dataset name"),
    ],
)
def test_names_that_would_hurt_are_refused(things: list[DataInput | DataOutput], word: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(*things)
    assert re.search(word, str(caught.value))


def test_an_output_goes_where_its_template_says() -> None:
    output = writes("model", "/runs/{run-id}/{output-name}/")
    assert data.expand_output(output, run_id="exp_1") == "runs/exp_1/model"


@pytest.mark.parametrize("name", ["mnist", "diabetes dataset", "a", "1.0 (new)-x_y"])
def test_names_of_datasets(name: str) -> None:
    assert data.check_dataset_name(name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a/b", "../a", "a\n", "é", "x" * 256, "resolve"])
def test_names_that_no_dataset_has(name: str) -> None:
    with pytest.raises(Invalid):
        data.check_dataset_name(name)


@pytest.mark.parametrize("name", ["", "a-b", "a b", "a/b", "é", "x" * 256])
def test_names_that_no_datastore_has(name: str) -> None:
    with pytest.raises(Invalid):
        data.check_datastore_name(name)


# ---- what an agent is told -------------------------------------------------------------------

NOW = datetime(2026, 1, 2, tzinfo=UTC)
AROUND = Surroundings(
    url="http://127.0.0.1:1",
    address_file=None,
    token="t",
    agent_token="a",
    runtime="r",
    blobs=None,
    grace_seconds=1,
    sample_seconds=0,
    cache="/cache",
    cache_bytes=5,
    mounter=("python", "-m", "mount"),
    mirrors={"http://a/": "http://b/"},
    allow_private=True,
)


def planned(*, inputs: tuple[DataInput, ...] = (), outputs: tuple[DataOutput, ...] = ()) -> Any:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot="0" * 64,
        environment=EnvironmentSpec(name="e"),
        inputs=inputs,
        outputs=outputs,
    )
    run = RunRecord(
        id="r",
        uid="u",
        spec=RunSpec(workspace="w", experiment="e", script=script),
        created=NOW,
        environment=EnvironmentUse(key="k", interpreter="python", python="3.11"),
    )
    workspace = WorkspaceRecord(id="w", name="w", created=NOW)
    return msgspec.json.decode(plan_job(run, workspace, (), AROUND))


def test_a_run_without_data_has_nothing_to_lay_out() -> None:
    assert not {"inputs", "outputs", "mounter"} & set(planned())


def test_an_agent_is_told_how_to_get_at_data() -> None:
    plan = planned(
        inputs=(reads("x"), reads("ref", dataset=None, source=A_STORE)),
        outputs=(writes("o", "{run-id}", globs=("*.pt",)),),
    )
    told = [(one["name"], one["mode"], one["dataset"], one["reference"]) for one in plan["inputs"]]
    assert told == [("x", "mount", "id", False), ("ref", "mount", None, True)]
    (output,) = plan["outputs"]
    assert (output["path"], output["globs"]) == ("{run-id}", ["*.pt"])
    assert (plan["cache"], plan["cache_bytes"]) == ("/cache", 5)
    assert plan["mounter"] == ["python", "-m", "mount"]
    assert plan["fetching"] == {
        "mirrors": {"http://a/": "http://b/"},
        "allow_private": True,
        "max_bytes": None,
    }
