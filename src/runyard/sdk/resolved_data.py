"""The files that a dataset leads to, fetched to this machine."""

from collections.abc import Sequence
from pathlib import Path

from runyard.domain.data import DataFile
from runyard.sdk.data_transfer import fetch_to, in_parallel
from runyard.sdk.exceptions import user_error
from runyard.sdk.run_files import inside
from runyard.sdk.session import Session, segments
from runyard_runtime.fetch import Fetcher, FetchFailed


def fetch_files(
    session: Session, files: Sequence[DataFile], folder: Path, *, overwrite: bool
) -> list[Path]:
    """Write files below a folder, with the paths they have in the dataset."""
    aims = [inside(folder, file.path) for file in files]
    if not overwrite:
        there = next((aim for aim in aims if aim.exists()), None)
        if there is not None:
            raise user_error(
                f"'{there}' exists already.", fix="Choose another folder, or pass overwrite=True."
            )
    fetcher = make_fetcher(session)
    try:
        pairs = list(zip(files, aims, strict=True))
        in_parallel(lambda pair: fetch_file(session, fetcher, pair[0], pair[1]), pairs)
    finally:
        fetcher.close()
    return aims


def make_fetcher(session: Session) -> Fetcher:
    """What fetches addresses on this machine, which is the user's own."""
    return Fetcher(mirrors=session.settings.mirrors, allow_private=True)


def fetch_file(session: Session, fetcher: Fetcher, file: DataFile, target: Path) -> None:
    """Write one file, from wherever its bytes are."""
    kind, _, place = file.origin.partition(":")
    if kind == "blob":
        fetch_to(session, f"/api/v1/blobs/{place}", target)
    elif kind == "store":
        store, _, path = place.partition("/")
        fetch_to(session, f"/api/v1/stores/{store}/files/{segments(path)}", target)
    elif kind == "url":
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fetcher.download(place, str(target))
        except FetchFailed as error:
            raise user_error(error.what, why=error.why, fix=error.fix) from None
        except OSError as error:
            raise user_error(
                f"'{target}' cannot be written.", why=f"{error.strerror or error}."
            ) from None
    else:
        raise user_error(f"'{file.path}' is at {kind!r}, which this version does not know.")
