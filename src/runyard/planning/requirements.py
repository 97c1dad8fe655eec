"""Requirement lines: one spelling for each, and what their versions allow. Pure."""

import re
from collections.abc import Sequence

Version = tuple[int, ...]

_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*(.*)", re.DOTALL)


def normalise_requirement(line: str) -> str:
    """One spelling for requirement lines that mean the same; URLs and paths stay as they are."""
    if "://" in line.split("@")[0] or line.startswith(("/", ".", "~")):
        return line
    match = _REQUIREMENT.fullmatch(line)
    if match is None:
        return line
    name = canonical_name(match[1])
    extras = sorted(canonical_name(one.strip()) for one in (match[2] or "[]")[1:-1].split(","))
    rest = match[3].strip()
    if rest.startswith("@"):
        return f"{name}{_bracket(extras)} @ {rest[1:].strip()}"
    version, semicolon, marker = rest.partition(";")
    version, _, hashes = version.partition(" --hash")
    version = ",".join(sorted(re.sub(r"\s+", "", version).strip("()").split(",")))
    normal = f"{name}{_bracket(extras)}{version}"
    if semicolon:
        normal += f" ; {' '.join(marker.replace(chr(34), chr(39)).split())}"
    return normal + (f" --hash{hashes.rstrip()}" if hashes else "")


def canonical_name(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(line: str) -> str:
    """The canonical package name that a requirement line starts with; empty for URLs and paths."""
    if "://" in line.split("@")[0] or line.startswith(("/", ".", "~")):
        return ""
    match = _REQUIREMENT.fullmatch(line)
    return canonical_name(match[1]) if match else ""


def parse_version(text: str) -> Version:
    """'3.6.15' as (3, 6, 15); what is not a number ends it."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def version_part(line: str) -> str:
    """What a normalised line says about versions: '==2.2.0', '<2,>=1.5', or nothing."""
    match = _REQUIREMENT.fullmatch(line)
    if match is None or match[3].startswith("@"):
        return ""
    return re.split(r"\s*;|\s--hash", match[3])[0].strip()


def extras_of(line: str) -> tuple[str, ...]:
    """The extras of a normalised line: ('tensorflow',) for 'horovod[tensorflow]==0.19.5'."""
    match = _REQUIREMENT.fullmatch(line)
    inside = (match[2] or "[]")[1:-1] if match else ""
    return tuple(extra for extra in inside.split(",") if extra)


def stays_below(line: str, limit: Version) -> bool:
    """True if the line only allows versions below `limit`; without an upper bound it does not."""
    for part in version_part(line).split(","):
        match = re.fullmatch(r"(===?|~=|<=?)\s*(\d+(?:\.\d+)*).*", part)
        if match is None:
            continue
        operator, version = match[1], parse_version(match[2])
        if operator == "<":
            if version <= limit:
                return True
        elif operator == "~=":  # the last part may grow: ~=2.2 allows 2.9
            if (*version[:-2], version[-2] + 1 if len(version) > 1 else 0) <= limit:
                return True
        elif version < limit[: len(version)] or (version < limit and "*" not in part):
            return True
    return False


def pinned_version(line: str) -> Version:
    """The one version that the line allows; empty if it allows several, or any."""
    match = re.fullmatch(r"===?\s*([^*,]+)", version_part(line))
    return parse_version(match[1]) if match else ()


def _bracket(extras: Sequence[str]) -> str:
    named = [extra for extra in extras if extra]
    return f"[{','.join(named)}]" if named else ""
