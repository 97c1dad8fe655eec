"""What `Experiment.submit` does with each kind of configuration."""

import getpass
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Conflict, RunyardError
from runyard.domain.runs import LOCAL, RunRecord, RunSpec, ScriptSpec, Submission
from runyard.sdk.blob_upload import post_with_contents, upload_missing
from runyard.sdk.distributed import at_least
from runyard.sdk.estimators import MMLBaseEstimator, script_run_of
from runyard.sdk.exceptions import as_v1, user_error
from runyard.sdk.git_facts import read_git
from runyard.sdk.run_configuration import RunConfiguration, plan_launcher
from runyard.sdk.run_data import RunData, plan_data
from runyard.sdk.run_definition import render_definition
from runyard.sdk.script_run_config import (
    ScriptRunConfig,
    command_line,
    source_folder,
)
from runyard.sdk.session import Session, segment
from runyard.sdk.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from runyard.sdk.experiment import Experiment
    from runyard.sdk.run import Run

Submitter = Callable[["Experiment", object, "Labels"], "Run"]


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a run beside its configuration."""

    tags: dict[str, str | None] = {}
    parent: str | None = None
    run_id: str | None = None
    display_name: str | None = None


def submit(experiment: "Experiment", config: object, labels: Labels) -> "Run":
    """Start a run of `config`, whatever kind of configuration it is."""
    for kind in type(config).__mro__:
        if kind in SUBMITTERS:
            return SUBMITTERS[kind](experiment, config, labels)
    known = ", ".join(kind.__name__.removeprefix("MMLBase") for kind in SUBMITTERS)
    raise user_error(
        f"A {type(config).__name__} cannot be submitted.",
        why=f"This release takes: {known}.",
        fix="Write Experiment(ws, 'name').submit(ScriptRunConfig(source_directory='.', "
        "script='train.py'))",
    )


def submit_script(experiment: "Experiment", config: object, labels: Labels) -> "Run":
    """Take the source folder along and start the script."""
    assert isinstance(config, ScriptRunConfig)
    from runyard.sdk.run import run_of

    session = experiment._session
    folder = source_folder(config)
    arguments = command_line(config, folder)
    environment, warnings = plan_environment(config.run_config, session.client.url)
    # Git runs in processes of its own: ask it while the files are being read.
    git: dict[str, str] = {}
    asking = threading.Thread(target=lambda: git.update(read_git(folder.resolve())), daemon=True)
    asking.start()
    snapshot = take_snapshot(folder, session.settings.home)
    asking.join()
    if config.command is None:
        _check_taken_along(arguments[0], snapshot)
    data = plan_data(config, experiment.workspace)
    spec = RunSpec(
        workspace=experiment.workspace.name,
        experiment=experiment.name,
        id=labels.run_id or new_run_id(experiment.name),
        parent=labels.parent,
        display_name=labels.display_name,
        script=plan_script(config, arguments, snapshot.id, environment, data),
        tags=labels.tags,
        properties={
            "_azureml.ComputeTargetType": target_type(config.run_config.target),
            "ContentSnapshotId": snapshot.id,
            **git,
        },
        definition=render_definition(
            config.run_config,
            script=arguments[0] if config.command is None else None,
            command=arguments[0] if config.command is not None else None,
            arguments=arguments[1:],
            environment=environment,
            data=data,
        ),
        warnings=(*warnings, *snapshot.notes),
        submitted_by=user_name(),
    )
    return run_of(experiment, post_run(session, spec, snapshot, chosen=bool(labels.run_id)))


def submit_estimator(experiment: "Experiment", config: object, labels: Labels) -> "Run":
    """Start the script run that an estimator describes."""
    assert isinstance(config, MMLBaseEstimator)
    return submit_script(experiment, script_run_of(config), labels)


def target_type(target: str) -> str:
    """v1's word for the kind of a target."""
    return LOCAL if target == LOCAL else "amlcompute"


def plan_script(
    config: ScriptRunConfig,
    arguments: tuple[str, ...],
    snapshot: str,
    environment: EnvironmentSpec,
    data: RunData = RunData(),
) -> ScriptSpec:
    """The script part of a run spec. Pure."""
    settings = config.run_config
    return ScriptSpec(
        arguments=arguments,
        is_command=config.command is not None,
        snapshot=snapshot,
        environment=environment,
        variables={str(key): str(value) for key, value in settings.environment_variables.items()},
        launcher=plan_launcher(settings),
        target=settings.target,
        max_run_duration_seconds=settings.max_run_duration_seconds,
        max_restarts=at_least("max_restarts", settings.max_restarts, 0),
        inputs=data.inputs,
        outputs=data.outputs,
    )


def _check_taken_along(script: str, snapshot: Snapshot) -> None:
    if all(entry.path != script for entry in snapshot.manifest):
        raise user_error(
            f"The script '{script}' is left out of the source folder.",
            why="Its .amlignore or .gitignore names it, or it is a link to somewhere else.",
            fix="Add the line '!" + script + "' to a file .amlignore in that folder.",
        )


def plan_environment(config: RunConfiguration, url: str) -> tuple[EnvironmentSpec, tuple[str, ...]]:
    """The environment of a run, and what was chosen for the user, in words. Pure.

    Without one the run gets the interpreter it is submitted with, where the server can see it.
    """
    here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    interpreter = sys.executable if here else "python"
    if config._environment is None:
        spec = EnvironmentSpec(
            name="submitting-interpreter", user_managed=True, interpreter=interpreter
        )
        chosen = f"No environment was given, so the run uses {_whose(interpreter)}."
        return spec, (chosen,)
    spec = config._environment.to_spec()
    docker = config.docker
    if docker.use_docker:
        spec = msgspec.structs.replace(
            spec,
            docker=True,
            docker_arguments=(*spec.docker_arguments, *(docker.arguments or ())),
            shm_size=docker.shm_size or spec.shm_size,
        )
    if spec.user_managed and spec.interpreter == "python":
        spec = msgspec.structs.replace(spec, interpreter=interpreter)
        if spec.base_image or spec.base_dockerfile:
            return spec, ()  # the image's own, unless it has none; the build log says which
        chosen = f"The environment names no interpreter, so the run uses {_whose(interpreter)}."
        return spec, (chosen,)
    return spec, ()


def _whose(interpreter: str) -> str:
    if interpreter == "python":
        return "the Python that the server finds"
    return f"the interpreter it was submitted with, {interpreter}"


def post_run(
    session: Session, spec: RunSpec, snapshot: Snapshot | None, *, chosen: bool
) -> RunRecord:
    """Hand the run to the server. `chosen`: the user chose its id, so it must be a new one."""
    body = Submission(spec=spec, manifest=snapshot.manifest if snapshot else None)
    try:
        return post_with_contents(
            session,
            "/api/v1/runs",
            body,
            snapshot.contents() if snapshot else {},
            answer=RunRecord,
            about_to_upload=snapshot.warn_of_secrets if snapshot else None,
        )
    except Conflict as error:
        if chosen or spec.id is None:
            raise as_v1(error) from None
        # The id is ours and new: an earlier attempt arrived and only its answer was lost.
        return session.request("GET", f"/api/v1/runs/{segment(spec.id)}", answer=RunRecord)
    except RunyardError as error:
        raise as_v1(error) from None


def new_run_id(experiment: str) -> str:
    """An id in v1's form. Made here, so that sending a submission again starts one run."""
    tail = f"_{int(time.time())}_{secrets.token_hex(4)}"
    return experiment[: 256 - len(tail)] + tail


def tag_values(tags: Mapping[str, object] | None) -> dict[str, str | None]:
    """Tags as they are kept: texts, or None for a tag without a value."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise user_error(
            f"tags={tags!r} is not a dictionary.", fix="Write tags={'purpose': 'trial'}"
        )
    return {str(key): None if value is None else str(value) for key, value in tags.items()}


def user_name() -> str:
    """Who is submitting, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# A configuration class and what submits it; a new kind of run is one line.
SUBMITTERS: dict[type, Submitter] = {
    ScriptRunConfig: submit_script,
    MMLBaseEstimator: submit_estimator,
}


def folder_snapshot(session: Session, folder: Path) -> Snapshot:
    """Take a folder along for a run that has no script, and leave it with the server."""
    snapshot = take_snapshot(folder, session.settings.home)
    try:
        upload_missing(session, snapshot.contents(), about_to_upload=snapshot.warn_of_secrets)
        # The tree last: where it is, all its files are.
        upload_missing(session, {snapshot.id: snapshot.tree_content()})
    except RunyardError as error:
        raise as_v1(error) from None
    return snapshot
