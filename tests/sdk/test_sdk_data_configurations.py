"""Datasets, references and outputs in the configuration of a run: names, placeholders, shapes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runyard.domain.data import (
    DataInput,
    DataOutput,
    DatasetKind,
    DatasetSpec,
    DatastoreKind,
    DatastoreRecord,
    InputMode,
    StoreSource,
    UrlSource,
)
from runyard.sdk import datastore_specs
from runyard.sdk.arguments import argument_texts, command_text
from runyard.sdk.data_path import DataPath
from runyard.sdk.data_reference import DataReference, DataReferenceConfiguration, plan_reference
from runyard.sdk.dataset_consumption import DatasetConsumptionConfig, check_input_name
from runyard.sdk.datastore import Datastore
from runyard.sdk.exceptions import DatasetTimestampMissingError, UserErrorException
from runyard.sdk.file_dataset import FileDataset
from runyard.sdk.output_dataset import OutputFileDatasetConfig, plan_output
from runyard.sdk.run_configuration import RunConfiguration
from runyard.sdk.run_data import RunData, render_references
from runyard.sdk.script_run_config import ScriptRunConfig, command_line
from runyard.sdk.tabular_dataset import TabularDataset
from runyard_runtime import records, wire

FILES = FileDataset._of(DatasetSpec(sources=(UrlSource(url="http://a/b"),)))
TABLE = TabularDataset._of(
    DatasetSpec(kind=DatasetKind.TABULAR, sources=(UrlSource(url="http://a/b"),), reader="parquet")
)
RECORD = DatastoreRecord(
    id="1",
    workspace="w",
    name="workspaceblobstore",
    kind=DatastoreKind.MANAGED,
    created=datetime(2020, 1, 1, tzinfo=UTC),
)
STORE = Datastore._of(None, RECORD)  # type: ignore[arg-type]  # nothing here asks the server


def test_datasets_in_arguments_become_placeholders() -> None:
    mounted, named = FILES.as_mount(), TABLE.as_named_input("training")
    words = argument_texts(["--data", mounted, named])
    assert words == (
        "--data",
        f"{wire.INPUT_ARGUMENT}{mounted.name}",
        f"{wire.INPUT_ARGUMENT}training",
    )
    assert mounted.name.startswith("input__")
    assert len(mounted.name) == len("input__") + 8
    assert int(mounted.name[7:], 16) >= 0
    assert FILES.as_mount().name != mounted.name
    assert command_text(["python a.py", named]) == "python a.py DatasetConsumptionConfig:training"
    output = OutputFileDatasetConfig("result")
    assert argument_texts([output]) == ("DatasetOutputConfig:result",)
    with pytest.raises(UserErrorException, match="as_mount"):
        argument_texts([FILES])


def test_modes_are_chosen_by_name_or_call() -> None:
    named = FILES.as_named_input("x")
    assert (named.mode, named.as_mount().mode, named.as_download("/d").mode) == (
        "direct",
        "mount",
        "download",
    )
    assert named.as_download("/d").path_on_compute == "/d"
    assert named.as_mount().as_direct().mode == "direct"
    for wrong in (
        lambda: TABLE.as_named_input("x").as_mount(),
        lambda: TABLE.as_named_input("x").as_download(),
        lambda: named.as_hdfs(),
        lambda: DatasetConsumptionConfig("x", FILES, "teleport"),
        lambda: DatasetConsumptionConfig("x", "not a dataset"),  # type: ignore[arg-type]
        lambda: FileDataset("http://a/b"),
    ):
        with pytest.raises(UserErrorException):
            wrong()


@pytest.mark.parametrize("name", ["PATH", "home", "1st", "a-b", "", "ü", "a b"])
def test_names_that_cannot_be_variables_are_refused(name: str) -> None:
    with pytest.raises(UserErrorException, match="cannot be the name"):
        check_input_name(name)


def test_references_are_variables() -> None:
    root = STORE.as_mount()
    assert str(root) == repr(root) == "$AZUREML_DATAREFERENCE_workspaceblobstore"
    part = STORE.path("mnist/", "images").as_download("/data", overwrite=True)
    assert str(part) == "$AZUREML_DATAREFERENCE_images"
    assert plan_reference("images", part.to_config()) == DataInput(
        name="images",
        mode=InputMode.DOWNLOAD,
        source=StoreSource(datastore="workspaceblobstore", path="mnist"),
        path_on_compute="/data",
        overwrite=True,
    )
    unnamed = STORE.path("mnist")
    assert len(unnamed.data_reference_name) == 32
    assert unnamed.path("deep").path_on_datastore == "mnist/deep"
    written = STORE.path("out", "results").as_upload()
    assert plan_reference("results", written.to_config()) == DataOutput(
        name="AZUREML_DATAREFERENCE_results",
        datastore="workspaceblobstore",
        path="out",
        mode="upload",
    )
    for wrong in (
        lambda: STORE.path("a", "b c"),
        lambda: STORE.path("../up"),
        lambda: DataReference(STORE, mode="teleport"),
        lambda: plan_reference("x", DataReferenceConfiguration()),
    ):
        with pytest.raises(UserErrorException):
            wrong()


def test_resume_from_is_a_reference_with_v1s_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    config = ScriptRunConfig(tmp_path, "a.py", ["--x", 1], resume_from=DataPath(STORE, "ck/1"))
    assert command_line(config, tmp_path) == (
        "a.py",
        "--x",
        "1",
        "--resume-from",
        "$AZUREML_DATAREFERENCE_MODEL_LOCATION",
    )
    with pytest.raises(UserErrorException, match="DataPath"):
        ScriptRunConfig(tmp_path, "a.py", resume_from="ck/1")


def test_outputs_say_where_they_are_kept() -> None:
    plain = plan_output(OutputFileDatasetConfig(), "blobs")
    assert (plain.datastore, plain.path, plain.mode) == (
        "blobs",
        "dataset/{run-id}/{output-name}",
        "mount",
    )
    assert plain.name.startswith("output_")
    chosen = (
        OutputFileDatasetConfig("result", (STORE, "/x/{run-id}/"), source="out")
        .as_upload(overwrite=True, source_globs=["**/*.csv"])
        .register_on_complete("kept", "what it is", {"k": "v"})
    )
    assert plan_output(chosen, "other") == DataOutput(
        name="result",
        datastore="workspaceblobstore",
        path="x/{run-id}",
        mode="upload",
        path_on_compute="out",
        overwrite=True,
        globs=("**/*.csv",),
        register_as="kept",
        description="what it is",
        tags={"k": "v"},
    )
    with pytest.raises(UserErrorException, match="destination"):
        OutputFileDatasetConfig("x", "somewhere")  # type: ignore[arg-type]
    table = plan_output(chosen.read_delimited_files(separator=";", path_glob="*.csv"), "other")
    assert (table.reader, table.reader_options["separator"], table.pattern) == (
        "delimited",
        ";",
        "*.csv",
    )
    with pytest.raises(UserErrorException, match="pipeline"):
        chosen.as_input("next")


def test_v1s_details_and_definition_show_the_data() -> None:
    mount = DataInput(name="a", mode=InputMode.MOUNT, dataset="id-1", path_on_compute="/p")
    source = StoreSource(datastore="s", path="p")
    reference = DataInput(name="r", mode=InputMode.DOWNLOAD, source=source)
    output = DataOutput(name="o", datastore="s", path="q", register_as="kept")
    written = DataOutput(name="AZUREML_DATAREFERENCE_w", datastore="s", path="q", mode="upload")
    properties = {
        "runyard.dataset.id-1": '{"name":"mnist","version":3,"inputs":["a"]}',
        "runyard.output_dataset.id-2": '{"name":"kept","version":1,"output":"o"}',
    }
    assert records.input_datasets(msgspec.to_builtins((mount, reference)), properties) == [
        {
            "dataset": {"id": "id-1", "name": "mnist", "version": 3},
            "consumptionDetails": {
                "type": "RunInput",
                "inputName": "a",
                "mechanism": "Mount",
                "pathOnCompute": "/p",
            },
        }
    ]
    (shown,) = records.output_datasets(msgspec.to_builtins((output, written)), properties)
    assert shown["outputType"] == "RunOutput"
    assert shown["dataset"] == {
        "datastore": "s",
        "path": "q",
        "id": "id-2",
        "name": "kept",
        "version": 1,
    }
    assert shown["outputDetails"] == {"outputName": "o"}
    references: Any = render_references(RunData(inputs=(mount, reference), outputs=(written,)))
    assert {name: one["mode"] for name, one in references.items()} == {
        "r": "Download",
        "w": "Upload",
    }


def test_a_reference_configuration_takes_v1s_names() -> None:
    config = DataReferenceConfiguration(
        datastore_name="workspaceblobstore",
        path_on_datastore="diabetes",
        mode="download",
        overwrite=True,
    )
    assert (config.data_store_name, config.path_on_data_store) == ("workspaceblobstore", "diabetes")
    assert config == STORE.path("diabetes").as_download(overwrite=True).to_config()
    with pytest.raises(AttributeError):
        config.datastore_nam = "x"  # type: ignore[attr-defined]


def test_references_survive_a_runconfig_file(tmp_path: Path) -> None:
    config = RunConfiguration(script="a.py")
    config.data_references = {"images": STORE.path("mnist", "images").to_config()}
    config.save(tmp_path, "mine")
    loaded = RunConfiguration.load(tmp_path, "mine")
    assert loaded.data_references == {
        "images": DataReferenceConfiguration("workspaceblobstore", "mount", "mnist")
    }


def test_azures_datastores_become_urls_with_secrets_apart() -> None:
    blob = datastore_specs.blob_container(
        "b", "box", "acme", sas_token=None, account_key="k", endpoint=None, overwrite=False
    )
    assert (blob.url, blob.options, blob.secrets) == (
        "abfs://box",
        {"account_name": "acme"},
        {"account_key": "k"},
    )
    share = datastore_specs.file_share(
        "f", "docs", "acme", sas_token=None, account_key="k", endpoint=None, overwrite=False
    )
    assert (share.url, share.secrets) == (
        "smb://acme.file.core.windows.net/docs",
        {"password": "k"},
    )
    lake = datastore_specs.data_lake_gen2(
        "l", "fs", "acme", tenant_id="t", client_id="c", client_secret="s", overwrite=True
    )
    assert (lake.url, lake.secrets, lake.overwrite) == ("abfs://fs", {"client_secret": "s"}, True)
    bucket = datastore_specs.s3_bucket(
        "s",
        "b",
        prefix="/p/",
        access_key_id="i",
        secret_access_key="s",
        endpoint_url="http://m:9000",
        overwrite=False,
    )
    assert (bucket.url, bucket.options) == ("s3://b/p", {"endpoint_url": "http://m:9000"})
    assert "secret" not in str(bucket.details) + str(bucket.options)
    google = datastore_specs.gcs_bucket(
        "g", "b", prefix="", project="p", token="t", overwrite=False
    )
    assert (google.url, google.secrets) == ("gs://b", {"token": "t"})
    with pytest.raises(UserErrorException, match="SAS"):
        datastore_specs.file_share(
            "f", "docs", "acme", sas_token="t", account_key=None, endpoint=None, overwrite=False
        )
    with pytest.raises(UserErrorException, match="container_name"):
        datastore_specs.blob_container(
            "b",
            "box@evil/x",
            "acme",
            sas_token=None,
            account_key="k",
            endpoint=None,
            overwrite=False,
        )


def test_tables_know_their_time_columns() -> None:
    with pytest.raises(DatasetTimestampMissingError):
        TABLE.time_after(datetime(2020, 1, 1))
    timed = TABLE.with_timestamp_columns(fine_grain_timestamp="t", coarse_grain_timestamp="d")
    assert timed.timestamp_columns == ("t", "d")
    (_, step) = timed.time_before(datetime(2020, 1, 1))._spec.steps
    assert (step.op, step.arguments["column"]) == ("time", "t")
    assert TABLE.timestamp_columns == (None, None)  # a dataset never changes
