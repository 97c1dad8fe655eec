"""What v1 code may say of a service, checked where v1 checked it, and what it means here."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.services import ServiceAuth
from runyard.sdk.deployment_configuration import plan_settings
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import WebserviceException
from runyard.sdk.inference_config import (
    InferenceConfig,
    plan_service_environment,
    take_source,
)
from runyard.sdk.webservice_kinds import AciWebservice, AksWebservice, LocalWebservice

HERE = "http://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text("def init(): pass\ndef run(data): return data\n")
    return tmp_path


ACI_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cpu_cores": 0}, "cpu_cores must be positive"),
    ({"cpu_cores": -1}, "cpu_cores must be positive"),
    ({"cpu_cores": "2"}, "cpu_cores must be positive"),
    ({"cpu_cores": True}, "cpu_cores must be positive"),
    ({"memory_gb": -0.5}, "memory_gb must be positive"),
    ({"memory_gb": float("inf")}, "memory_gb must be finite"),
    ({"memory_gb": float("nan")}, "memory_gb must be positive"),
    ({"ssl_enabled": True}, "you must provide a SSL certificate, key, and cname"),
    ({"ssl_cert_pem_file": "nowhere.pem"}, "unable to find SSL pem file"),
    ({"dns_name_label": "Not_a_label"}, "dns_name_label"),
    ({"dns_name_label": "a-"}, "dns_name_label"),
    ({"primary_key": ""}, "a key must have"),
    ({"secondary_key": "two words"}, "a key must have"),
    ({"primary_key": "line\nbreak"}, "a key must have"),
    ({"vnet_name": "net"}, "belong together"),
]


@pytest.mark.parametrize(("given", "words"), ACI_REFUSED)
def test_an_aci_configuration_that_makes_no_sense_is_refused(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(WebserviceException, match=words):
        AciWebservice.deploy_configuration(**given)


AKS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_replicas": 0}, "num_replicas must be positive"),
    ({"scoring_timeout_ms": -1}, "scoring_timeout_ms must be positive"),
    ({"gpu_cores": 0}, "gpu_cores must be positive"),
    ({"autoscale_enabled": True, "num_replicas": 2}, "num_replicas cannot be set"),
    ({"autoscale_enabled": False, "autoscale_min_replicas": 2}, "need autoscale_enabled=True"),
    ({"autoscale_min_replicas": 3, "autoscale_max_replicas": 2}, "cannot be greater"),
    ({"auth_enabled": True, "token_auth_enabled": True}, "cannot both be True"),
    ({"cpu_cores": 2, "cpu_cores_limit": 1}, "cpu_cores_limit must be at least cpu_cores"),
    ({"primary_key": "\u00e9"}, "a key must have"),
]


@pytest.mark.parametrize(("given", "words"), AKS_REFUSED)
def test_an_aks_configuration_that_makes_no_sense_is_refused(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(WebserviceException, match=words):
        AksWebservice.deploy_configuration(**given)


@pytest.mark.parametrize("port", [0, -1, 65536, "80", True])
def test_a_local_configuration_has_a_real_port(port: Any) -> None:
    with pytest.raises(WebserviceException, match="port must be an integer"):
        LocalWebservice.deploy_configuration(port=port)


def test_without_a_configuration_it_is_aci_and_with_a_target_aks() -> None:
    plain = plan_settings(None, None)
    assert (plain.compute_type, plain.replicas) == ("ACI", 1)
    assert plain.access.auth is ServiceAuth.NONE
    targeted = plan_settings(None, "my-aks")
    assert targeted.compute_type == "AKS"
    assert targeted.access.auth is ServiceAuth.KEY
    assert targeted.details == {"compute_target_name": "my-aks"}


def test_aci_settings_mean_what_they_say() -> None:
    config = AciWebservice.deploy_configuration(
        cpu_cores=1,
        memory_gb=0.5,
        auth_enabled=True,
        tags={"a": "b"},
        description="d",
        location="eastus",
        primary_key="one",
        secondary_key="two",
    )
    settings = plan_settings(config, None)
    assert (settings.cores, settings.memory_gb, settings.replicas) == (1, 0.5, 1)
    assert settings.access.auth is ServiceAuth.KEY
    assert (settings.primary_key, settings.secondary_key) == ("one", "two")
    assert "one" not in str(settings.details)
    assert settings.details["location"] == "eastus"


@pytest.mark.parametrize(
    ("given", "auth"),
    [
        ({}, ServiceAuth.KEY),
        ({"auth_enabled": False}, ServiceAuth.NONE),
        ({"auth_enabled": False, "token_auth_enabled": True}, ServiceAuth.TOKEN),
        ({"token_auth_enabled": True}, ServiceAuth.TOKEN),
    ],
)
def test_aks_services_are_closed_unless_told_otherwise(
    given: dict[str, Any], auth: ServiceAuth
) -> None:
    assert plan_settings(AksWebservice.deploy_configuration(**given), None).access.auth is auth


@pytest.mark.parametrize(
    ("given", "replicas"),
    [
        ({}, 1),
        ({"num_replicas": 3}, 3),
        ({"autoscale_enabled": True, "autoscale_min_replicas": 2}, 2),
        ({"autoscale_min_replicas": 2}, 2),
    ],
)
def test_as_many_replicas_run_as_there_are_always(given: dict[str, Any], replicas: int) -> None:
    config = AksWebservice.deploy_configuration(**given)
    assert plan_settings(config, None).replicas == replicas


def test_a_caller_waits_for_its_turn_and_then_for_the_answer() -> None:
    def seconds(**given: Any) -> float:
        config = AksWebservice.deploy_configuration(**given)
        return plan_settings(config, None).access.timeout_seconds

    assert seconds() == 60
    assert seconds(scoring_timeout_ms=3000) == 3.5
    assert seconds(scoring_timeout_ms=3000, max_request_wait_time=1000) == 4


def test_settings_without_effect_are_kept_and_named_in_one_warning() -> None:
    config = AksWebservice.deploy_configuration(
        enable_app_insights=True, collect_model_data=True, namespace="n", cpu_cores=1
    )
    with pytest.warns(UserWarning, match="collect_model_data, enable_app_insights, namespace"):
        settings = plan_settings(config, None)
    assert settings.details["namespace"] == "n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_settings(AciWebservice.deploy_configuration(enable_app_insights=False), None)


def test_an_attribute_that_was_set_later_is_checked_too() -> None:
    config = AciWebservice.deploy_configuration()
    config.cpu_cores = -1
    with pytest.raises(WebserviceException, match="positive"):
        plan_settings(config, None)
    with pytest.raises(WebserviceException, match="deployment_config cannot be of type str"):
        plan_settings("aci", None)  # type: ignore[arg-type]


# ---- InferenceConfig -------------------------------------------------------------------------


def test_a_script_that_is_not_there_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(WebserviceException, match=r"'other.py' is not there"):
        InferenceConfig("other.py")
    with pytest.raises(WebserviceException, match="needs an entry script"):
        InferenceConfig("")
    with pytest.raises(WebserviceException, match="is not a folder"):
        InferenceConfig("score.py", source_directory="nowhere")
    (folder / "code").mkdir()
    with pytest.raises(WebserviceException, match="relative to that folder"):
        InferenceConfig("score.py", source_directory="code")


def test_a_runtime_is_one_of_v1s_and_spark_is_refused(folder: Path) -> None:
    InferenceConfig("score.py", runtime="python")
    with pytest.raises(WebserviceException, match="does not run Spark"):
        InferenceConfig("score.py", runtime="spark-py")
    with pytest.raises(WebserviceException, match="There are: python"):
        InferenceConfig("score.py", runtime="ruby")
    with pytest.raises(WebserviceException, match="environment cannot be of type str"):
        InferenceConfig("score.py", environment="env")  # type: ignore[arg-type]


def test_a_script_in_a_source_directory_may_be_named_either_way(folder: Path) -> None:
    code = folder / "code"
    code.mkdir()
    (code / "main.py").write_text("def init(): pass\ndef run(data): return 1\n")
    for name in ("main.py", "code/main.py", str(code / "main.py")):
        source = take_source(InferenceConfig(name, source_directory="code"), folder / "home")
        assert source.entry_script == "main.py"
        assert [entry.path for entry in source.snapshot.manifest] == ["main.py"]


def test_a_script_elsewhere_goes_alone(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "main.py").write_text("x = 1\n")
    (folder / "deep" / "large.bin").write_bytes(b"0" * 1000)
    source = take_source(InferenceConfig("deep/main.py"), folder / "home")
    assert source.entry_script == "main.py"
    assert [entry.path for entry in source.snapshot.manifest] == ["main.py"]


def test_an_ignored_script_is_named(folder: Path) -> None:
    (folder / ".amlignore").write_text("score.py\n")
    config = InferenceConfig("score.py", source_directory=".")
    with pytest.raises(WebserviceException, match=r"left out[\s\S]*!score.py"):
        take_source(config, folder / "home")


def test_the_conda_file_of_the_old_style_makes_the_environment(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "main.py").write_text("x = 1\n")
    text = "dependencies:\n- python=3.6.2\n- pip:\n  - scikit-learn==0.22\n"
    (folder / "code" / "env.yml").write_text(text)
    config = InferenceConfig(
        "main.py", runtime="python", conda_file="env.yml", source_directory="code"
    )
    spec = plan_service_environment(config, HERE)
    assert spec is not None
    assert (spec.python, spec.pip, spec.docker) == ("3.6.2", ("scikit-learn==0.22",), False)
    with pytest.raises(WebserviceException, match=r"none\.yml. is not there"):
        InferenceConfig("score.py", conda_file="none.yml")


def test_without_an_environment_the_server_chooses(folder: Path) -> None:
    assert plan_service_environment(InferenceConfig("score.py"), HERE) is None


def test_an_image_of_ones_own_is_left_aside_with_a_warning(folder: Path) -> None:
    environment = Environment("e")
    environment.docker.base_image = "mcr.microsoft.com/azureml/minimal-ubuntu18.04:latest"
    config = InferenceConfig("score.py", environment=environment)
    assert plan_service_environment(config, HERE) is not None
    environment.docker.base_image = "my/image:1"
    with pytest.warns(UserWarning, match="but not its image"):
        plan_service_environment(config, HERE)


def test_further_steps_of_a_dockerfile_are_left_aside_with_a_warning(folder: Path) -> None:
    (folder / "steps").write_text("RUN apt-get install -y gcc\n")
    (folder / "env.yml").write_text("dependencies:\n- python=3.11\n- pip:\n  - numpy\n")
    config = InferenceConfig("score.py", conda_file="env.yml", extra_docker_file_steps="steps")
    with pytest.warns(UserWarning, match="extra_docker_file_steps have no effect"):
        plan_service_environment(config, HERE)


def test_an_environment_goes_before_the_old_style(folder: Path) -> None:
    (folder / "env.yml").write_text("dependencies:\n- python=3.11\n- pip:\n  - numpy\n")
    environment = Environment("chosen")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    config = InferenceConfig("score.py", conda_file="env.yml", environment=environment)
    with pytest.warns(UserWarning, match="left aside"):
        spec = plan_service_environment(config, HERE)
    assert spec is not None
    assert spec.name == "chosen"
