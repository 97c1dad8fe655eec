"""What runs read and write through datasets: checked at submit, kept with the run, registered.

A run says which datasets it used and made in its properties, where they can be searched for:

    runyard.dataset.ID          JSON: name, version, inputs (their names)
    runyard.output_dataset.ID   JSON: name, version, output (its name)
    runyard.input_files.NAME    digest of the list of files that the input was resolved to
"""

import hashlib
import logging
from collections.abc import Callable
from datetime import datetime

import msgspec

from runyard.data import catalog
from runyard.domain.data import (
    DataInput,
    DataOutput,
    DatasetKind,
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    ResolvedData,
    StoreSource,
)
from runyard.domain.errors import NotFound, RunyardError
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning.data import check_data, expand_output
from runyard.stores.base import Store

log = logging.getLogger(__name__)

INPUT, OUTPUT, FILES = "runyard.dataset.", "runyard.output_dataset.", "runyard.input_files."

Follow = Callable[[DatasetSpec], ResolvedData]
Change = Callable[[str, Callable[[RunRecord], RunRecord]], RunRecord]


def check_script(store: Store, workspace: WorkspaceRecord, script: ScriptSpec) -> dict[str, str]:
    """The properties that say what the run reads; an error if it cannot."""
    if not script.inputs and not script.outputs:
        return {}
    check_data(script.inputs, script.outputs)
    used: dict[str, tuple[DatasetRecord, list[str]]] = {}
    for one in script.inputs:
        dataset = catalog.check_input(store, workspace, one)
        if dataset is not None:
            used.setdefault(dataset.id, (dataset, []))[1].append(one.name)
    for output in script.outputs:
        catalog.load_datastore(store, workspace, output.datastore)
    return {f"{INPUT}{id}": _words(dataset, inputs=names) for id, (dataset, names) in used.items()}


def _words(dataset: DatasetRecord, **more: object) -> str:
    words = {"name": dataset.name, "version": dataset.number, **more}
    return msgspec.json.encode(words).decode()


def load_input(run: RunRecord, name: str) -> DataInput:
    """The input of that name, or `NotFound` that says which there are."""
    inputs = run.spec.script.inputs if run.spec.script is not None else ()
    for one in inputs:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in inputs)
    raise NotFound(
        f"Run '{run.id}' has no input '{name}'.", why=f"It has: {known}." if known else ""
    )


def kept_files(store: Store, run: RunRecord, name: str) -> bytes | None:
    """The list of an input's files as JSON, if it was kept before."""
    digest = run.properties.get(f"{FILES}{name}")
    return None if digest is None else b"".join(store.blobs.open(digest))


def follow_input(store: Store, one: DataInput, follow: Follow) -> bytes:
    """The list of an input's files as JSON, as it is now."""
    if one.dataset is not None:
        return msgspec.json.encode(follow(store.records.get(DatasetRecord, one.dataset).spec))
    assert one.source is not None
    try:
        found = follow(DatasetSpec(sources=(one.source,)))
    except NotFound:
        if one.source.path.strip("/"):
            raise
        found = ResolvedData(files=())  # a datastore with nothing in it yet
    return msgspec.json.encode(found)


def keep_files(store: Store, run: RunRecord, name: str, found: bytes, change: Change) -> bytes:
    """Keep the list with the run. Who comes second gets what the first has kept."""
    digest = hashlib.sha256(found).hexdigest()
    store.blobs.put(digest, [found])

    def how(now: RunRecord) -> RunRecord:
        return msgspec.structs.replace(now, properties={f"{FILES}{name}": digest, **now.properties})

    kept = kept_files(store, change(run.id, how), name)
    return found if kept is None else kept


def register_outputs(
    store: Store, workspace: WorkspaceRecord, run: RunRecord, now: datetime
) -> RunRecord:
    """The run that has just completed, with its outputs registered where that was asked for.

    Safe to repeat: the same output is the same recipe, and that is one version.
    """
    outputs = run.spec.script.outputs if run.spec.script is not None else ()
    for output in outputs:
        if not output.register_as:
            continue
        try:
            dataset = _register(store, workspace, run, output, now)
        except RunyardError as error:
            log.warning("run %s: output %s was not registered: %s", run.id, output.name, error.what)
            words = f"Output '{output.name}' was not registered as a dataset: {error.what}"
            run = msgspec.structs.replace(run, warnings=(*run.warnings, words))
            continue
        properties = {f"{OUTPUT}{dataset.id}": _words(dataset, output=output.name)}
        run = msgspec.structs.replace(run, properties={**run.properties, **properties})
    return run


def _register(
    store: Store, workspace: WorkspaceRecord, run: RunRecord, output: DataOutput, now: datetime
) -> DatasetRecord:
    path = expand_output(output, run_id=run.id)
    path = "/".join(part for part in (path, output.pattern) if part)
    spec = DatasetSpec(
        kind=DatasetKind.TABULAR if output.reader else DatasetKind.FILE,
        sources=(StoreSource(datastore=output.datastore, path=path),),
        reader=output.reader,
        reader_options=output.reader_options,
        partition_format=output.partition_format,
    )
    wanted = DatasetRegistration(
        spec=spec,
        name=output.register_as,
        description=output.description,
        tags=output.tags,
        create_new_version=True,
    )
    return catalog.register(store, workspace, wanted, now)
