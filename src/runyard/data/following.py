"""Following a recipe: from the sources of a dataset to the files that are there now."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from runyard.data.base import Files
from runyard.domain.data import (
    DataFile,
    DatasetKind,
    DatasetSpec,
    DatastoreKind,
    DatastoreRecord,
    ResolvedData,
    StoreSource,
    UrlSource,
)
from runyard.domain.errors import Invalid, NotFound
from runyard.planning.data import (
    apply_steps,
    check_laid_out,
    common_folder,
    compile_pattern,
    plain_path,
    plan_url_paths,
    split_pattern,
    url_name,
)
from runyard_runtime.fetch import Fetcher, FetchFailed

ASKED_AT_ONCE = 16  # addresses; servers of files do not mind so many


class Place(NamedTuple):
    """A datastore, opened."""

    record: DatastoreRecord
    files: Files


OpenPlace = Callable[[str], Place]  # by the datastore's name


def follow(spec: DatasetSpec, open_place: OpenPlace, fetcher: Fetcher) -> ResolvedData:
    """What the recipe leads to now, ordered by path; an error says which source leads nowhere."""
    urls = [source.url for source in spec.sources if isinstance(source, UrlSource)]
    paths = [source for source in spec.sources if isinstance(source, StoreSource)]
    if bool(urls) == bool(paths):
        raise Invalid("A dataset is made of web addresses or of paths in datastores, not of both.")
    if urls:
        files, single = _follow_urls(list(dict.fromkeys(urls)), fetcher)
    else:
        files, single = _follow_paths(paths, open_place)
    check_laid_out(file.path for file in files)
    if spec.kind is DatasetKind.FILE:
        files = apply_steps(files, spec)
    return ResolvedData(files=tuple(files), single=single and len(files) == 1)


# ---- web addresses ---------------------------------------------------------------------------


def _follow_urls(urls: Sequence[str], fetcher: Fetcher) -> tuple[Sequence[DataFile], bool]:
    paths = [url_name(urls[0])] if len(urls) == 1 else plan_url_paths(urls)
    if len(urls) == 1:
        files = [_ask(fetcher, paths[0], urls[0])]
    else:
        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="ask") as pool:
            asked = [pool.submit(_ask, fetcher, *one) for one in zip(paths, urls, strict=True)]
            try:
                files = [one.result() for one in asked]
            finally:
                for one in asked:
                    one.cancel()
    return sorted(files, key=_path_of), len(urls) == 1


def _ask(fetcher: Fetcher, path: str, url: str) -> DataFile:
    try:
        found = fetcher.head(url)
    except FetchFailed as error:
        raise Invalid(error.what, why=error.why, fix=error.fix) from None
    return DataFile(path, found.size, f"url:{url}", found.stamp)


# ---- datastores ------------------------------------------------------------------------------


class _Found(NamedTuple):
    """What one source leads to; paths are the datastore's own."""

    place: Place
    folder: str  # what is cut off
    files: list[DataFile]
    single: bool


def _follow_paths(
    sources: Sequence[StoreSource], open_place: OpenPlace
) -> tuple[Sequence[DataFile], bool]:
    places: dict[str, Place] = {}
    found = []
    for source in sources:
        if source.datastore not in places:
            places[source.datastore] = open_place(source.datastore)
        found.append(_follow_path(source, places[source.datastore]))
    several = len({one.place.record.id for one in found}) > 1
    folders = {
        id: common_folder([one.folder for one in found if one.place.record.id == id])
        for id in {one.place.record.id for one in found}
    }
    files: dict[str, DataFile] = {}  # what two sources lead to is there once
    for one in found:
        cut = folders[one.place.record.id]
        start = len(cut) + 1 if cut else 0
        top = f"{one.place.record.name}/" if several else ""
        for file in one.files:
            seen = top + file.path[start:]
            files[seen] = (
                file if seen == file.path else DataFile(seen, file.size, file.origin, file.stamp)
            )
    return sorted(files.values(), key=_path_of), len(found) == 1 and found[0].single


def _follow_path(source: StoreSource, place: Place) -> _Found:
    path = plain_path(source.path, of=f"datastore '{place.record.name}'")
    folder, pattern = split_pattern(path)
    if pattern:
        is_wanted = compile_pattern(pattern)
        start = len(folder) + 1 if folder else 0
        files = [file for file in _below(place, folder) if is_wanted(file.path[start:])]
        if not files:
            raise NotFound(
                f"The pattern '{path}' matches nothing in datastore '{place.record.name}'.",
                why=f"No file below '{folder or '/'}' fits.",
                fix="Mind that * stays in one folder and ** goes through all.",
            )
        return _Found(place, folder, files, single=False)
    if path and not source.path.endswith("/"):
        try:
            file = place.files.find(path)
        except NotFound:
            pass
        else:
            origin = _origin(place, file.path, file.digest)
            one = DataFile(path, file.size, origin, file.stamp)
            return _Found(place, path.rpartition("/")[0], [one], single=True)
    files = _below(place, path)
    if not files:
        raise NotFound(
            f"There is nothing at '{path or '/'}' in datastore '{place.record.name}'.",
            why="It is neither a file nor a folder with files in it.",
            fix="Upload something there first, or mind the spelling.",
        )
    return _Found(place, path, files, single=False)


def _below(place: Place, folder: str) -> list[DataFile]:
    managed = place.record.kind is DatastoreKind.MANAGED
    store = f"store:{place.record.id}/"
    return [
        DataFile(path, size, f"blob:{digest}" if managed else store + path, stamp)
        for path, size, stamp, digest in place.files.list(folder)
    ]


def _origin(place: Place, path: str, digest: str) -> str:
    if place.record.kind is DatastoreKind.MANAGED:
        return f"blob:{digest}"
    return f"store:{place.record.id}/{path}"


def _path_of(file: DataFile) -> str:
    return file.path
