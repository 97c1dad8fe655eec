"""The data of a run: what its configuration refers to, as inputs and outputs of its spec."""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from runyard.domain.data import DataInput, DataOutput, InputMode, StoreSource
from runyard.domain.files import FileInfo
from runyard.sdk.data_path import DataPath
from runyard.sdk.data_reference import (
    DataReference,
    DataReferenceConfiguration,
    check_reference_name,
    plan_reference,
)
from runyard.sdk.dataset_consumption import DatasetConsumptionConfig
from runyard.sdk.exceptions import user_error
from runyard.sdk.output_dataset import OutputFileDatasetConfig, plan_output
from runyard.sdk.session import segment
from runyard_runtime import wire

if TYPE_CHECKING:
    from runyard.sdk.script_run_config import ScriptRunConfig
    from runyard.sdk.workspace import Workspace

RESUME_NAME = "MODEL_LOCATION"  # v1's: AZUREML_DATAREFERENCE_MODEL_LOCATION


class RunData(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reads and writes."""

    inputs: tuple[DataInput, ...] = ()
    outputs: tuple[DataOutput, ...] = ()


def resume_reference(resume_from: object) -> DataReference:
    """The reference that stands for v1's `resume_from`."""
    if not isinstance(resume_from, DataPath):
        raise user_error(
            f"resume_from cannot be of type {type(resume_from).__name__}.",
            fix="Pass a DataPath: DataPath(datastore, 'checkpoints/run-1')",
        )
    return DataReference(resume_from.datastore, RESUME_NAME, resume_from.path_on_datastore or None)


def plan_data(config: "ScriptRunConfig", workspace: "Workspace") -> RunData:
    """All that a configuration refers to. Datasets that have no id yet get one."""
    inputs: dict[str, DataInput] = {}
    outputs: dict[str, DataOutput] = {}
    for name, thing in _mentioned(config):
        planned = _writable_if_empty(_plan(name, thing, workspace), workspace)
        kept = inputs if isinstance(planned, DataInput) else outputs
        if kept.get(planned.name, planned) != planned or (
            planned.name in inputs and planned.name in outputs
        ):
            raise user_error(
                f"Two inputs or outputs of the run are called '{planned.name}'.",
                fix="Give each a name of its own: dataset.as_named_input('training').as_mount()",
            )
        if isinstance(planned, DataInput):
            inputs[planned.name] = planned
        else:
            outputs[planned.name] = planned
    return RunData(inputs=tuple(inputs.values()), outputs=tuple(outputs.values()))


def _mentioned(config: "ScriptRunConfig") -> Iterable[tuple[str | None, object]]:
    """Everything that may be data, with the name a dictionary gives it."""
    settings = config.run_config
    words = config.command if isinstance(config.command, list | tuple) else config.arguments
    for word in words:
        if isinstance(word, _KINDS):
            yield None, word
    if config.resume_from is not None:
        yield None, resume_reference(config.resume_from)
    for section in (settings.data_references, settings.data, settings.output_data):
        if not isinstance(section, Mapping):
            raise user_error(f"{section!r} is not a dictionary of data by name.")
        yield from section.items()


_KINDS = (DatasetConsumptionConfig, DataReference, OutputFileDatasetConfig)


def _plan(name: str | None, thing: object, workspace: "Workspace") -> DataInput | DataOutput:
    match thing:
        case DatasetConsumptionConfig():
            return DataInput(
                name=thing.name,
                mode=InputMode(thing.mode),
                dataset=thing.dataset._saved(workspace).id,
                path_on_compute=thing.path_on_compute,
            )
        case DataReference():
            return plan_reference(thing.data_reference_name, thing.to_config())
        case DataReferenceConfiguration():
            return plan_reference(check_reference_name(name or ""), thing)
        case OutputFileDatasetConfig():
            return plan_output(thing, workspace.get_default_datastore().name)
        case _:
            raise user_error(
                f"The run configuration has {thing!r} as the data '{name}'.",
                fix="Use dataset.as_named_input('name').as_mount(), datastore.path('x').to_config()"
                " or OutputFileDatasetConfig('name').",
            )


def _writable_if_empty(
    planned: DataInput | DataOutput, workspace: "Workspace"
) -> DataInput | DataOutput:
    """A mounted place that has nothing in it is there to be written to: v1's way before outputs."""
    if not isinstance(planned, DataInput) or planned.mode is not InputMode.MOUNT:
        return planned
    place = planned.source
    if not isinstance(place, StoreSource) or not place.path or "*" in place.path:
        return planned
    found = workspace._session.request(
        "GET",
        f"{workspace._path}/datastores/{segment(place.datastore)}/files",
        query={"prefix": place.path},
        answer=list[FileInfo],
    )
    if any(f"{file.path}/".startswith(f"{place.path}/") for file in found):
        return planned
    warnings.warn(
        f"There is nothing at '{place.path}' in datastore '{place.datastore}'. The run gets an "
        "empty folder, and what it writes there is kept in that place.",
        stacklevel=5,
    )
    return DataOutput(
        name=wire.DATA_REFERENCE + planned.name,
        datastore=place.datastore,
        path=place.path,
        mode="mount",
        path_on_compute=planned.path_on_compute,
        overwrite=True,
    )


# The sections of v1's run definition. Pure.


def plan_references(references: Mapping[str, object]) -> RunData:
    """The data references of a run configuration; what else it refers to has no workspace yet."""
    planned = [
        plan_reference(name, one.to_config() if isinstance(one, DataReference) else one)
        for name, one in references.items()
        if isinstance(one, DataReference | DataReferenceConfiguration)
    ]
    return RunData(
        inputs=tuple(one for one in planned if isinstance(one, DataInput)),
        outputs=tuple(one for one in planned if isinstance(one, DataOutput)),
    )


def render_references(data: RunData) -> dict[str, object]:
    """`dataReferences`: places in datastores."""
    shown: dict[str, object] = {}
    for one in data.inputs:
        if one.source is not None:
            shown[one.name] = {
                "dataStoreName": one.source.datastore,
                "mode": one.mode.capitalize(),
                "pathOnDataStore": one.source.path or None,
                "pathOnCompute": one.path_on_compute,
                "overwrite": one.overwrite,
            }
    for output in data.outputs:
        if output.name.startswith(wire.DATA_REFERENCE):
            shown[output.name.removeprefix(wire.DATA_REFERENCE)] = {
                "dataStoreName": output.datastore,
                "mode": "Upload",
                "pathOnDataStore": output.path or None,
                "pathOnCompute": output.path_on_compute,
                "overwrite": output.overwrite,
            }
    return shown


def render_data(data: RunData) -> dict[str, object]:
    """`data`: datasets that are read."""
    return {
        one.name: {
            "dataLocation": {"dataset": {"id": one.dataset}, "dataPath": None},
            "mechanism": one.mode.capitalize(),
            "environmentVariableName": one.name,
            "pathOnCompute": one.path_on_compute,
            "overwrite": one.overwrite,
        }
        for one in data.inputs
        if one.dataset is not None
    }


def render_output_data(data: RunData) -> dict[str, object]:
    """`outputData`: folders that are written."""
    return {
        one.name: {
            "outputLocation": {
                "dataPath": {"datastoreName": one.datastore, "relativePath": one.path}
            },
            "mechanism": one.mode.capitalize(),
            "additionalOptions": {
                "pathOnCompute": one.path_on_compute,
                "registrationOptions": {"name": one.register_as} if one.register_as else None,
            },
            "environmentVariableName": one.name,
        }
        for one in data.outputs
        if not one.name.startswith(wire.DATA_REFERENCE)
    }
