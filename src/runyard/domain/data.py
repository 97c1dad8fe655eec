"""Datastores, datasets, and what a run reads and writes through them.

A *datastore* is a place for files. A *dataset* is a recipe: sources and stored transformations;
the data stays where it is, and the recipe is followed anew each time it is used. Following it gives
`DataFile`s. A *managed* datastore is kept by the server itself: names in the database, contents as
blobs, so that no path is ever made from what a user wrote.
"""

from datetime import datetime
from enum import StrEnum

import msgspec


class DatastoreKind(StrEnum):
    """Who keeps the files."""

    MANAGED = "managed"  # the server, as blobs
    REMOTE = "remote"  # an fsspec URL: a folder, s3://, gs://, abfs://


class DatastoreSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a datastore that is registered."""

    name: str
    kind: DatastoreKind = DatastoreKind.REMOTE
    url: str = ""  # REMOTE: the root
    type: str = "AzureBlob"  # v1's `datastore_type`
    details: dict[str, str] = {}  # what v1 shows: account_name, container_name, …
    options: dict[str, str] = {}  # for fsspec, not secret
    secrets: dict[str, str] = {}  # for fsspec; kept apart and encrypted, never sent back
    overwrite: bool = False


class DatastoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A datastore as the platform knows it; secrets are elsewhere."""

    id: str
    workspace: str
    name: str
    kind: DatastoreKind
    created: datetime
    version: int = 0
    url: str = ""
    type: str = "AzureBlob"
    details: dict[str, str] = {}
    options: dict[str, str] = {}
    secret: str = ""  # the encrypted secrets, for the server alone; empty in every answer
    is_default: bool = False


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, tag="url"):
    """One public address."""

    url: str


class StoreSource(msgspec.Struct, frozen=True, kw_only=True, tag="datastore"):
    """A path in a datastore: a file, a folder, or a pattern with * and **."""

    datastore: str  # its name
    path: str


Source = UrlSource | StoreSource


class DatasetKind(StrEnum):
    """What following the recipe gives."""

    FILE = "file"
    TABULAR = "tabular"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One stored transformation: an operation's name and its arguments.

    Which there are, and what they do, is in `runyard_runtime.steps`: jobs follow them too.
    """

    op: str
    arguments: dict[str, object] = {}


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe."""

    kind: DatasetKind = DatasetKind.FILE
    sources: tuple[Source, ...]
    is_list: bool = False  # the sources were given as a list; decides what is cut from paths
    steps: tuple[Step, ...] = ()
    reader: str = ""  # TABULAR: delimited, parquet, json_lines
    reader_options: dict[str, object] = {}
    partition_format: str | None = None


class DatasetRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe to be kept; without a name it gets an id only."""

    spec: DatasetSpec
    name: str = ""
    description: str = ""
    tags: dict[str, str | None] = {}
    create_new_version: bool = False


class DatasetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe that is kept: a version of a named dataset, or one that only has an id."""

    id: str
    workspace: str
    spec: DatasetSpec
    created: datetime
    version: int = 0
    name: str = ""
    number: int = 0  # v1's version: 1, 2, …; 0 without a name
    description: str = ""
    tags: dict[str, str | None] = {}


class DataFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that a recipe leads to.

    `origin` is where its bytes are: `blob:DIGEST`, `url:ADDRESS`, or `store:DATASTORE_ID/PATH`
    (to be had from the server).
    """

    path: str  # relative, as scripts see it
    size: int  # -1: not known before it is fetched
    origin: str
    stamp: str = ""  # changes when the content does: an etag or a time; empty: not known


class ResolvedData(msgspec.Struct, frozen=True, kw_only=True):
    """What following a recipe gave."""

    files: tuple[DataFile, ...]
    single: bool = False  # the recipe names one file: scripts get its path, not its folder's


class InputMode(StrEnum):
    """How a run gets at its data."""

    MOUNT = "mount"
    DOWNLOAD = "download"
    DIRECT = "direct"  # the script asks for it through `run.input_datasets`


class DataInput(msgspec.Struct, frozen=True, kw_only=True):
    """Something a run reads. `name` is also the variable that holds the path (or dataset id)."""

    name: str
    mode: InputMode
    dataset: str | None = None  # a DatasetRecord's id
    source: StoreSource | None = None  # v1's DataReference: a path in a datastore
    path_on_compute: str | None = None
    overwrite: bool = False


class DataOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A folder a run writes, kept in a datastore when it ends (mounts: while it runs, too)."""

    name: str
    datastore: str  # its name
    path: str  # may hold {run-id} and {output-name}
    mode: str = "mount"  # or upload
    path_on_compute: str | None = None
    overwrite: bool = False
    globs: tuple[str, ...] = ()  # upload only what matches; empty: everything
    register_as: str = ""  # a dataset of that name when the run has completed
    reader: str = ""  # registered as a table that is read so; empty: as files
    reader_options: dict[str, object] = {}
    partition_format: str | None = None
    pattern: str = ""  # of the files that are registered; empty: all
    description: str = ""
    tags: dict[str, str | None] = {}
