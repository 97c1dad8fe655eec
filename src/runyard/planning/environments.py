"""What an environment spec means, decided without touching anything.

`plan_venv` turns a spec into requirement lines, index options and notes; `plan_key` names the
result; `pick_version` chooses an interpreter; `explain_failure` puts the resolver's words in order.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Invalid, Unsupported
from runyard.domain.secrets import redact
from runyard.planning.conda_names import DROPPED, RENAMED, SAME
from runyard.planning.eras import plan_constraints, replace_retired
from runyard.planning.horovod import is_horovod, plan_needs
from runyard.planning.requirements import (
    Version,
    extras_of,
    normalise_requirement,
    parse_version,
    requirement_name,
)

_CONDA = re.compile(r"(?:[\w./:-]+::)?([\w.-]+)\s*(.*)")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(?:\s*=\s*|\s+|$)(.*)")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_VERSION_PART = re.compile(
    r"(===|==|~=|!=|>=|<=|>|<|=)?\s*(\d{1,9}(?:\.\d{1,9})*)(?:\.?\*)?(?:=\S*)?"
)


class IndexOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where packages come from; empty means that nobody said."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    prerelease: bool = False
    trusted_hosts: tuple[str, ...] = ()


class PackageSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where packages come from, for those who install them elsewhere."""

    options: IndexOptions = IndexOptions()
    variables: dict[str, str] = {}  # proxy and time-out


class VenvPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a virtual environment is to be made of."""

    python: str | None  # as asked for; None: the platform's own
    requirements: tuple[str, ...]  # normalised and sorted
    constraints: tuple[str, ...] = ()  # narrow what is chosen for packages nobody gave a version
    horovod: str = ""  # its requirement line; compiled after the others are installed
    options: IndexOptions
    notes: tuple[str, ...]  # what was decided for the user, in words


def plan_venv(spec: EnvironmentSpec) -> VenvPlan:
    """What to install for `spec`; `Invalid` or `Unsupported` in words if it cannot be done."""
    requirements: list[str] = []
    options: list[tuple[str, str]] = []
    notes: list[str] = []
    for line in spec.pip:
        _sort_line(line.strip(), spec.name, requirements, options, notes)
    requirements += _from_conda(spec, notes)
    requirements = [replace_retired(line, notes) for line in requirements]
    horovod, constraints = _take_horovod(requirements, notes)
    constraints += plan_constraints(requirements, notes)
    return VenvPlan(
        python=_asked_python(spec),
        requirements=tuple(sorted(dict.fromkeys(requirements))),
        constraints=tuple(sorted(dict.fromkeys(constraints))),
        horovod=horovod,
        options=_index_options(options),
        notes=tuple(notes),
    )


def plan_key(plan: VenvPlan, *, own_python: str, platform: str, builder: str) -> str:
    """The content key of a plan: equal for plans that build the same thing.

    Notes are words about the plan, not part of it. The machine's own pip configuration is left
    out too: a new mirror does not make another environment. Packages without a Python version
    have a key of their own: they may end up on another Python than the platform's.
    """
    own = f"{own_python} or another" if plan.requirements else own_python
    content = (
        *(builder, platform, plan.python or own),
        *(plan.requirements, plan.constraints, plan.horovod, plan.options),
    )
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]


def pick_version(asked: str, versions: Iterable[Version]) -> Version | None:
    """The version to use for what was asked, or None: exact, else the same minor's newest patch.

    `asked` is '3', '3.6', '3.6.2' or a range such as '>=3.6,<3.9'. A patch is negotiable, a
    minor version never is: packages are built for one.
    """
    known = sorted(set(versions), reverse=True)
    parts = _version_parts(asked)
    exact = next(
        (version for version in known if all(_meets(version, *one) for one in parts)), None
    )
    if exact is not None or len(parts) != 1 or parts[0][0] not in ("", "=", "=="):
        return exact
    wanted = parts[0][1]
    if len(wanted) < 3:
        return None
    return next((version for version in known if version[:2] == wanted[:2]), None)


def lock_with_hashes(lock: Sequence[str], requirements: Sequence[str]) -> tuple[str, ...]:
    """The lock's lines with the hashes that the user demanded for them."""
    hashes = {requirement_name(line): _HASH.findall(line) for line in requirements}
    return tuple(
        " ".join([line, *(f"--hash={digest}" for digest in hashes.get(requirement_name(line), []))])
        for line in lock
    )


# What the resolver says → what to do about it; the first that matches counts.
_FIXES: tuple[tuple[str, str], ...] = (
    (
        r"dns error|tcp connect|sending request|timed out|certificate|os error 111",
        "Check the network, or name a reachable index: pip's own configuration (index-url, "
        "proxy, cert) is honoured.",
    ),
    (
        r"401 Unauthorized|403 Forbidden|authentication",
        "Put the index's user name and password into its URL in pip's configuration.",
    ),
    (
        r"was not found in the (package registry|provided)|not found in the cache",
        "Check the spelling, or name the index that has it with an --extra-index-url line.",
    ),
    (
        r"parse requirement|Invalid URL",
        "Correct that line; versions are pinned with ==, as in numpy==1.18.5.",
    ),
    (
        r"Failed to build|build backend|setup\.py",
        "Choose a version that has a wheel for this Python, or install what its build needs "
        "(a compiler, headers).",
    ),
    (r"Hash mismatch", "Correct the --hash of that line, or find out why the file has changed."),
    (r"No space left|os error 28", "Free some disk space and submit again."),
    (
        r"no wheels? with a matching|Requires-Python|does not satisfy Python|Python tag|Python ABI",
        "Ask for a Python version that this release supports, or for another release of it.",
    ),
    (
        r"no versions? of|only .* (is|are) available",
        "Ask for a version that exists; leave the pin away to get the newest one.",
    ),
    (
        r"unsatisfiable|incompatible|No solution",
        "Loosen or remove one of the pins that contradict each other.",
    ),
)


def explain_failure(lines: Sequence[str]) -> tuple[str, str]:
    """(why, fix) out of the last lines that the resolver or installer printed."""
    start = next(
        (i for i, line in enumerate(lines) if re.match(r"\s*(error:|×|.*No solution found)", line)),
        max(0, len(lines) - 10),
    )
    words = [re.sub(r"^[\s×╰─▶│├]*(?:error:|cause:)?\s*", "", line) for line in lines[start:]]
    words = [redact(word.rstrip()) for word in words if word.strip()]
    if len(words) > 30:
        words = [*words[:5], "…", *words[-24:]]
    why = "\n".join(words) or "uv ended without a word."
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, why)), "")
    return why, fix or "Read the build log above this line; then change the environment."


_NOT_THE_PYTHON = re.compile(
    r"dns error|tcp connect|sending request|timed out|certificate|os error|401 Unauthorized|"
    r"403 Forbidden|was not found in the|not found in the cache|parse requirement|Invalid URL|"
    r"Hash mismatch|No space left"
)


def may_fit_another_python(why: str) -> bool:
    """True if what the resolver or installer said may be otherwise on another Python version."""
    return not _NOT_THE_PYTHON.search(why)


def _sort_line(
    line: str,
    environment: str,
    requirements: list[str],
    options: list[tuple[str, str]],
    notes: list[str],
) -> None:
    """Put one line of the pip section where it belongs."""
    line = re.sub(r"(^|\s)#.*$", "", line).strip()
    if not line:
        return
    if line.startswith("-"):
        match = _OPTION.fullmatch(line)
        if match is None or match[1] not in _OPTIONS:
            raise Unsupported(
                f"Environment '{environment}' has the line '{redact(line)}'.",
                why=f"Of pip's options only these work here: {', '.join(sorted(_OPTIONS))}.",
                fix="Remove the line, or name the packages themselves.",
            )
        options.append((_OPTIONS[match[1]], match[2].strip().strip("'\"")))
        return
    if line.startswith((".", "~")):
        raise Invalid(
            f"Environment '{environment}' has the line '{line}'.",
            why="A relative path means nothing on the machine that builds the environment.",
            fix="Give the package's full path or URL, or put its code into the source directory.",
        )
    name = requirement_name(line)
    if name == "azureml" or name.startswith("azureml-"):
        notes.append(f"{name}: provided by Runyard's runtime")
        for extra in extras_of(normalise_requirement(line)):
            if extra in _AZUREML_EXTRAS:
                notes.append(f"{name}[{extra}]: {_AZUREML_EXTRAS[extra]} is installed")
                requirements.append(_AZUREML_EXTRAS[extra])
        return
    requirements.append(normalise_requirement(line))


# What azureml-dataprep[pandas] and its like brought along beside v1's own code.
_AZUREML_EXTRAS = {"pandas": "pandas", "parquet": "pyarrow"}

_OPTIONS = {
    "-i": "index-url",
    "--index-url": "index-url",
    "--pypi-url": "index-url",
    "--extra-index-url": "extra-index-url",
    "-f": "find-links",
    "--find-links": "find-links",
    "--no-index": "no-index",
    "--pre": "pre",
    "--trusted-host": "trusted-host",
    # Said by many old files and without meaning here: wheels are preferred anyway.
    "--prefer-binary": "ignored",
    "--no-cache-dir": "ignored",
    "--disable-pip-version-check": "ignored",
    "--upgrade": "ignored",
    "-U": "ignored",
}


def _take_horovod(requirements: list[str], notes: list[str]) -> tuple[str, tuple[str, ...]]:
    """Move Horovod's line out, and what it needs in; the line and the constraints it brings."""
    lines = [line for line in requirements if is_horovod(line)]
    if not lines:
        return "", ()
    horovod = lines[-1]
    requirements[:] = [line for line in requirements if not is_horovod(line)]
    needs, constraints, note = plan_needs(horovod, requirements)
    requirements += needs
    notes.append(note)
    return horovod, constraints


def _index_options(options: Sequence[tuple[str, str]]) -> IndexOptions:
    def values(name: str) -> tuple[str, ...]:
        return tuple(value for key, value in options if key == name and value)

    return IndexOptions(
        index_url=(values("index-url") or ("",))[-1],
        extra_index_urls=values("extra-index-url"),
        find_links=values("find-links"),
        no_index=any(key == "no-index" for key, _ in options),
        prerelease=any(key == "pre" for key, _ in options),
        trusted_hosts=values("trusted-host"),
    )


def _from_conda(spec: EnvironmentSpec, notes: list[str]) -> list[str]:
    """The conda packages as pip requirements, where a well-known name allows it."""
    requirements, unknown = [], []
    for package in spec.conda:
        match = _CONDA.fullmatch(package.strip())
        name = match[1].lower() if match else package
        if name in ("python", "pip"):
            continue
        if name in DROPPED:
            notes.append(f"{package}: left out, {DROPPED[name]}")
        elif match is None or (name not in SAME and name not in RENAMED):
            unknown.append(package)
        else:
            line = f"{RENAMED.get(name, name)}{_conda_version(match[2])}"
            notes.append(f"{package}: conda package, installed with pip as {line}")
            requirements.append(normalise_requirement(line))
    if unknown:
        raise Unsupported(
            f"Environment '{spec.name}' needs conda packages: {', '.join(unknown)}.",
            why="They come from conda channels, and no conda builder is at hand.",
            fix="Install runyard[conda] on the server, or move what PyPI has under 'pip:'.",
        )
    return requirements


def _conda_version(text: str) -> str:
    """A conda version constraint in pip's words: '=1.18' is '==1.18.*'; build strings go."""
    text = re.sub(r"^\[version=['\"]?([^'\"\]]*)['\"]?\]$", r"\1", text.strip())
    if not text or text == "*":
        return ""
    if text.startswith("=") and not text.startswith("=="):
        version = text[1:].split("=")[0].strip()
        return f"=={version.rstrip('*').rstrip('.')}.*"
    if text[0].isdigit():  # 'numpy 1.18.1 py36_0'
        return f"=={text.split()[0].split('=')[0]}"
    return ",".join(part.strip() for part in text.split(","))


def _asked_python(spec: EnvironmentSpec) -> str | None:
    asked = (spec.python or "").strip()
    if not asked:
        return None
    _version_parts(asked)
    return re.sub(r"(?<=\d)\.?\*$", "", asked.lstrip("= ")) or None


def _version_parts(asked: str) -> list[tuple[str, Version]]:
    parts = [_VERSION_PART.fullmatch(part.strip()) for part in asked.split(",")]
    if not all(parts):
        raise Invalid(
            f"'{asked}' is not a Python version.",
            why="A version looks like 3.6, 3.6.2 or >=3.6,<3.9.",
            fix="Correct the environment's python version.",
        )
    return [(part[1] or "", parse_version(part[2])) for part in parts if part]


def _meets(version: Version, operator: str, wanted: Version) -> bool:
    same = version[: len(wanted)] == wanted
    match operator:
        case "" | "=" | "==" | "===":
            return same
        case "!=":
            return not same
        case "~=":
            return version >= wanted and version[: len(wanted) - 1] == wanted[:-1]
        case ">=":
            return version >= wanted
        case ">":
            return version > wanted and not same
        case "<=":
            return version <= wanted or same
        case _:
            return version < wanted


def local_folder(location: str) -> str | None:
    """The path that an index or find-links location stands for; None if it is a remote URL."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return unquote(parts.path)
    return None if "://" in location else location
