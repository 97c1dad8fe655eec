"""`ScriptRunConfig`: a script or a command, and what it runs on."""

import copy
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runyard.sdk.arguments import argument_texts, command_text
from runyard.sdk.distributed import at_least, check_distributed
from runyard.sdk.element import nearest
from runyard.sdk.exceptions import UserErrorException, user_error
from runyard.sdk.run_configuration import DockerConfiguration, RunConfiguration, target_name
from runyard.sdk.run_data import resume_reference

if TYPE_CHECKING:
    from runyard.sdk.environment import Environment

THIRTY_DAYS_SECONDS = 2592000


class ScriptRunConfig:
    """What to submit: a folder, the script in it (or a command), arguments, environment."""

    def __init__(
        self,
        source_directory: str | os.PathLike[str] | None = None,
        script: str | None = None,
        arguments: Sequence[object] | None = None,
        run_config: RunConfiguration | None = None,
        _telemetry_values: object | None = None,
        compute_target: object | None = None,
        environment: "Environment | None" = None,
        distributed_job_config: object | None = None,
        resume_from: object | None = None,
        max_run_duration_seconds: int | None = THIRTY_DAYS_SECONDS,
        command: str | list[object] | None = None,
        docker_runtime_config: DockerConfiguration | None = None,
        max_restarts: int | None = None,
    ) -> None:
        if command is not None and (script is not None or arguments is not None):
            raise user_error(
                "Both a command and a script were given.",
                why="A command is run as it stands; it has its script and arguments in it.",
                fix="Use either command=..., or script=... with arguments=...",
            )
        if resume_from is not None:
            resume_reference(resume_from)  # refuse a wrong one where it is written
        argument_texts(arguments)  # refuse odd ones where they are written, not at submit
        self.source_directory = os.fspath(source_directory) if source_directory else "."
        self.script = script
        self.arguments: list[object] = list(arguments) if arguments is not None else []
        self.command = command
        self.resume_from = resume_from
        self._telemetry_values = _telemetry_values
        if run_config is not None:
            self._follow(
                run_config, compute_target, environment, distributed_job_config, max_restarts
            )
            return
        self.run_config = RunConfiguration()
        self.run_config.target = target_name(compute_target)
        if max_run_duration_seconds is not None:
            at_least("max_run_duration_seconds", max_run_duration_seconds, 1)
        self.run_config.max_run_duration_seconds = max_run_duration_seconds
        if max_restarts is not None:  # a step beyond v1, so it stands last
            self.run_config.max_restarts = at_least("max_restarts", max_restarts, 0)
        if environment is not None:
            self.run_config.environment = environment
        if distributed_job_config is not None:
            self.run_config.use(check_distributed(distributed_job_config))
        if docker_runtime_config is not None:
            self.run_config.docker = docker_runtime_config

    def _follow(self, run_config: RunConfiguration, *ignored: object) -> None:
        """Take a whole run configuration; as in v1 it wins over single settings."""
        names = ("compute_target", "environment", "distributed_job_config", "max_restarts")
        given = [name for name, value in zip(names, ignored, strict=True) if value is not None]
        if given:
            warnings.warn(
                f"{', '.join(given)} is ignored because run_config is given; "
                "set it on the run_config instead.",
                stacklevel=3,
            )
        if not isinstance(run_config, RunConfiguration):
            raise user_error(
                f"run_config cannot be of type {type(run_config).__name__}.",
                fix="Pass a RunConfiguration, or leave it out.",
            )
        self.run_config = run_config
        if self.script is None and self.command is None:
            self.script, self.command = run_config.script, run_config.command
            if not self.arguments:
                self.arguments = list(run_config.arguments)

    def __repr__(self) -> str:
        what = f"command={self.command!r}" if self.command else f"script={self.script!r}"
        return f"ScriptRunConfig(source_directory={self.source_directory!r}, {what})"


def get_run_config_from_script_run(script_run_config: ScriptRunConfig) -> RunConfiguration:
    """A copy of its run configuration with the script and the arguments in it, to be saved."""
    copied = copy.deepcopy(script_run_config.run_config)
    copied.script, copied.command = script_run_config.script, script_run_config.command
    copied.arguments = list(script_run_config.arguments)
    return copied


def source_folder(config: ScriptRunConfig) -> Path:
    """The folder to take along, or an error that says what is there instead."""
    folder = Path(config.source_directory).expanduser()
    if folder.is_dir():
        return folder
    what = "is not a folder" if folder.exists() else "does not exist"
    near = _near(folder.name, _names(folder.parent, folders=True))
    raise user_error(
        f"source_directory '{config.source_directory}' {what}.",
        why=f"The working directory is {Path.cwd()}.",
        fix=f"Did you mean '{folder.parent / near}'?" if near else "Correct the path.",
    )


def command_line(config: ScriptRunConfig, folder: Path) -> tuple[str, ...]:
    """The script with its arguments; or the command, which is one text for a shell."""
    if config.command is not None:
        if config.script is not None:
            raise user_error("Both a command and a script were given.", fix="Set one to None.")
        # v1 gave a command to a shell, so that `a && b` and $VARIABLES work.
        return (command_text(config.command),)
    if not config.script:
        raise user_error(
            "There is nothing to run: neither a script nor a command.",
            fix="Write ScriptRunConfig(source_directory='.', script='train.py')",
        )
    words = argument_texts(config.arguments)
    if config.resume_from is not None:
        words = (*words, "--resume-from", str(resume_reference(config.resume_from)))
    return (check_script(config.script, folder), *words)


def check_script(script: str | os.PathLike[str], folder: Path) -> str:
    """The script's path below the folder, or an error that names near ones."""
    given = Path(os.fspath(script))
    root = folder.resolve()
    file = given if given.is_absolute() else root / given
    if not file.is_file():
        raise _no_script(str(script), folder)
    try:
        return file.resolve(strict=True).relative_to(root).as_posix()
    except ValueError:
        # A link inside the folder keeps its own name; the walk decides whether it is followed.
        if not given.is_absolute() and ".." not in given.parts:
            return given.as_posix()
    raise user_error(
        f"The script '{script}' is outside the source folder.",
        why=f"Only what is in {root} is taken along.",
        fix="Give a source_directory that holds the script.",
    )


def _no_script(script: str, folder: Path) -> UserErrorException:
    names = _names(folder)
    near = _near(script, names)
    some = ", ".join(names[:10]) or "no Python files"
    return user_error(
        f"The script '{script}' is not in the source folder.",
        why=f"{folder.resolve()} has: {some}{' …' if len(names) > 10 else ''}.",
        fix=f"Did you mean '{near}'?" if near else "Correct script=... or source_directory=...",
    )


def _names(folder: Path, *, folders: bool = False) -> list[str]:
    """The folders in a folder, or its scripts with those one level below."""
    if not folder.is_dir():
        return []
    if folders:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return sorted(
        entry.relative_to(folder).as_posix()
        for pattern in ("*.py", "*/*.py")
        for entry in folder.glob(pattern)
    )


def _near(name: str, names: list[str]) -> str | None:
    same = [one for one in names if one.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]]
    return same[0] if same else nearest(name, names)
