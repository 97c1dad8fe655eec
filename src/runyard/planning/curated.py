"""Curated environments: v1's names with what they held, and current ones beside them. Pure.

A name is a line. The lists are those of September 2020; where one contradicted itself and only
installed because pip of that time did not look, the versions that belong together stand here.
The names of 2021 say the framework's version and Python's, which is what they are made of here.
The images that they were built into are gone, so no image is named.
"""

from collections.abc import Iterable
from typing import NamedTuple

from runyard.domain.environments import EnvironmentSpec

VERSION = "1"  # of every curated environment here

# Provided by the runtime that travels into jobs; listed because v1's files list them.
_SDK = (
    "azureml-core==1.13.0",
    "azureml-defaults==1.13.0",
    "azureml-telemetry==1.13.0",
    "azureml-train-restclients-hyperdrive==1.13.0",
    "azureml-train-core==1.13.0",
)
# What v1 had, although torch.utils.tensorboard of PyTorch 1.6 refuses a tensorboard below 1.15.
_TORCH = ("mkl==2018.0.3", "tensorboard==1.14.0", "future==0.17.1")
_TABLES = ("pandas", "matplotlib", "scikit-learn")


class Curated(NamedTuple):
    """One line of the table."""

    name: str
    python: str
    packages: tuple[str, ...]


def _later(name: str, *packages: str) -> Curated:
    """A line of 2021 and after: its name has Python's version as py37, py38, …"""
    digits = name.split("-py3")[1].split("-")[0]
    return Curated(f"AzureML-{name}", f"3.{digits}", packages)


# TensorFlow of that time breaks with protobuf's later releases.
_PROTOBUF = "protobuf<3.21"

_LATER: tuple[Curated, ...] = (
    _later("minimal-ubuntu18.04-py37-cpu-inference"),
    _later("minimal-ubuntu20.04-py38-cpu-inference"),
    _later("sklearn-0.24-ubuntu18.04-py37-cpu", "scikit-learn==0.24.1", "pandas", "matplotlib"),
    _later("sklearn-0.24.1-ubuntu18.04-py37-cpu-inference", "scikit-learn==0.24.1", "pandas"),
    _later("sklearn-1.0-ubuntu20.04-py38-cpu", "scikit-learn==1.0.2", "pandas", "matplotlib"),
    _later(
        "lightgbm-3.2-ubuntu18.04-py37-cpu", "lightgbm==3.2.1", "scikit-learn==0.24.1", "pandas"
    ),
    _later("xgboost-0.9-ubuntu18.04-py37-cpu-inference", "xgboost==0.90", "scikit-learn==0.24.1"),
    _later("onnxruntime-1.6-ubuntu18.04-py37-cpu-inference", "onnxruntime==1.6.0", "numpy"),
    *(
        _later(f"tensorflow-{rest}", f"tensorflow=={version}", _PROTOBUF, *_TABLES)
        for rest, version in {
            "1.15-ubuntu18.04-py37-cpu-inference": "1.15.5",
            "2.4-ubuntu18.04-py37-cpu-inference": "2.4.4",
            "2.4-ubuntu18.04-py37-cuda11-gpu": "2.4.4",
            "2.5-ubuntu20.04-py38-cuda11-gpu": "2.5.3",
            "2.6-ubuntu20.04-py38-cuda11-gpu": "2.6.5",
            "2.7-ubuntu20.04-py38-cuda11-gpu": "2.7.4",
        }.items()
    ),
    *(
        _later(name, f"torch=={torch}", f"torchvision=={vision}", *_TABLES)
        for name, torch, vision in (
            ("pytorch-1.6-ubuntu18.04-py37-cpu-inference", "1.6.0", "0.7.0"),
            ("pytorch-1.7-ubuntu18.04-py37-cpu-inference", "1.7.1", "0.8.2"),
            ("pytorch-1.7-ubuntu18.04-py37-cuda11-gpu", "1.7.1", "0.8.2"),
            ("pytorch-1.8-ubuntu18.04-py37-cuda11-gpu", "1.8.1", "0.9.1"),
            ("pytorch-1.9-ubuntu18.04-py37-cuda11-gpu", "1.9.1", "0.10.1"),
            ("pytorch-1.10-ubuntu18.04-py38-cuda11-gpu", "1.10.1", "0.11.2"),
            ("ACPT-pytorch-1.11-py38-cuda11.3-gpu", "1.11.0", "0.12.0"),
            ("ACPT-pytorch-1.12-py38-cuda11.6-gpu", "1.12.1", "0.13.1"),
            ("ACPT-pytorch-1.13-py38-cuda11.7-gpu", "1.13.1", "0.14.1"),
        )
    ),
)

CURATED: tuple[Curated, ...] = (
    Curated("AzureML-Minimal", "3.6.2", ()),
    Curated(
        "AzureML-Tutorial",
        "3.6.2",
        ("pandas", "numpy", "tqdm", "scikit-learn", "matplotlib", "mlflow", "sklearn-pandas"),
    ),
    Curated(
        "AzureML-Scikit-learn-0.20.3",
        "3.6.2",
        ("scikit-learn==0.20.3", "scipy==1.2.1", "joblib==0.13.2"),
    ),
    Curated("AzureML-TensorFlow-1.10-CPU", "3.6.2", ("tensorflow==1.10.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.10-GPU", "3.6.2", ("tensorflow-gpu==1.10.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.12-CPU", "3.6.2", ("tensorflow==1.12.3", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.12-GPU", "3.6.2", ("tensorflow-gpu==1.12.3", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.13-CPU", "3.6.2", ("tensorflow==1.13.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.13-GPU", "3.6.2", ("tensorflow-gpu==1.13.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-2.0-CPU", "3.6.2", ("tensorflow==2.0.0", "horovod==0.18.1")),
    Curated("AzureML-TensorFlow-2.0-GPU", "3.6.2", ("tensorflow-gpu==2.0.0", "horovod==0.18.1")),
    Curated("AzureML-TensorFlow-2.1-CPU", "3.6.2", ("tensorflow==2.1.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.1-GPU", "3.6.2", ("tensorflow-gpu==2.1.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.2-CPU", "3.6.2", ("tensorflow==2.2.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.2-GPU", "3.6.2", ("tensorflow-gpu==2.2.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.3-CPU", "3.6.2", ("tensorflow==2.3.0", "horovod==0.19.5")),
    Curated("AzureML-TensorFlow-2.3-GPU", "3.6.2", ("tensorflow-gpu==2.3.0", "horovod==0.19.5")),
    Curated("AzureML-Chainer-5.1.0-CPU", "3.6.2", ("chainer==5.1.0",)),
    Curated("AzureML-Chainer-5.1.0-GPU", "3.6.2", ("chainer==5.1.0",)),
    *(
        Curated(f"AzureML-PyTorch-{name}-{kind}", "3.6.2", (*packages, *_TORCH))
        for name, packages in {
            "1.0": ("torch==1.0.1", "torchvision==0.2.2", "horovod==0.16.1"),
            "1.1": ("torch==1.1.0", "torchvision==0.3.0", "horovod==0.16.1"),
            "1.2": ("torch==1.2.0", "torchvision==0.4.0", "horovod==0.16.1"),
            "1.3": ("torch==1.3.0", "torchvision==0.4.1", "horovod==0.18.1"),
            "1.4": ("torch==1.4.0", "torchvision==0.5.0", "horovod==0.18.1"),
            # v1's lists had torchvision 0.5.0, which is made for torch 1.4.
            "1.5": ("torch==1.5.0", "torchvision==0.6.0", "horovod==0.19.1"),
            "1.6": ("torch==1.6.0", "torchvision==0.7.0", "horovod==0.19.1"),
        }.items()
        for kind in ("CPU", "GPU")
    ),
    *_LATER,
    # Current ones, named in the same manner. Without Horovod, which has no release for them.
    Curated("AzureML-Scikit-learn-1.9", "3.11", ("scikit-learn==1.9.1", "pandas", "matplotlib")),
    Curated("AzureML-TensorFlow-2.21-CPU", "3.11", ("tensorflow-cpu==2.21.0", *_TABLES)),
    Curated("AzureML-TensorFlow-2.21-GPU", "3.11", ("tensorflow[and-cuda]==2.21.0", *_TABLES)),
    Curated("AzureML-PyTorch-2.13-CPU", "3.11", ("torch==2.13.0", *_TABLES)),
    Curated("AzureML-PyTorch-2.13-GPU", "3.11", ("torch==2.13.0", "torchvision==0.28.0", *_TABLES)),
)


def curated_spec(row: Curated) -> EnvironmentSpec:
    """The environment of a line."""
    sdk = _SDK if row.python == "3.6.2" else ("azureml-defaults",)
    return EnvironmentSpec(
        name=row.name,
        version=VERSION,
        python=row.python,
        channels=("conda-forge",),
        pip=(*sdk, *row.packages),
    )


def find_curated(name: str) -> EnvironmentSpec | None:
    """The curated environment of that name; None if there is none."""
    return next((curated_spec(row) for row in CURATED if row.name == name), None)


def all_curated() -> Iterable[EnvironmentSpec]:
    """Every curated environment, in the table's order."""
    return map(curated_spec, CURATED)
