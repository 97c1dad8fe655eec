"""Environments on nodes that are not the server's machine: what they can be. Pure."""

import re

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported
from runyard.planning.environments import VenvPlan, plan_venv
from runyard.planning.horovod import is_horovod

_ELSEWHERE = "The nodes of this compute target do not see the server's disk, and make it themselves"
_SHARE = "use nodes that share the server's disk"
_HERE = "use a target of the server's own machine"
_OWN_PYTHON = "Install it on the nodes, and name their Python with python.user_managed_dependencies"
_FILE = re.compile(r"/.*|(?:.*@\s*)?file:.*|.*@\s*/.*")  # of a requirement: a file or folder


def without_wish_for_container(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec for nodes without containers; `Unsupported` in words if it names an image.

    That it is to be in some container, as v1's estimators ask for, is no wish for a certain one:
    the same packages do without.
    """
    if spec.base_image or spec.base_dockerfile:
        raise _unusable(
            spec,
            "it is a container of an image",
            "The nodes of this compute target run packages and a Python, no images",
            f"Leave the base image away, or {_HERE}.",
        )
    return msgspec.structs.replace(spec, docker=False, docker_arguments=(), shm_size=None)


def spec_for_nodes(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec as nodes make it that do not see the server's disk; `Unsupported` if they cannot.

    Conda packages come from PyPI, where it has them all.
    """
    plain = without_wish_for_container(spec)
    if spec.user_managed:
        return plain  # packages are the user's own affair
    for line in (*spec.pip, *spec.conda):
        if is_horovod(line):
            fix = f"{_OWN_PYTHON}, or {_SHARE}."
            what = "Horovod has to be compiled"
            raise _unusable(spec, what, f"{_ELSEWHERE}, from packages that are ready", fix)
        if _FILE.fullmatch(line.strip()):
            what = f"'{line.strip()}' is a file of the server"
            fix = f"Name a package of an index or a URL, or {_SHARE}."
            raise _unusable(spec, what, f"{_ELSEWHERE}, from what they reach", fix)
    from_pypi = _without_conda(spec).requirements
    return msgspec.structs.replace(plain, conda=(), pip=(*spec.pip, *from_pypi))


def notes_for_nodes(spec: EnvironmentSpec) -> tuple[str, ...]:
    """What `spec_for_nodes` decided for the user, in words."""
    return () if spec.user_managed else _without_conda(spec).notes


def _without_conda(spec: EnvironmentSpec) -> VenvPlan:
    """The conda packages of a spec as PyPI has them."""
    try:
        return plan_venv(msgspec.structs.replace(spec, pip=()))
    except Unsupported as error:
        what = f"of its conda packages PyPI does not have {error.what.partition(': ')[2][:-1]}"
        fix = f"Name what PyPI has instead under 'pip:', or {_SHARE}, or: {_OWN_PYTHON}."
        raise _unusable(spec, what, f"{_ELSEWHERE}, without conda", fix) from None


def _unusable(spec: EnvironmentSpec, what: str, why: str, fix: str) -> Unsupported:
    text = f"Environment '{spec.name}' cannot be used there: {what}."
    return Unsupported(text, why=f"{why}.", fix=fix)
