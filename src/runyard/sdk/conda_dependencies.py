"""CondaDependencies: the packages of an environment, as v1 code builds them up."""

import copy
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runyard.sdk.environment_files import (
    check_conda,
    load_conda_file,
    load_lock,
    load_requirements,
    parse_conda,
)
from runyard.sdk.exceptions import user_error

SDK_VERSION = "1.61.0"  # the v1 release whose names and files we follow

CONDA_FILE = "conda_dependencies.yml"

_HEADER = """\
# Conda environment specification. The dependencies defined in this file will
# be automatically provisioned for runs with userManagedDependencies=False.

# Details about the Conda environment file format:
# https://conda.io/docs/user-guide/tasks/manage-environments.html#create-env-file-manually

"""


# Stands behind a python line that nobody asked for, so that it is not taken for a wish when the
# file is read again: old packages may need another version.
_DEFAULT_MARK = "  # by default"


def default_python_version() -> str:
    """The version that is asked for when nobody says one: the series this program runs on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def package_name(line: str) -> str:
    """The name that a conda or pip line starts with, in one spelling."""
    if "://" in line.split("@")[0]:  # a URL stands for itself
        return line.strip()
    match = re.match(r"(?:[\w./:-]+::)?([A-Za-z0-9_][\w.-]*)", line.strip())
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else line.strip()


class CondaDependencies:
    """Python version, conda and pip packages, and where they come from."""

    DEFAULT_NUMBER_OF_CONDA_PACKAGES = 0
    DEFAULT_NUMBER_OF_PIP_PACKAGES = 0
    PYTHON_PREFIX = "python"

    def __init__(
        self,
        conda_dependencies_file_path: str | os.PathLike[str] | None = None,
        _underlying_structure: dict[str, Any] | None = None,
    ) -> None:
        if conda_dependencies_file_path and _underlying_structure:
            raise user_error("Give a conda file or a structure, not both.")
        self._default_python = False  # True: its line of python is not the user's wish
        if conda_dependencies_file_path:
            self._data = load_conda_file(conda_dependencies_file_path)
            text = Path(conda_dependencies_file_path).read_text(encoding="utf-8")
            self._default_python = re.search(rf"python=\S+{_DEFAULT_MARK}$", text, re.M) is not None
        elif _underlying_structure:
            self._data = check_conda(_underlying_structure, "given structure")
        else:
            self._data = {
                "name": "project_environment",
                "channels": ["anaconda", "conda-forge"],
                "dependencies": [{"pip": ["azureml-defaults"]}],
            }
            self._add_default_python()

    @staticmethod
    def create(
        pip_indexurl: str | None = None,
        pip_packages: Sequence[str] | None = None,
        conda_packages: Sequence[str] | None = None,
        python_version: str | None = None,
        pin_sdk_version: bool = True,
    ) -> "CondaDependencies":
        """The dependencies out of lists of packages; without a pip list: azureml-defaults."""
        made = CondaDependencies()
        if pip_packages is not None:
            made.remove_pip_package("azureml-defaults")
        if python_version:
            made.set_python_version(python_version)
        if pip_indexurl:
            made.set_pip_index_url(pip_indexurl)
        for package in _listed("conda_packages", conda_packages):
            made.add_conda_package(package)
        named = ["azureml-defaults"] if pip_packages is None else pip_packages
        for package in _listed("pip_packages", named):
            made.add_pip_package(_pinned(package) if pin_sdk_version else package)
        return made

    @staticmethod
    def merge_requirements(requirements: Sequence[str]) -> list[str]:
        """The requirement lines with those of one package put together."""
        merged: dict[str, list[str]] = {}
        for line in requirements:
            name = re.match(r"[A-Za-z0-9_.\[\],\s-]*[A-Za-z0-9\]]", line)
            key = name[0].strip() if name else line
            rest = line[len(key) :].strip()
            merged.setdefault(key, []).extend([rest] if rest else [])
        return [f"{name}{','.join(dict.fromkeys(parts))}" for name, parts in merged.items()]

    @property
    def conda_channels(self) -> Iterator[str]:
        """The channels, in order."""
        return iter(list(self._data["channels"]))

    @property
    def conda_packages(self) -> Iterator[str]:
        """The conda packages, python among them."""
        return iter([one for one in self._data["dependencies"] if isinstance(one, str)])

    @property
    def pip_packages(self) -> Iterator[str]:
        """The pip packages, without pip's options."""
        return iter([line for line in self._pip() if not line.startswith("-")])

    @property
    def pip_options(self) -> Iterator[str]:
        """Lines of the pip part that are options, such as --index-url."""
        return iter([line for line in self._pip() if line.startswith("-")])

    def add_channel(self, channel: str) -> None:
        """Look for conda packages in that channel too."""
        if channel not in self._data["channels"]:
            self._data["channels"].append(channel)

    def remove_channel(self, channel: str) -> None:
        """No longer look there."""
        self._data["channels"] = [one for one in self._data["channels"] if one != channel]

    def add_conda_package(self, conda_package: str) -> None:
        """Ask for a conda package, in place of what was asked under that name."""
        _check_line(conda_package)
        if package_name(conda_package) == "python":
            self._default_python = False
        at = self._index(package_name(conda_package))
        self.remove_conda_package(conda_package)
        self._data["dependencies"].insert(at, conda_package.strip())

    def remove_conda_package(self, conda_package: str) -> None:
        """No longer ask for that conda package."""
        self._data["dependencies"] = [
            one
            for one in self._data["dependencies"]
            if not isinstance(one, str) or package_name(one) != package_name(conda_package)
        ]

    def add_pip_package(self, pip_package: str) -> None:
        """Ask for a pip package, in place of what was asked under that name."""
        _check_line(pip_package)
        self.remove_pip_package(pip_package)
        self._set_pip([*self._pip(), pip_package.strip()])

    def remove_pip_package(self, pip_package: str) -> None:
        """No longer ask for that pip package."""
        gone = package_name(pip_package)
        kept = [line for line in self._pip() if line.startswith("-") or package_name(line) != gone]
        self._set_pip(kept)

    def set_pip_requirements(self, pip_requirements: Sequence[str]) -> None:
        """Replace the pip packages; the options stay."""
        lines = list(_listed("pip_requirements", pip_requirements))
        self._set_pip([*self.pip_options, *lines])

    def set_pip_option(self, pip_option: str) -> None:
        """Add an option line such as '--index-url URL', in place of one with that name."""
        _check_line(pip_option)
        self.remove_pip_option(pip_option)
        self._set_pip([pip_option.strip(), *self._pip()])

    def remove_pip_option(self, pip_option: str) -> None:
        """Remove the option line with that name."""
        gone = _option_name(pip_option)
        self._set_pip([line for line in self._pip() if _option_name(line) != gone])

    def set_pip_index_url(self, index_url: str) -> None:
        """Take pip packages from that index."""
        url = index_url.strip()
        self.set_pip_option(url if url.startswith("-") else f"--index-url {url}")

    def set_python_version(self, version: str) -> None:
        """Ask for that Python version."""
        self.add_conda_package(f"python={str(version).strip().lstrip('=')}")

    def get_python_version(self) -> str | None:
        """The Python version asked for; None if the file says none."""
        for line in self.conda_packages:
            if package_name(line) == "python":
                text = re.sub(r"^(?:[\w./:-]+::)?python", "", line.strip()).strip()
                if text.startswith("=") and not text.startswith("=="):
                    text = text[1:].split("=")[0]  # what follows is conda's build string
                elif text[:1].isdigit():  # 'python 3.6.2 build'
                    text = text.split()[0].split("=")[0]
                return text.removeprefix("==").strip() or None
        return None

    def _wished_python(self) -> str | None:
        """The Python version that the user asked for; None where v1 would fill in its default."""
        return None if self._default_python else self.get_python_version()

    def _add_default_python(self) -> None:
        """Show a Python version, as v1 does, without asking for it."""
        self._data["dependencies"].insert(0, f"python={default_python_version()}")
        self._default_python = True

    def get_default_number_of_packages(self) -> int:
        """How many packages are there before the user adds one."""
        return self.DEFAULT_NUMBER_OF_CONDA_PACKAGES + self.DEFAULT_NUMBER_OF_PIP_PACKAGES

    def as_dict(self) -> dict[str, Any]:
        """The structure as it stands in a conda file."""
        return copy.deepcopy(self._data)

    def serialize_to_string(self) -> str:
        """The text of the conda file."""
        import yaml

        ordered = {
            key: self._data[key]
            for key in ("name", "dependencies", "channels", "variables")
            if key in self._data
        }
        text: str = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)
        if self._default_python:
            text = re.sub(r"^(- python=\S+)$", rf"\1{_DEFAULT_MARK}", text, count=1, flags=re.M)
        return _HEADER + text

    def save_to_file(
        self, base_directory: str | os.PathLike[str], conda_file_path: str | None = None
    ) -> str:
        """Write the conda file below `base_directory`; returns its path relative to that."""
        relative = conda_file_path or CONDA_FILE
        self.save(Path(base_directory) / relative)
        return relative

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the conda file."""
        file = Path(path or CONDA_FILE)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.serialize_to_string(), encoding="utf-8")

    def add_tensorflow_pip_package(
        self, core_type: str = "cpu", version: str | None = None
    ) -> None:
        """Ask for TensorFlow from pip."""
        name = "tensorflow-gpu" if core_type == "gpu" else "tensorflow"
        self.add_pip_package(f"{name}=={version}" if version else name)

    def remove_tensorflow_pip_package(self) -> None:
        """No longer ask for TensorFlow from pip."""
        for name in ("tensorflow", "tensorflow-gpu"):
            self.remove_pip_package(name)

    def add_tensorflow_conda_package(
        self, core_type: str = "cpu", version: str | None = None
    ) -> None:
        """Ask for TensorFlow from conda."""
        name = "tensorflow-gpu" if core_type == "gpu" else "tensorflow"
        self.add_conda_package(f"{name}={version}" if version else name)

    def remove_tensorflow_conda_package(self) -> None:
        """No longer ask for TensorFlow from conda."""
        for name in ("tensorflow", "tensorflow-gpu"):
            self.remove_conda_package(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CondaDependencies) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CondaDependencies({self._data!r})"

    def _pip(self) -> list[str]:
        for one in self._data["dependencies"]:
            if isinstance(one, dict):
                lines: list[str] = one["pip"]
                return lines
        return []

    def _set_pip(self, lines: list[str]) -> None:
        conda = [one for one in self._data["dependencies"] if isinstance(one, str)]
        self._data["dependencies"] = [*conda, {"pip": lines}] if lines else conda

    def _index(self, name: str) -> int:
        """Where a conda package goes: its old place, else after the others."""
        names = [package_name(one) for one in self.conda_packages]
        return names.index(name) if name in names else len(names)


def dependencies_of_requirements(
    path: str | os.PathLike[str], pip_version: str | None = None
) -> CondaDependencies:
    """The dependencies that a pip requirements file asks for."""
    made = CondaDependencies()
    if pip_version:
        made.add_conda_package(f"pip={pip_version}")
    made._set_pip(load_requirements(path))
    return made


def dependencies_of_lock(path: str | os.PathLike[str]) -> CondaDependencies:
    """The dependencies that a lock fixes, version for version."""
    python, conda, pip = load_lock(path)
    made = CondaDependencies()
    for line in conda:
        made.add_conda_package(line)
    if python:
        made.set_python_version(python)
    made._set_pip(pip)
    return made


def dependencies_of_text(text: str, source: str) -> CondaDependencies:
    """The dependencies in the text of a conda file."""
    return CondaDependencies(_underlying_structure=parse_conda(text, source))


def _listed(name: str, packages: Sequence[str] | None) -> Iterator[str]:
    if isinstance(packages, str):
        raise user_error(f"{name} must be a list of packages, not the text '{packages}'.")
    for package in packages or ():
        _check_line(package)
        yield package.strip()


def _check_line(line: object) -> None:
    if not isinstance(line, str) or not line.strip() or "\n" in line:
        raise user_error(
            f"{line!r} is not a package.", fix="Write it as 'name' or 'name==version'."
        )


def _pinned(package: str) -> str:
    bare = re.fullmatch(r"azureml-[\w-]+(\[[^\]]*\])?", package)
    return f"{package}~={SDK_VERSION}" if bare else package


def _option_name(line: str) -> str:
    return re.split(r"[\s=]", line.strip(), maxsplit=1)[0] if line.startswith("-") else ""
