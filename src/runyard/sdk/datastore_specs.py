"""The datastores that can be registered, as what is asked of the server. Pure.

Each is an fsspec URL with options; secrets stay apart. What v1 called by Azure's names maps to it.
"""

import os
from pathlib import Path

from runyard.domain.data import DatastoreSpec
from runyard.sdk.exceptions import user_error


def blob_container(
    name: str,
    container: str,
    account: str,
    *,
    sas_token: str | None,
    account_key: str | None,
    endpoint: str | None,
    overwrite: bool,
) -> DatastoreSpec:
    """A container of Azure Blob storage."""
    return DatastoreSpec(
        name=name,
        url=f"abfs://{_part('container_name', container)}",
        type="AzureBlob",
        details={"account_name": account, "container_name": container, **_given(endpoint=endpoint)},
        options={"account_name": _part("account_name", account)},
        secrets=_given(sas_token=sas_token, account_key=account_key),
        overwrite=overwrite,
    )


def file_share(
    name: str,
    share: str,
    account: str,
    *,
    sas_token: str | None,
    account_key: str | None,
    endpoint: str | None,
    overwrite: bool,
) -> DatastoreSpec:
    """An Azure file share, which speaks SMB."""
    if sas_token is not None and account_key is None:
        raise user_error(
            f"The file share '{share}' cannot be opened with a SAS token.",
            why="A share is opened as a network drive (SMB), which asks for the account's key.",
            fix="Pass account_key=..., or mount it yourself and use Datastore.register_folder.",
        )
    host = f"{_part('account_name', account)}.file.{endpoint or 'core.windows.net'}"
    return DatastoreSpec(
        name=name,
        url=f"smb://{host}/{_part('file_share_name', share)}",
        type="AzureFile",
        details={"account_name": account, "container_name": share, **_given(endpoint=endpoint)},
        options={"host": host, "username": account},
        secrets=_given(password=account_key),
        overwrite=overwrite,
    )


def data_lake_gen2(
    name: str,
    filesystem: str,
    account: str,
    *,
    tenant_id: str | None,
    client_id: str | None,
    client_secret: str | None,
    overwrite: bool,
) -> DatastoreSpec:
    """A file system of Azure Data Lake Storage Gen2."""
    return DatastoreSpec(
        name=name,
        url=f"abfs://{_part('filesystem', filesystem)}",
        type="AzureDataLakeGen2",
        details={"account_name": account, "container_name": filesystem},
        options={
            "account_name": _part("account_name", account),
            **_given(tenant_id=tenant_id, client_id=client_id),
        },
        secrets=_given(client_secret=client_secret),
        overwrite=overwrite,
    )


def folder(name: str, path: str | os.PathLike[str], *, overwrite: bool) -> DatastoreSpec:
    """A folder of the server's machine, or one that is mounted there."""
    place = Path(os.fspath(path)).expanduser().absolute()
    return DatastoreSpec(
        name=name,
        url=place.as_uri(),
        type="Folder",
        details={"path": str(place)},
        overwrite=overwrite,
    )


def s3_bucket(
    name: str,
    bucket: str,
    *,
    prefix: str,
    access_key_id: str | None,
    secret_access_key: str | None,
    endpoint_url: str | None,
    overwrite: bool,
) -> DatastoreSpec:
    """A bucket of S3, or of something that speaks its protocol."""
    return DatastoreSpec(
        name=name,
        url=_url("s3", _part("bucket_name", bucket), prefix),
        type="S3",
        details={"container_name": bucket, **_given(endpoint=endpoint_url)},
        options=_given(endpoint_url=endpoint_url),
        secrets=_given(key=access_key_id, secret=secret_access_key),
        overwrite=overwrite,
    )


def gcs_bucket(
    name: str,
    bucket: str,
    *,
    prefix: str,
    project: str | None,
    token: str | None,
    overwrite: bool,
) -> DatastoreSpec:
    """A bucket of Google Cloud Storage."""
    return DatastoreSpec(
        name=name,
        url=_url("gs", _part("bucket_name", bucket), prefix),
        type="GoogleCloudStorage",
        details={"container_name": bucket},
        options=_given(project=project),
        secrets=_given(token=token),
        overwrite=overwrite,
    )


def _url(scheme: str, bucket: str, prefix: str) -> str:
    return f"{scheme}://{bucket}/{prefix.strip('/')}".rstrip("/")


def _part(parameter: str, text: str) -> str:
    """A part of a URL that a user named; it must not change what the rest means."""
    if not isinstance(text, str) or not text or set(text) & set("/\\@?#: "):
        raise user_error(f"{parameter}={text!r} is not a name.")
    return text


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
