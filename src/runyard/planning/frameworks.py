"""The framework versions of v1's estimators: which Python, which packages, which Horovod. Pure.

What a curated environment holds already is taken from there; here stand the versions that have
none, and the Horovod of its time. Current versions are named beside v1's.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runyard.domain.errors import Unsupported
from runyard.planning.curated import CURATED, Curated
from runyard.planning.horovod import OPENMPI, check_pair, is_horovod
from runyard.planning.requirements import requirement_name

_OLD_PYTHON = "3.6.2"  # of all images that v1's estimators were run in


class Release(NamedTuple):
    """One version of a framework, as an estimator installs it."""

    horovod: str = ""  # the version for MPI; empty: none is needed, or none works
    packages: tuple[str, ...] = ()  # empty: those of the curated environment
    gpu_packages: tuple[str, ...] = ()  # empty: the same
    python: str = _OLD_PYTHON
    mpi_packages: tuple[str, ...] = ()  # beside Horovod, when processes are started by MPI
    mpi_python: str = ""  # where MPI needs another one; empty: the same


class Framework(NamedTuple):
    """What an estimator can install, and what it installs if nobody says a version."""

    default: str
    releases: Mapping[str, Release]
    names: tuple[str, ...]  # under which packages the framework itself is installed


class Wanted(NamedTuple):
    """What an environment with a framework is made of."""

    python: str
    packages: tuple[str, ...]


# No mpi4py has a wheel for Python 3.6 or 3.7. ChainerMN was tried with these: two ranks average.
_CHAINER_MPI = ("mpi4py==4.1.2", OPENMPI)

FRAMEWORKS: dict[str, Framework] = {
    "TensorFlow": Framework(
        "1.13",
        {
            "1.10": Release("0.16.1", ("tensorflow==1.10.0",), ("tensorflow-gpu==1.10.0",)),
            "1.12": Release("0.16.1", ("tensorflow==1.12.0",), ("tensorflow-gpu==1.12.0",)),
            "1.13": Release("0.16.1"),
            "2.0": Release("0.18.1"),
            "2.1": Release("0.19.5"),
            "2.2": Release("0.19.5"),
            "2.3": Release("0.19.5", ("tensorflow==2.3.0",), ("tensorflow-gpu==2.3.0",)),
            # v1 had no estimators for the following: they are the newest that Horovod works with,
            # and the newest.
            "2.13": Release("0.28.1", ("tensorflow==2.13.1",), python="3.11"),
            "2.21": Release(),
        },
        ("tensorflow", "tensorflow-gpu", "tensorflow-cpu"),
    ),
    "PyTorch": Framework(
        "1.4",
        {
            "1.0": Release("0.16.1", ("torch==1.0.0", "torchvision==0.2.1")),
            "1.1": Release("0.16.1", ("torch==1.1.0", "torchvision==0.3.0")),
            "1.2": Release("0.18.1", ("torch==1.2.0", "torchvision==0.4.0")),
            "1.3": Release("0.18.1"),
            "1.4": Release("0.18.1"),
            "1.5": Release("0.19.1"),
            "1.6": Release("0.19.1"),
            "2.13": Release(),
        },
        ("torch",),
    ),
    "Chainer": Framework(
        "5.1.0",
        {
            version: Release(
                packages=(f"chainer=={version}",),
                gpu_packages=(f"chainer=={version}", f"{cupy}=={version}"),
                mpi_packages=_CHAINER_MPI,
                mpi_python="3.8",
            )
            for version, cupy in {"5.1.0": "cupy-cuda90", "7.0.0": "cupy-cuda101"}.items()
        },
        ("chainer",),
    ),
    "Scikit-learn": Framework(
        "0.20.3", {"0.20.3": Release(), "1.9": Release()}, ("scikit-learn", "sklearn")
    ),
}


def supported_versions(framework: str) -> list[str]:
    """The versions that an estimator of the framework takes, oldest first."""
    return list(FRAMEWORKS[framework].releases)


def plan_framework(
    framework: str, version: str, *, gpu: bool, mpi: bool, own: Sequence[str] = ()
) -> Wanted:
    """What to install for a version; `Unsupported` where MPI would need a Horovod that is not.

    `own` are lines that the user wrote: they stand in place of ours.
    """
    release = FRAMEWORKS[framework].releases[version]
    row = _curated(framework, version, gpu=gpu)
    packages = release.packages if row is None else row.packages
    if gpu and release.gpu_packages:
        packages = release.gpu_packages
    lines = [line for line in packages if not is_horovod(line)]
    python = release.python if row is None else row.python
    if mpi:
        lines += release.mpi_packages
        python = release.mpi_python or python
        if not release.mpi_packages:
            # Beside a framework that the user chose, the build finds the Horovod that fits it.
            known = release.horovod and not _named(own) & set(FRAMEWORKS[framework].names)
            lines.append(f"horovod=={release.horovod}" if known else "horovod")
    wanted = tuple(_without(lines, own, FRAMEWORKS[framework].names))
    if mpi and not release.mpi_packages:
        check_pair((*wanted, *own))
    return Wanted(python, wanted)


def _curated(framework: str, version: str, *, gpu: bool) -> Curated | None:
    name = f"AzureML-{framework}-{version}"
    names = (name, f"{name}-{'GPU' if gpu else 'CPU'}")
    return next((row for row in CURATED if row.name in names), None)


def _without(lines: Sequence[str], own: Sequence[str], names: Sequence[str]) -> list[str]:
    """The lines whose package the user did not name; tensorflow is tensorflow-gpu, too."""
    named = _named(own)
    if named & set(names):
        named |= set(names)
    return [line for line in lines if requirement_name(line) not in named]


def _named(lines: Sequence[str]) -> set[str]:
    return {requirement_name(line) for line in lines}


def check_framework_version(framework: str, version: str) -> None:
    """`Unsupported`, with the versions there are, if the framework has no such version here."""
    if version in FRAMEWORKS[framework].releases:
        return
    raise Unsupported(
        f"{framework} {version} is not supported.",
        why=f"Supported versions are: {', '.join(supported_versions(framework))}.",
        fix="Use one of them, or the generic Estimator with "
        f"pip_packages=['{FRAMEWORKS[framework].names[0]}=={version}'].",
    )
