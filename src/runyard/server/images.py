"""Logged images, shown on a run's page. Everything else of a run is only ever an attachment."""

import msgspec

from runyard.domain.errors import Unsupported
from runyard.domain.runs import RunRecord
from runyard.server.downloads import Download
from runyard.server.routing import Call

# What the first bytes say decides, not the name: a page that calls itself an image is refused.
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
SUFFIXES = (".png", ".jpg", ".jpeg")


class ImageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`v` is the image's version, so that a browser may keep it."""

    v: str = ""


def get_image(call: Call[None, ImageQuery]) -> Download:
    """A PNG or JPEG file of a run, as such."""
    store, path = call.platform.store, call.params["path"]
    run = store.records.get(RunRecord, call.params["run"])
    digest = store.artifacts.get(run.id, path).digest
    assert digest is not None  # an artifact always has one
    head = b"".join(store.blobs.open(digest, 0, 16))
    media = next((kind for start, kind in _SIGNATURES.items() if head.startswith(start)), None)
    if media is None:
        raise Unsupported(f"The file '{path[:200]}' is no PNG or JPEG image.", fix="Download it.")
    return Download(
        call.platform,
        lambda start, end: store.blobs.open(digest, start, end),
        size=store.blobs.size(digest),
        etag=digest,
        image=media,
    )
