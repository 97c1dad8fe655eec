"""What to ask conda channels for, decided without touching anything."""

import hashlib
import re
from collections.abc import Sequence

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.planning.environments import VenvPlan, plan_venv

BUILDER = "conda-1"  # part of every key: raise it when a build would come out differently
_NAME = re.compile(r"(?:([^\s:]+(?:://\S+?)?)::)?([\w.-]+)")
_FORGE = "conda-forge"
_ALIAS = "https://conda.anaconda.org"
# What conda means by "defaults": not a channel, but these two.
_DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")


class CondaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine's conda configuration says: people sit behind mirrors."""

    alias: str = _ALIAS
    defaults: tuple[str, ...] = _DEFAULTS


class CondaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a conda environment is to be made of."""

    channels: tuple[str, ...]  # URLs, the most important first
    specs: tuple[str, ...]  # conda's match specs, python among them
    pip: VenvPlan  # the part that pip installs on top
    notes: tuple[str, ...]


def needs_conda(spec: EnvironmentSpec) -> bool:
    """True if the spec names conda packages beyond python and pip."""
    return bool(_packages(spec.conda))


def plan_conda(spec: EnvironmentSpec, settings: CondaSettings) -> CondaPlan:
    """What to solve for `spec`; `Invalid` or `Unsupported` in words if its pip part is wrong."""
    packages = _packages(spec.conda)
    named = [match[1] for one in packages if (match := _NAME.match(one)) and match[1]]
    given = [one.strip() for one in spec.channels if one.strip() not in ("", "nodefaults")]
    channels = [url for one in [*(given or [_FORGE]), *named] for url in _urls(one, settings)]
    pip = plan_venv(msgspec.structs.replace(spec, conda=()))
    notes = [f"{one}: provided by Runyard's runtime" for one in spec.conda if _is_azureml(one)]
    return CondaPlan(
        channels=tuple(dict.fromkeys(channels)),
        specs=(_python(spec.python), *sorted(dict.fromkeys(packages))),
        pip=pip,
        notes=(*notes, *pip.notes),
    )


def conda_key(plan: CondaPlan, platform: str) -> str:
    """The content key of a plan: equal for plans that build the same thing."""
    pip = (plan.pip.requirements, plan.pip.constraints, plan.pip.horovod, plan.pip.options)
    content = (BUILDER, platform, plan.channels, plan.specs, pip)
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]


# What the solver says → what to do about it; the first that matches counts.
_FIXES: tuple[tuple[str, str], ...] = (
    (
        r"could not find subdir|\b404\b",
        "Correct the channel's name or address; a channel is a folder with noarch/repodata.json.",
    ),
    (
        r"\b401\b|\b403\b",
        "Give the channel's address with its token, or log in with a tool that shares rattler's "
        "credentials.",
    ),
    (
        r"dns error|connect error|sending request|timed out|certificate",
        "Check the network and the proxy, or name a channel that can be reached; its address may "
        "be a file:// URL.",
    ),
    (
        r"No candidates were found",
        "Check the name and the version, and name the channel that has it under 'channels:'.",
    ),
    (
        r"cannot be installed|conflict|incompatible|Cannot solve",
        "Loosen or remove one of the pins that contradict each other; often it is python's.",
    ),
    (r"No space left|os error 28", "Free some disk space and submit again."),
)


def conda_fix(words: str) -> str:
    """What to change, going by the solver's own words."""
    found = (fix for pattern, fix in _FIXES if re.search(pattern, words))
    return next(found, "Read the build log above this line; then change the environment.")


def _packages(lines: Sequence[str]) -> list[str]:
    return [
        " ".join(line.split())
        for line in lines
        if line.strip() and _name(line) not in ("python", "pip") and not _is_azureml(line)
    ]


def _name(line: str) -> str:
    match = _NAME.match(line.strip())
    return match[2].lower() if match else line


def _is_azureml(line: str) -> bool:
    return _name(line) == "azureml" or _name(line).startswith("azureml-")


def _python(asked: str | None) -> str:
    text = (asked or "").strip()
    if not text:
        return "python >=3.6"  # what the runtime needs; the other packages decide
    return f"python ={text}" if text[0].isdigit() else f"python {text}"


def _urls(channel: str, settings: CondaSettings) -> tuple[str, ...]:
    if channel == "defaults":
        return settings.defaults
    if "://" in channel:
        return (channel.rstrip("/"),)
    if channel.startswith("/"):
        return (f"file://{channel.rstrip('/')}",)
    return (f"{settings.alias.rstrip('/')}/{channel}",)
