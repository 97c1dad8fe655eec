"""Curated environments: v1's names with what they held, and current ones beside them. Pure.

A name is a line. The lists are those of September 2020; where one contradicted itself and only
installed because pip of that time did not look, the versions that belong together stand here.
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
    Curated("AzureML-TensorFlow-1.13-CPU", "3.6.2", ("tensorflow==1.13.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-1.13-GPU", "3.6.2", ("tensorflow-gpu==1.13.1", "horovod==0.16.1")),
    Curated("AzureML-TensorFlow-2.0-CPU", "3.6.2", ("tensorflow==2.0.0", "horovod==0.18.1")),
    Curated("AzureML-TensorFlow-2.0-GPU", "3.6.2", ("tensorflow-gpu==2.0.0", "horovod==0.18.1")),
    Curated("AzureML-TensorFlow-2.1-CPU", "3.6.2", ("tensorflow==2.1.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.1-GPU", "3.6.2", ("tensorflow-gpu==2.1.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.2-CPU", "3.6.2", ("tensorflow==2.2.0", "horovod==0.19.1")),
    Curated("AzureML-TensorFlow-2.2-GPU", "3.6.2", ("tensorflow-gpu==2.2.0", "horovod==0.19.1")),
    *(
        Curated(f"AzureML-PyTorch-{name}-{kind}", "3.6.2", (*packages, *_TORCH))
        for name, packages in {
            "1.3": ("torch==1.3.0", "torchvision==0.4.1", "horovod==0.18.1"),
            "1.4": ("torch==1.4.0", "torchvision==0.5.0", "horovod==0.18.1"),
            # v1's lists had torchvision 0.5.0, which is made for torch 1.4.
            "1.5": ("torch==1.5.0", "torchvision==0.6.0", "horovod==0.19.1"),
            "1.6": ("torch==1.6.0", "torchvision==0.7.0", "horovod==0.19.1"),
        }.items()
        for kind in ("CPU", "GPU")
    ),
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
