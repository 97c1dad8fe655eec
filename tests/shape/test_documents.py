"""Documents that must keep up with the code."""

import re
import subprocess
import tomllib
from pathlib import Path

from runyard import settings
from runyard.domain import errors

ROOT = Path(__file__).parents[2]


def requirement_names() -> set[str]:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    for name in ("pyproject.toml", "runtime/pyproject.toml", "compat/pyproject.toml"):
        project = tomllib.loads((ROOT / name).read_text())["project"]
        lines += project["dependencies"]
        lines += [
            line for extra in project.get("optional-dependencies", {}).values() for line in extra
        ]
    found = (re.match(r"[A-Za-z0-9_.-]+", line) for line in lines if not line.startswith("#"))
    return {match[0].lower() for match in found if match} - {"runyard", "runyard-runtime"}


def test_every_dependency_says_why_it_is_there() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    missing = sorted(name for name in requirement_names() if f"`{name}`" not in text)
    assert not missing, f"docs/dependencies.md does not name {missing}"


def test_every_setting_is_described_where_it_is_read() -> None:
    source = Path(settings.__file__).read_text()
    read = set(re.findall(r'(?:environ\.get\(|_number\(environ, )"(\w+)"', source))
    described = set(re.findall(r"^\| (\w+) \|", settings.__doc__ or "", re.MULTILINE))
    assert read == described - {"variable"}


def test_every_error_is_in_the_tree_of_errors() -> None:
    for cls in errors.BY_CODE.values():
        assert f"─ {cls.__name__} " in (errors.__doc__ or "")


def test_the_tree_speaks_of_itself_alone() -> None:
    """No paths of somebody's machine, no hosts of package registries."""
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "deb.debian" + ".org"]
    suffixes = {".py", ".md", ".toml", ".txt", ".yml", ".html", ".css", ".js", ""}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for path in (ROOT / name for name in tracked):
        if path.suffix in suffixes and path.is_file():
            text = path.read_text(errors="replace")
            assert not [host for host in hosts if host in text], path
            assert not re.search(r"(?<![\w.])/(work|root)/", text), path
