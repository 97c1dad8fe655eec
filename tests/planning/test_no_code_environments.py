"""Where a model without a script is served: where it was made, or in an environment of its own."""

from datetime import UTC, datetime

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.models import ModelRecord
from runyard.planning.no_code import NO_CODE, plan_environment

BUILT = EnvironmentSpec(name="built", pip=("torch",))
OWN = EnvironmentSpec(name="own", user_managed=True, interpreter="python3")


def model(framework: str, version: str | None = None) -> ModelRecord:
    return ModelRecord(
        id="m1",
        workspace="yard",
        name="m",
        manifest=(),
        size=0,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        framework=framework,
        framework_version=version,
    )


@pytest.mark.parametrize(
    ("framework", "trained_in", "lock", "there"),
    [
        ("TensorFlow", BUILT, ("tensorflow-cpu==2.21.0",), True),
        ("TensorFlow", BUILT, ("torch==2.13.0",), False),
        ("TensorFlow", None, (), False),
        ("TensorFlow", OWN, (), True),
        ("ScikitLearn", OWN, (), True),
        ("PyTorch", OWN, (), True),
        # Whoever exports ONNX need not have what runs it.
        ("Onnx", OWN, (), False),
        ("Onnx", BUILT, ("torch==2.13.0", "onnx==1.23.2"), False),
        ("Onnx", BUILT, ("torch==2.13.0", "onnxruntime==1.31.0"), True),
    ],
)
def test_a_model_is_served_where_it_was_made_if_that_can_serve_it(
    framework: str, trained_in: EnvironmentSpec | None, lock: tuple[str, ...], there: bool
) -> None:
    found = plan_environment(NO_CODE[framework], model(framework), trained_in, lock)
    assert (found == trained_in) is there


@pytest.mark.parametrize(
    ("framework", "version", "python", "first"),
    [
        ("TensorFlow", "1.12", "3.6", "tensorflow==1.12.*"),
        ("TensorFlow", "1.13.1", "3.7", "tensorflow==1.13.1"),
        ("TensorFlow", "2.0", "3.7", "tensorflow==2.0.*"),
        ("TensorFlow", "2.2.0", "3.7", "tensorflow-cpu==2.2.0"),
        ("TensorFlow", "2.21", None, "tensorflow-cpu==2.21.*"),
        ("TensorFlow", None, None, "tensorflow-cpu"),
        ("ScikitLearn", "0.19.1", "3.6", "scikit-learn==0.19.1"),
        ("ScikitLearn", "0.20.3", "3.7", "scikit-learn==0.20.3"),
        ("Onnx", "1.3", None, "onnxruntime"),
    ],
)
def test_an_environment_made_for_a_model_has_its_version(
    framework: str, version: str | None, python: str | None, first: str
) -> None:
    found = plan_environment(NO_CODE[framework], model(framework, version), None, ())
    assert (found.python, found.pip[0]) == (python, first)
