"""What a model is: its name, its files, what it is found by."""

from datetime import UTC, datetime

import pytest

from runyard.domain.errors import Invalid
from runyard.domain.files import FileEntry, Manifest
from runyard.domain.models import (
    ModelDataset,
    ModelRecord,
    ModelResources,
    check_framework,
    check_model_files,
    check_model_name,
    check_resources,
    known_framework,
    model_label,
    model_root,
    pick_files,
    search_keys,
)

D = "0" * 64


def files(*paths: str) -> Manifest:
    return tuple(FileEntry(path, D, 1) for path in paths)


RUN_FILES = files(
    "logs/a.txt",
    "outputs/model.pkl",
    "outputs/model/saved_model.pb",
    "outputs/model/variables/x",
    "outputs/models/other.pt",
)


@pytest.mark.parametrize(
    ("path", "expected", "is_folder"),
    [
        ("outputs/model.pkl", ["model.pkl"], False),
        ("outputs/model", ["model/saved_model.pb", "model/variables/x"], True),
        ("outputs/model/", ["model/saved_model.pb", "model/variables/x"], True),
        ("outputs/model/variables", ["variables/x"], True),
        ("logs", ["logs/a.txt"], True),
        ("outputs/mod", [], False),
        ("", [], False),
        ("/", [], False),
    ],
)
def test_a_path_of_a_run_is_a_file_or_the_files_of_a_folder(
    path: str, expected: list[str], is_folder: bool
) -> None:
    found, folder = pick_files(RUN_FILES, path)
    assert ([entry.path for entry in found], folder) == (expected, is_folder)


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "9", "x" * 255])
def test_names_that_v1_takes(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "a:1", "ü", "x" * 256, "a\n"])
def test_names_that_v1_refuses(name: str) -> None:
    with pytest.raises(Invalid, match="cannot be the name of a model"):
        check_model_name(name)


@pytest.mark.parametrize(
    ("paths", "is_folder"), [(("a",), False), (("m/a", "m/b/c"), True), (("m/a",), True)]
)
def test_a_model_is_one_file_or_one_folder(paths: tuple[str, ...], is_folder: bool) -> None:
    check_model_files(files(*paths), is_folder=is_folder)


@pytest.mark.parametrize(
    ("paths", "is_folder", "words"),
    [
        ((), True, "at least one file"),
        (("a", "b"), False, "one file, or the files of one folder"),
        (("m/a", "n/b"), True, "one file, or the files of one folder"),
        (("m/a",), False, "one file, or the files of one folder"),
        (("a",), True, "one file, or the files of one folder"),
        (("m/a", "m/a/b"), True, "'m/a' cannot be a file and a folder"),
    ],
)
def test_anything_else_is_no_model(paths: tuple[str, ...], is_folder: bool, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        check_model_files(files(*paths), is_folder=is_folder)


def test_frameworks_are_spelled_as_v1_does_and_others_stay() -> None:
    assert known_framework("tensorflow") == "TensorFlow"
    assert known_framework("SCIKITLEARN") == "ScikitLearn"
    assert known_framework("JAX") == "JAX"
    for name in ("sklearn", "scikit-learn", "Scikit_Learn"):
        assert known_framework(name) == "ScikitLearn"
    assert [known_framework(one) for one in ("tf", "Torch", "ONNX")] == [
        "TensorFlow",
        "PyTorch",
        "Onnx",
    ]
    check_framework("JAX", "0.4")
    with pytest.raises(Invalid, match="which framework"):
        check_framework(None, "2.2")


@pytest.mark.parametrize(
    "resources",
    [
        ModelResources(cpu=0),
        ModelResources(cpu=float("nan")),
        ModelResources(memory_gb=-1),
        ModelResources(memory_gb=float("inf")),
        ModelResources(gpu=-1),
    ],
)
def test_resources_that_make_no_sense(resources: ModelResources) -> None:
    with pytest.raises(Invalid, match="makes no sense"):
        check_resources(resources)


def test_a_model_is_found_by_framework_and_by_all_its_datasets() -> None:
    model = ModelRecord(
        id="i",
        workspace="ws",
        name="m",
        number=3,
        manifest=files("folder/a", "folder/b"),
        size=2,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        framework="Onnx",
        properties={"own": "x"},
        datasets=(ModelDataset(purpose="training", dataset="d1"),),
        inputs=(ModelDataset(purpose="in", dataset="d2"),),
        sample_input="d3",
    )
    assert (model_label(model), model_root(model)) == ("m:3", "folder")
    assert search_keys(model) == {
        "own": "x",
        "runyard.framework": "Onnx",
        "runyard.dataset.d1": "",
        "runyard.dataset.d2": "",
        "runyard.dataset.d3": "",
    }
