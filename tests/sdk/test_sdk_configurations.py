"""ScriptRunConfig, RunConfiguration and the distributed configurations keep v1's rules."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.runs import LauncherSpec
from runyard.sdk.arguments import argument_texts, command_text
from runyard.sdk.distributed import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import RunConfigurationException, UserErrorException
from runyard.sdk.run_configuration import RunConfiguration, plan_launcher
from runyard.sdk.run_definition import render_definition
from runyard.sdk.script_run_config import (
    ScriptRunConfig,
    command_line,
    get_run_config_from_script_run,
    source_folder,
)
from runyard.sdk.submission import plan_environment, tag_values

HERE = "http://127.0.0.1:1234"


class FakeDataset:
    """What can be named as an input of a run, as v1's datasets can."""

    def as_named_input(self, name: str) -> None:
        """Not called."""


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (None, ()),
        (["--lr", 0.01, "--n", 3], ("--lr", "0.01", "--n", "3")),
        ([True, None, 1e-7], ("True", "None", "1e-07")),
        ([PurePosixPath("a/b"), "", "ü $HOME 'x'"], ("a/b", "", "ü $HOME 'x'")),
        (("a", "b"), ("a", "b")),
    ],
)
def test_arguments_become_texts(given: object, texts: tuple[str, ...]) -> None:
    assert argument_texts(given) == texts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--lr 0.01", "not a list"),
        ([["--lr", 1]], "Argument 0 is of type list"),
        (["a", {"b": 1}], "Argument 1 is of type dict"),
        ([b"bytes"], "is of type bytes"),
        ([object()], "is of type object"),
        ([print], "cannot be passed"),
        (["a\0b"], "Argument 0 has a NUL"),
        ([PurePosixPath("a\0b")], "Argument 0 has a NUL"),
        (["x", "\ud800"], "Argument 1 has half a character"),
        ([FakeDataset()], "as_mount"),
    ],
)
def test_arguments_without_a_text_are_refused(given: object, words: str) -> None:
    with pytest.raises(UserErrorException, match=words):
        argument_texts(given)


def test_a_command_is_one_text() -> None:
    assert command_text("python a.py && ls") == "python a.py && ls"
    assert command_text(["python", "a.py", "--lr", 0.1]) == "python a.py --lr 0.1"
    wrong: object
    for wrong in ("  ", [], 3):
        with pytest.raises(UserErrorException):
            command_text(wrong)


def test_script_and_command_exclude_each_other() -> None:
    with pytest.raises(UserErrorException, match="Both"):
        ScriptRunConfig(".", script="a.py", command="python a.py")
    with pytest.raises(UserErrorException, match="Both"):
        ScriptRunConfig(".", arguments=["--lr"], command="python a.py")


def test_a_run_config_wins_with_a_warning() -> None:
    config = RunConfiguration(script="b.py", arguments=["x"])
    with pytest.warns(UserWarning, match="compute_target, environment"):
        src = ScriptRunConfig(
            ".", run_config=config, compute_target="gpu", environment=Environment("e")
        )
    assert src.run_config is config
    assert (src.script, src.arguments) == ("b.py", ["x"])
    assert plan_environment(src.run_config, HERE)[0].name == "submitting-interpreter"


def test_a_missing_script_names_near_ones(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UserErrorException, match=r"Did you mean 'train.py'"):
        command_line(ScriptRunConfig(tmp_path, script="trian.py"), tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "only.py").write_text("")
    with pytest.raises(UserErrorException, match=r"deep/only.py"):
        command_line(ScriptRunConfig(tmp_path, script="only.py"), tmp_path)


def test_scripts_are_found_below_the_folder_and_nowhere_else(tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a.py").write_text("")
    (tmp_path / "out.py").write_text("")
    for script in ("deep/a.py", "./deep/a.py", str(source / "deep" / "a.py")):
        assert command_line(ScriptRunConfig(source, script=script), source) == ("deep/a.py",)
    with pytest.raises(UserErrorException, match="outside"):
        command_line(ScriptRunConfig(source, script="../out.py"), source)
    with pytest.raises(UserErrorException, match="nothing to run"):
        command_line(ScriptRunConfig(source), source)


def test_a_missing_folder_names_a_near_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    with pytest.raises(UserErrorException, match="Did you mean 'source'"):
        source_folder(ScriptRunConfig("sorce", script="a.py"))


def test_a_run_goes_to_the_local_target_unless_another_is_named() -> None:
    assert ScriptRunConfig(".", "train.py").run_config.target == "local"
    other = ScriptRunConfig(".", "train.py", compute_target="gpu-cluster")
    assert other.run_config.target == "gpu-cluster"
    with pytest.raises(UserErrorException, match="is not a compute target"):
        ScriptRunConfig(".", "train.py", compute_target=4)


@pytest.mark.parametrize("wrong", ["mpi", MpiConfiguration, 2])
def test_a_wrong_distributed_config_is_refused(wrong: object) -> None:
    with pytest.raises(RunConfigurationException):
        ScriptRunConfig(".", script="a.py", distributed_job_config=wrong)


@pytest.mark.parametrize(
    ("config", "launcher"),
    [
        (None, LauncherSpec()),
        (
            MpiConfiguration(process_count_per_node=2, node_count=3),
            LauncherSpec(kind="mpi", nodes=3, processes_per_node=2, workers=6),
        ),
        (
            TensorflowConfiguration(worker_count=2, parameter_server_count=1),
            LauncherSpec(kind="tensorflow", nodes=2, workers=2, parameter_servers=1),
        ),
        (
            PyTorchConfiguration("Gloo", process_count=4, node_count=2),
            LauncherSpec(kind="pytorch", nodes=2, processes_per_node=2, workers=4, backend="gloo"),
        ),
        (
            PyTorchConfiguration(node_count=2),
            LauncherSpec(kind="pytorch", nodes=2, workers=2, backend="nccl"),
        ),
    ],
)
def test_distributed_configs_become_launchers(config: object, launcher: LauncherSpec) -> None:
    src = ScriptRunConfig(".", script="a.py", distributed_job_config=config)
    assert plan_launcher(src.run_config) == launcher


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PyTorchConfiguration("mpi"), "backend"),
        (lambda: PyTorchConfiguration(process_count=3, node_count=2), "evenly"),
        (lambda: MpiConfiguration(node_count=0), "node_count=0"),
        (lambda: TensorflowConfiguration(worker_count=-2), "worker_count=-2"),
        (lambda: MpiConfiguration(process_count_per_node=True), "True"),
    ],
)
def test_distributed_configs_check_their_numbers(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(RunConfigurationException, match=words):
        make()


def test_seed_002_sets_the_worker_count_by_attribute() -> None:
    config = TensorflowConfiguration()
    config.worker_count = 2
    assert (
        plan_launcher(
            ScriptRunConfig(".", script="a", distributed_job_config=config).run_config
        ).workers
        == 2
    )


def test_what_is_set_after_the_script_run_config_was_made_counts() -> None:
    torch = PyTorchConfiguration()
    config = ScriptRunConfig(".", script="a", distributed_job_config=torch).run_config
    torch.node_count, torch.process_count, torch.communication_backend = 2, 4, "Gloo"
    assert plan_launcher(config) == LauncherSpec(
        kind="pytorch", nodes=2, processes_per_node=2, workers=4, backend="gloo"
    )
    torch.process_count = 3
    with pytest.raises(RunConfigurationException, match="evenly"):
        plan_launcher(config)
    tensorflow = TensorflowConfiguration(parameter_server_count=0)
    config = ScriptRunConfig(".", script="a", distributed_job_config=tensorflow).run_config
    tensorflow.worker_count = 3
    assert plan_launcher(config) == LauncherSpec(kind="tensorflow", nodes=3, workers=3)
    tensorflow.worker_count = 0
    with pytest.raises(RunConfigurationException, match="worker_count=0"):
        plan_launcher(config)


def test_a_node_count_of_ones_own_wins_over_the_distributed_configs() -> None:
    tensorflow = TensorflowConfiguration(worker_count=4, parameter_server_count=2)
    config = ScriptRunConfig(".", script="a", distributed_job_config=tensorflow).run_config
    assert config.node_count == 4
    config.node_count = 2
    assert plan_launcher(config) == LauncherSpec(
        kind="tensorflow", nodes=2, workers=4, parameter_servers=2
    )


def test_settings_of_the_old_style_have_the_nodes_of_their_section() -> None:
    config = RunConfiguration(framework="TensorFlow", communicator="ParameterServer")
    config.tensorflow.worker_count = 2
    assert plan_launcher(config).nodes == 2
    config = RunConfiguration(framework="PyTorch", communicator="nccl")
    config.node_count = 2
    assert plan_launcher(config) == LauncherSpec(kind="pytorch", nodes=2, workers=2, backend="nccl")


def test_capitals_of_framework_and_communicator_do_not_matter() -> None:
    config = RunConfiguration()
    config.framework, config.communicator = "python", "none"
    assert plan_launcher(config) == LauncherSpec()
    config.communicator = "openmpi"
    assert plan_launcher(config).kind == "mpi"


def test_a_run_configuration_out_of_a_script_run_config_has_its_script() -> None:
    src = ScriptRunConfig(source_directory=".", script="train.py", arguments=["--lr", 0.1])
    taken = get_run_config_from_script_run(src)
    assert (taken.script, taken.arguments) == ("train.py", ["--lr", 0.1])
    assert src.run_config.script is None


def test_a_misspelt_attribute_offers_the_right_one() -> None:
    config = RunConfiguration()
    with pytest.raises(AttributeError, match="Did you mean 'environment'"):
        config.enviroment = None  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Did you mean 'worker_count'"):
        TensorflowConfiguration().workercount = 2  # type: ignore[attr-defined]
    config.environment = Environment("mine")
    config.target = "local"


def test_without_an_environment_the_submitting_interpreter_is_used_and_that_is_said() -> None:
    import sys

    spec, warnings = plan_environment(RunConfiguration(), HERE)
    assert spec.user_managed
    assert spec.interpreter == sys.executable
    assert sys.executable in warnings[0]
    remote, _ = plan_environment(RunConfiguration(), "https://yard.example:8443")
    assert remote.interpreter == "python"


def test_an_environment_that_was_given_is_used() -> None:
    env = Environment("mine")
    env.python.user_managed_dependencies = True
    env.python.interpreter_path = "/usr/bin/python3.9"
    src = ScriptRunConfig(".", script="a.py", environment=env)
    spec, warnings = plan_environment(src.run_config, HERE)
    assert (spec.name, spec.interpreter, warnings) == ("mine", "/usr/bin/python3.9", ())


def test_the_definition_has_v1s_keys_and_string_arguments() -> None:
    shown = render_definition(
        RunConfiguration(),
        script="a.py",
        command=None,
        arguments=("--lr", "0.1"),
        environment=EnvironmentSpec(name="e", python="3.9", pip=("numpy",)),
    )
    wanted = (
        "script command useAbsolutePath arguments sourceDirectoryDataStore framework communicator "
        "target dataReferences data outputData datacaches jobName maxRunDurationSeconds nodeCount "
        "priority credentialPassthrough identity environment history spark parallelTask amlCompute "
        "tensorflow mpi pyTorch hdi docker environmentVariables"
    )
    assert set(wanted.split()) == set(shown)
    history: Any = shown["history"]
    assert history["enableMLflowTracking"] is False
    assert shown["arguments"] == ["--lr", "0.1"]
    assert shown["environment"] == {
        "name": "e",
        "version": None,
        "python": {
            "interpreterPath": "python",
            "userManagedDependencies": False,
            "condaDependencies": {
                "name": "project_environment",
                "channels": [],
                "dependencies": ["python=3.9", {"pip": ["numpy"]}],
            },
            "baseCondaEnvironment": None,
        },
        "environmentVariables": {},
        "docker": {"enabled": False, "baseImage": None, "baseDockerfile": None},
        "spark": {"repositories": [], "packages": [], "precachePackages": True},
    }


def test_sections_about_azures_own_services_can_be_filled_in() -> None:
    config = RunConfiguration()
    config.spark.configuration["spark.app.name"] = "x"
    config.hdi.yarn_deploy_mode = "client"
    config.amlcompute.vm_size = "STANDARD_D2"
    config.identity, config.credential_passthrough = None, True
    assert plan_launcher(config) == plan_launcher(RunConfiguration())
    with pytest.raises(AttributeError, match="Did you mean 'vm_size'"):
        config.amlcompute.vmsize = "x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'api'\.$"):
        config.api = 1  # type: ignore[attr-defined]  # nothing is near enough to be offered


def test_a_run_configuration_survives_its_file(tmp_path: Path) -> None:
    config = RunConfiguration(script="a.py", arguments=["--lr", 0.1])
    config.environment_variables = {"A": "1"}
    config.max_run_duration_seconds = 60
    config.max_restarts = 3
    config.use(MpiConfiguration(process_count_per_node=2, node_count=2))
    config.environment.python.conda_dependencies.add_pip_package("numpy==1.26.0")
    config.save(tmp_path, "mine")
    assert (tmp_path / ".azureml" / "mine.runconfig").is_file()
    loaded = RunConfiguration.load(tmp_path, "mine")
    assert loaded.arguments == ["--lr", "0.1"]
    assert loaded.environment_variables == {"A": "1"}
    assert loaded.max_run_duration_seconds == 60
    assert loaded.max_restarts == 3
    assert plan_launcher(loaded) == plan_launcher(config)
    assert loaded.environment.to_spec() == config.environment.to_spec()


def test_restarts_are_asked_for_where_a_run_is_configured() -> None:
    assert ScriptRunConfig(".", "a.py").run_config.max_restarts == 0
    assert ScriptRunConfig(".", "a.py", max_restarts=2).run_config.max_restarts == 2
    with pytest.raises(RunConfigurationException, match="max_restarts=-1 makes no sense"):
        ScriptRunConfig(".", "a.py", max_restarts=-1)
    with pytest.warns(UserWarning, match="max_restarts is ignored because run_config is given"):
        ScriptRunConfig(".", "a.py", run_config=RunConfiguration(), max_restarts=2)


@pytest.mark.parametrize("text", ["[1", "3", ""])
def test_a_damaged_runconfig_file_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.runconfig"
    file.write_text(text)
    with pytest.raises(UserErrorException, match=r"x\.runconfig"):
        RunConfiguration.load(file)


def test_tags_are_texts_or_nothing() -> None:
    assert tag_values({"a": 1, "b": None}) == {"a": "1", "b": None}
    assert tag_values(None) == {}
    with pytest.raises(UserErrorException):
        tag_values(["a"])  # type: ignore[arg-type]


def test_a_small_runconfig_that_would_become_huge_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    file = tmp_path / "bomb.runconfig"
    file.write_text("\n".join(lines))
    with pytest.raises(UserErrorException, match="too many YAML aliases"):
        RunConfiguration.load(file)
