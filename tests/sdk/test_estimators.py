"""Estimators: v1's arguments, and the run configuration that they make."""

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.runs import LauncherSpec
from runyard.sdk.conda_dependencies import CondaDependencies
from runyard.sdk.data_reference import DataReference
from runyard.sdk.distributed import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from runyard.sdk.environment import ContainerRegistry, Environment
from runyard.sdk.estimators import Estimator, MMLBaseEstimator, script_arguments, script_run_of
from runyard.sdk.estimators_distribution import Gloo, Mpi, Nccl, ParameterServer
from runyard.sdk.estimators_frameworks import Chainer, PyTorch, SKLearn, TensorFlow
from runyard.sdk.exceptions import (
    RunConfigurationException,
    TrainingException,
    UserErrorException,
)
from runyard.sdk.run_configuration import plan_launcher
from runyard.sdk.submission import plan_environment

START = (
    "self source_directory compute_target=None vm_size=None vm_priority=None entry_script=None "
    "script_params=None "
)
COUNTS = "node_count=1 process_count_per_node=1 "
SERVERS = "worker_count=1 parameter_server_count=1 "
WAYS = "distributed_backend=None distributed_training=None use_gpu=False use_docker=True "
BASE = "custom_docker_base_image=None "
REST = (
    "custom_docker_image=None image_registry_details=None user_managed=False conda_packages=None "
    "pip_packages=None conda_dependencies_file_path=None pip_requirements_file_path=None "
    "conda_dependencies_file=None pip_requirements_file=None environment_variables=None "
    "environment_definition=None inputs=None "
)
STORE = "source_directory_data_store=None "
LIMITS = "shm_size=None resume_from=None max_run_duration_seconds=None "
VERSION = "framework_version=None _enable_optimized_mode=False "
END = "_disable_validation=True _show_lint_warnings=False _show_package_warnings=False"

SIGNATURES: dict[type[MMLBaseEstimator], str] = {
    Estimator: START + COUNTS + WAYS + BASE + REST + STORE + LIMITS + END,
    TensorFlow: START + COUNTS + SERVERS + WAYS + BASE + REST + STORE + LIMITS + VERSION + END,
    PyTorch: START + COUNTS + WAYS + BASE + REST + STORE + LIMITS + VERSION + END,
    Chainer: START + COUNTS + WAYS + BASE + REST + STORE + LIMITS + VERSION + END,
    SKLearn: START + "use_docker=True " + REST + LIMITS + VERSION + END,
}


@pytest.mark.parametrize("kind", SIGNATURES, ids=lambda kind: kind.__name__)
def test_parameters_are_v1s_and_named(kind: type[MMLBaseEstimator]) -> None:
    parameters = inspect.signature(kind.__init__).parameters.values()
    shown = [
        one.name if one.default is one.empty else f"{one.name}={one.default!r}"
        for one in parameters
    ]
    assert shown == SIGNATURES[kind].split()
    assert all(one.kind is one.KEYWORD_ONLY for one in list(parameters)[2:])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, []),
        ({}, []),
        ({"--lr": 0.01, "--verbose": "", "--n": 0, "--force": None}, None),
        ({"--off": False, "--text": " "}, ["--off", False, "--text", " "]),
    ],
)
def test_script_params_become_words_in_their_order(
    given: dict[str, object] | None, words: list[object] | None
) -> None:
    expected = ["--lr", 0.01, "--verbose", "--n", 0, "--force"] if words is None else words
    assert script_arguments(given) == expected


@pytest.mark.parametrize("given", [["--lr", 1], "--lr 1", {"--layers": [1, 2]}, {"--f": print}])
def test_script_params_that_make_no_sense_are_refused_where_they_are_written(given: Any) -> None:
    with pytest.raises(UserErrorException):
        Estimator(".", entry_script="train.py", script_params=given)


def launcher(estimator: MMLBaseEstimator) -> LauncherSpec:
    return plan_launcher(estimator.run_config)


def mpi(nodes: int, per_node: int) -> LauncherSpec:
    return LauncherSpec(
        kind="mpi", nodes=nodes, processes_per_node=per_node, workers=nodes * per_node
    )


def servers(nodes: int, workers: int, parameter_servers: int) -> LauncherSpec:
    return LauncherSpec(
        kind="tensorflow", nodes=nodes, workers=workers, parameter_servers=parameter_servers
    )


def torch(nodes: int, processes: int, backend: str) -> LauncherSpec:
    return LauncherSpec(
        kind="pytorch",
        nodes=nodes,
        processes_per_node=processes // nodes,
        workers=processes,
        backend=backend,
    )


def two_workers() -> TensorflowConfiguration:
    made = TensorflowConfiguration()
    made.worker_count = 2
    return made


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (Estimator, {}, LauncherSpec()),
        (TensorFlow, {"node_count": 2, "distributed_training": MpiConfiguration()}, mpi(2, 1)),
        (TensorFlow, {"distributed_training": MpiConfiguration(3, 2)}, mpi(2, 3)),
        (Chainer, {"node_count": 2, "distributed_training": Mpi(2)}, mpi(2, 2)),
        (
            Estimator,
            {"node_count": 2, "process_count_per_node": 4, "distributed_backend": "mpi"},
            mpi(2, 4),
        ),
        (
            Estimator,
            {"node_count": 2, "process_count_per_node": 4, "distributed_training": Mpi()},
            mpi(2, 4),
        ),
        (Estimator, {"distributed_training": Mpi()}, mpi(1, 1)),
        (
            TensorFlow,
            {"node_count": 2, "process_count_per_node": 1, "distributed_training": two_workers()},
            servers(2, 2, 1),
        ),
        (TensorFlow, {"distributed_training": ParameterServer(3, 2)}, servers(1, 3, 2)),
        (
            TensorFlow,
            {
                "node_count": 2,
                "worker_count": 2,
                "parameter_server_count": 2,
                "distributed_backend": "ps",
            },
            servers(2, 2, 2),
        ),
        (PyTorch, {"node_count": 2, "distributed_training": Gloo()}, torch(2, 2, "gloo")),
        (
            PyTorch,
            {"node_count": 2, "process_count_per_node": 2, "distributed_backend": "Nccl"},
            torch(2, 4, "nccl"),
        ),
        (PyTorch, {"distributed_training": Nccl()}, torch(1, 1, "nccl")),
        (
            PyTorch,
            {"distributed_training": PyTorchConfiguration("Gloo", 4, 2)},
            torch(2, 4, "gloo"),
        ),
    ],
)
def test_every_way_to_say_how_processes_are_laid_out(
    kind: Any, given: dict[str, object], expected: LauncherSpec
) -> None:
    assert launcher(kind(".", entry_script="train.py", **given)) == expected


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Estimator, {"node_count": 2}, "node_count=2 is given without distributed_training"),
        (TensorFlow, {"process_count_per_node": 2}, "process_count_per_node=2"),
        (TensorFlow, {"node_count": 2}, r"MpiConfiguration\(\) or TensorflowConfiguration"),
        (Estimator, {"node_count": 0}, "node_count=0 makes no sense"),
        (Estimator, {"process_count_per_node": 0}, "process_count_per_node=0 makes no sense"),
        (PyTorch, {"distributed_backend": "ps"}, "'mpi', 'gloo', 'nccl'"),
        (TensorFlow, {"distributed_backend": "gloo"}, "'mpi', 'ps'"),
        (Chainer, {"distributed_training": ParameterServer()}, "of type ParameterServer"),
        (TensorFlow, {"distributed_training": Mpi}, "the class Mpi itself"),
        (TensorFlow, {"distributed_training": "mpi"}, "of type str"),
        (TensorFlow, {"framework_version": "1.15"}, r"Supported versions are: 1\.10, 1\.12"),
        (PyTorch, {"framework_version": 1.4}, r"framework_version=1\.4 is not a text"),
        (
            TensorFlow,
            {"framework_version": "2.21", "distributed_training": Mpi()},
            r"does not average(.|\n)*generic Estimator",
        ),
        (Estimator, {"vm_priority": "cheap"}, "'dedicated' or 'lowpriority'"),
        (Estimator, {"inputs": ["data"]}, "input cannot be of type str"),
        (Estimator, {"environment_definition": "tf"}, "cannot be of type str"),
        (
            Estimator,
            {"custom_docker_image": "a", "custom_docker_base_image": "b"},
            "Two images were given",
        ),
        (
            Estimator,
            {"use_docker": False, "custom_docker_image": "a"},
            "use_docker=False and custom_docker_image were given",
        ),
        (
            TensorFlow,
            {"environment_definition": Environment("mine"), "pip_packages": ["a"], "use_gpu": True},
            "environment_definition and pip_packages, use_gpu were given",
        ),
        (
            TensorFlow,
            {"environment_definition": Environment("mine"), "environment_variables": {"A": "1"}},
            "environment_definition and environment_variables were given",
        ),
    ],
)
def test_what_makes_no_sense_is_a_training_exception(
    kind: Any, given: dict[str, object], words: str
) -> None:
    with pytest.raises(TrainingException, match=words):
        kind(".", entry_script="train.py", **given)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_run_duration_seconds": 0}, RunConfigurationException),
        ({"pip_packages": "numpy"}, UserErrorException),
        ({"environment_variables": ["A=1"]}, UserErrorException),
        ({"image_registry_details": "here"}, UserErrorException),
        ({"compute_target": 5}, UserErrorException),
        ({"user_managed": True, "pip_packages": ["numpy"]}, UserErrorException),
        ({"resume_from": "outputs/model"}, UserErrorException),
    ],
)
def test_other_mistakes_are_found_at_once(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Estimator(".", entry_script="train.py", **given)


def test_a_framework_brings_its_packages_and_takes_more() -> None:
    estimator = TensorFlow(
        "src",
        entry_script="train.py",
        framework_version="2.2",
        use_gpu=True,
        pip_packages=["pandas==1.1.0", "azureml-dataprep[pandas,fuse]"],
        conda_packages=["scikit-learn==0.23.1"],
        environment_variables={"LEVEL": 3},
        shm_size="2g",
    )
    environment = estimator.run_config.environment
    assert environment.name == "tensorflow-2.2-gpu"
    assert list(estimator.conda_dependencies.pip_packages) == [
        "azureml-defaults",
        "tensorflow-gpu==2.2.0",
        "pandas==1.1.0",
        "azureml-dataprep[pandas,fuse]",
    ]
    assert estimator.conda_dependencies is environment.python.conda_dependencies
    spec = environment.to_spec()
    assert (spec.python, spec.conda) == ("3.6.2", ("scikit-learn==0.23.1",))
    assert (spec.docker, spec.base_image, spec.shm_size) == (True, None, "2g")
    assert spec.variables == {"LEVEL": "3"}
    assert environment.docker.gpu_support


def test_mpi_on_a_framework_brings_horovod_and_on_chainer_mpi_for_python() -> None:
    given: dict[str, Any] = {"node_count": 2, "distributed_training": Mpi()}
    tensorflow = TensorFlow(".", entry_script="t.py", framework_version="1.13", **given)
    assert "horovod==0.16.1" in tensorflow.conda_dependencies.pip_packages
    chainer = Chainer(".", entry_script="t.py", framework_version="7.0.0", **given)
    assert "mpi4py==4.1.2" in chainer.conda_dependencies.pip_packages
    alone = PyTorch(".", entry_script="t.py", framework_version="1.6")
    assert not [one for one in alone.conda_dependencies.pip_packages if "horovod" in one]


def test_files_of_packages_are_found_in_the_source_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "conda.yml").write_text(
        "dependencies:\n- python=3.7\n- pip:\n  - torch==1.6.0\n"
    )
    (tmp_path / "src" / "requirements.txt").write_text(
        "--extra-index-url http://a/\n--extra-index-url http://b/\nnumpy==1.18.5\n"
    )
    monkeypatch.chdir(tmp_path)
    for names in (
        ("conda_dependencies_file", "pip_requirements_file"),
        ("conda_dependencies_file_path", "pip_requirements_file_path"),
    ):
        files = dict(zip(names, ("conda.yml", "requirements.txt"), strict=True))
        given: dict[str, Any] = {**files, "pip_packages": ["numpy==1.19.5"]}
        spec = TensorFlow("src", entry_script="t.py", **given).run_config.environment.to_spec()
        assert spec.python == "3.7"
        # As in v1: where a conda file is given, no package of the framework is added.
        assert spec.pip == (
            "--extra-index-url http://a/",
            "--extra-index-url http://b/",
            "torch==1.6.0",
            "numpy==1.19.5",
        )
    both = SKLearn(
        "src",
        entry_script="t.py",
        pip_requirements_file="requirements.txt",
        pip_requirements_file_path="missing.txt",
    )
    assert "scikit-learn==0.20.3" in both.conda_dependencies.pip_packages
    assert "numpy==1.18.5" in both.conda_dependencies.pip_packages
    with pytest.raises(UserErrorException, match="missing"):
        Estimator("src", entry_script="t.py", conda_dependencies_file="missing.yml")


def test_a_definition_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    definition = Environment("mine")
    definition.python.conda_dependencies = CondaDependencies.create(pip_packages=["numpy"])
    definition.environment_variables = {"A": "theirs"}
    estimator = PyTorch(
        ".",
        entry_script="t.py",
        environment_definition=definition,
        node_count=2,
        distributed_training=Mpi(),
    )
    assert estimator.run_config.environment is definition
    assert definition.environment_variables == {"A": "theirs"}
    assert "horovod" not in definition.to_spec().pip
    assert "so no package of PyTorch is added" in caplog.text
    assert "framework_version is not specified" not in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"distributed_backend": "mpi"},
            ["'distributed_backend' parameter is deprecated. Use 'distributed_training' instead."],
        ),
        (
            {"distributed_backend": "mpi", "distributed_training": Mpi()},
            ["'distributed_training' counts, 'distributed_backend' is deprecated."],
        ),
        (
            {"worker_count": 2, "distributed_backend": "ps"},
            ["'distributed_backend' parameter", "'worker_count' parameter is deprecated."],
        ),
        (
            {"worker_count": 2},
            ["'worker_count' parameter", "used only with distributed_backend='ps'."],
        ),
        (
            {"parameter_server_count": 2, "distributed_training": Mpi()},
            ["'parameter_server_count' parameter", "used only with distributed_backend='ps'."],
        ),
        (
            {"process_count_per_node": 2, "distributed_training": Mpi()},
            ["'process_count_per_node' parameter is deprecated."],
        ),
        ({"use_docker": False}, ["'use_docker' parameter is deprecated."]),
        ({"custom_docker_base_image": "a"}, ["Use 'custom_docker_image' instead."]),
    ],
)
def test_arguments_that_v1_gave_up_are_taken_with_a_warning(
    given: dict[str, Any], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    TensorFlow(".", entry_script="t.py", framework_version="1.13", **given)
    logged = [one.getMessage() for one in caplog.records[1:]]  # the first: estimators are old
    assert [text for text, word in zip(logged, words, strict=True) if word in text] == logged


def test_of_two_ways_to_say_how_processes_meet_the_newer_counts() -> None:
    estimator = TensorFlow(
        ".",
        entry_script="t.py",
        node_count=2,
        distributed_backend="mpi",
        distributed_training=ParameterServer(2, 1),
    )
    assert launcher(estimator) == servers(2, 2, 1)
    # As in v1: without a way to meet, workers are not what is asked for.
    assert launcher(TensorFlow(".", entry_script="t.py", worker_count=2)) == LauncherSpec()


def test_an_image_and_its_registry_are_asked_for() -> None:
    registry = ContainerRegistry()
    registry.address = "registry.example"
    for name in ("custom_docker_image", "custom_docker_base_image"):
        given: dict[str, Any] = {name: "team/image:1"}
        estimator = Estimator(
            ".", entry_script="t.py", user_managed=True, image_registry_details=registry, **given
        )
        spec = estimator.run_config.environment.to_spec()
        assert (spec.user_managed, spec.base_image, spec.docker) == (True, "team/image:1", True)
        assert estimator.run_config.environment.docker.base_image_registry is registry
    assert not Estimator(".", use_docker=False).run_config.environment.to_spec().docker


def test_user_managed_is_the_interpreter_at_hand() -> None:
    estimator = TensorFlow(".", entry_script="t.py", user_managed=True)
    spec, notes = plan_environment(estimator.run_config, "http://127.0.0.1:1")
    assert spec.user_managed
    assert spec.pip == ()
    assert "interpreter it was submitted with" in notes[0]


def test_where_it_runs_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    plain = Estimator(".", entry_script="t.py", max_run_duration_seconds=60)
    assert (plain.run_config.target, plain.run_config.max_run_duration_seconds) == ("local", 60)
    named = Estimator(
        ".",
        entry_script="t.py",
        compute_target="gpucluster",
        vm_size="STANDARD_NC6",
        source_directory_data_store="store",
    )
    assert named.run_config.target == "gpucluster"
    assert named.run_config.source_directory_data_store == "store"
    assert "makes no cluster" not in caplog.text
    sized = Estimator(".", entry_script="t.py", vm_size="STANDARD_NC6", vm_priority="lowpriority")
    assert sized.run_config.target == "local"
    assert sized.run_config.amlcompute.vm_size == "STANDARD_NC6"
    assert "vm_size='STANDARD_NC6' makes no cluster here" in caplog.text


def test_warnings_are_logged_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    # Every Python warning is an error in this suite: a `warnings.warn` would end the test here.
    made: list[tuple[type[MMLBaseEstimator], str, str]] = [
        (Estimator, "azureml.train.estimator", ""),
        (TensorFlow, "azureml.train.dnn", "1.13"),
        (PyTorch, "azureml.train.dnn", "1.4"),
        (Chainer, "azureml.train.dnn", "5.1.0"),
        (SKLearn, "azureml.train.sklearn", "0.20.3"),
    ]
    for kind, module, version in made:
        caplog.clear()
        construct: Any = kind
        construct("src", entry_script="t.py")
        expected = [f"'{kind.__name__}' estimator is deprecated."]
        if version:
            expected.append(f"framework_version is not specified, defaulting to version {version}.")
        assert [
            one.getMessage()[: len(text)]
            for one, text in zip(caplog.records, expected, strict=True)
        ] == expected
        assert {(one.name, one.levelno) for one in caplog.records} == {(module, logging.WARNING)}
        if version:
            assert version == construct.DEFAULT_VERSION
            assert version in construct.get_supported_versions()
            assert construct("src", entry_script="t.py").framework_version == version


def test_changes_of_the_run_configuration_count_at_submit() -> None:
    estimator = Estimator("src", entry_script="train.py", script_params={"--lr": 1})
    estimator.run_config.arguments += ["--more"]
    estimator.conda_dependencies.add_pip_package("numpy")
    config = script_run_of(estimator)
    assert (config.source_directory, config.script) == ("src", "train.py")
    assert config.arguments == ["--lr", 1, "--more"]
    assert "numpy" in config.run_config.environment.to_spec().pip
    assert repr(estimator) == "Estimator(source_directory='src', entry_script='train.py')"
    with pytest.raises(UserErrorException, match="The Estimator estimator has no script"):
        script_run_of(Estimator("src"))


def test_inputs_are_kept_by_name() -> None:
    class Store:
        name = "workspaceblobstore"

    store: Any = Store()
    reference = DataReference(store, "images", "digits", "download")
    config = Estimator(".", entry_script="t.py", inputs=[reference]).run_config
    assert config.data_references == {"images": reference.to_config()}
    assert config.data == {}
