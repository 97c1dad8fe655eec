"""Services without a script: who answers for a framework, and in which environment. Pure.

A model is served where it was trained: if the environment of its run holds the framework, that
one is used as it is, built already and of the right versions. So is one that the user looks after:
what is in it is not known, but it made the model. Otherwise one is made of the
version that the model was registered with.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Invalid
from runyard.domain.models import ModelRecord
from runyard.planning.requirements import Version, parse_version, requirement_name


class NoCode(NamedTuple):
    """How models of a framework are served."""

    scorer: str  # a row of the runtime's scorer table
    holds: tuple[str, ...]  # packages, any of which makes a training environment good enough
    packages: tuple[str, ...]  # of an environment made for it; {version} is the model's
    pythons: tuple[tuple[Version, str], ...] = ()  # below that version: this Python
    is_made_by_itself: bool = True  # its models are made with what serves them


# TensorFlow's wheels exist for few Pythons each; scikit-learn's, too.
_TENSORFLOW_PYTHONS = (
    ((1, 13), "3.6"),
    ((2, 4), "3.7"),
    ((2, 5), "3.8"),
    ((2, 8), "3.9"),
    ((2, 12), "3.10"),
)
_SKLEARN_PYTHONS = (((0, 20), "3.6"), ((0, 24), "3.7"), ((1, 0), "3.8"), ((1, 1), "3.9"))
_TENSORFLOW = NoCode(
    "tensorflow",
    ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel"),
    ("tensorflow-cpu{version}",),
    _TENSORFLOW_PYTHONS,
)

# By v1's Model.Framework words. PyTorch and Keras are a step beyond v1.
NO_CODE: Mapping[str, NoCode] = {
    "TensorFlow": _TENSORFLOW,
    "ScikitLearn": NoCode(
        "sklearn", ("scikit-learn",), ("scikit-learn{version}", "joblib"), _SKLEARN_PYTHONS
    ),
    # The file says what it needs; a registered version is ONNX's own, not the runtime's.
    "Onnx": NoCode(
        "onnx",
        ("onnxruntime", "onnxruntime-gpu"),
        ("onnxruntime", "numpy"),
        is_made_by_itself=False,
    ),
    "PyTorch": NoCode("torchscript", ("torch",), ("torch{version}", "numpy")),
    "TfKeras": NoCode(
        "keras",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "keras"),
        ("tensorflow-cpu{version}",),
        _TENSORFLOW_PYTHONS,
    ),
}
_V1_WITHOUT_CPU_WHEEL: Version = (2, 1)


def find_no_code(model: ModelRecord) -> NoCode:
    """The row for the model's framework, or `Invalid` with v1's conditions."""
    found = NO_CODE.get(model.framework or "")
    if found is not None:
        return found
    what = f"of the framework '{model.framework}'" if model.framework else "without a framework"
    raise Invalid(
        f"Model '{model.name}:{model.number}' cannot be deployed without an entry script.",
        why=f"It was registered {what}; without a script are served: {', '.join(NO_CODE)}.",
        fix="Register it with model_framework=Model.Framework.… (--framework NAME), or give an "
        "inference_config with an entry script (--script FILE).",
    )


def plan_environment(
    row: NoCode, model: ModelRecord, trained_in: EnvironmentSpec | None, lock: Sequence[str]
) -> EnvironmentSpec:
    """Where a model is served: in the environment of its run, or in one made for it."""
    if trained_in is not None and _holds(row, trained_in, lock):
        return trained_in
    version = _parse(model)
    packages = tuple(line.format(version=_pin(model)) for line in row.packages)
    if version is not None and version < _V1_WITHOUT_CPU_WHEEL:
        packages = tuple(line.replace("tensorflow-cpu", "tensorflow") for line in packages)
    python = None
    if version is not None:
        python = next((name for below, name in row.pythons if version < below), None)
    name = f"no-code-{row.scorer}"
    return EnvironmentSpec(name=name, python=python, pip=packages)


def _holds(row: NoCode, trained_in: EnvironmentSpec, lock: Sequence[str]) -> bool:
    """True if the model can be served where it was trained."""
    if trained_in.user_managed:  # nobody looked inside, but something made the model there
        return row.is_made_by_itself
    return bool({requirement_name(line) for line in lock} & set(row.holds))


def _parse(model: ModelRecord) -> Version | None:
    text = (model.framework_version or "").strip()
    if not text:
        return None
    version = parse_version(text)
    if not version:
        raise Invalid(
            f"{text!r} is not a version of {model.framework}.",
            fix="Register the model with the version of the framework that made it, e.g. '2.2'.",
        )
    return version


def _pin(model: ModelRecord) -> str:
    version = _parse(model)
    if version is None:
        return ""
    text = (model.framework_version or "").strip()
    # "2.2" stands for all of its patches.
    return f"=={text}.*" if len(version) < 3 else f"=={text}"
