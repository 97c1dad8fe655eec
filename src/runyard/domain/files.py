"""File trees as manifests: names beside digests, contents in the blob store."""

import hashlib

import msgspec

DIGEST_LENGTH = 64  # sha256, in lower-case hex


class FileEntry(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One file of a tree: a relative POSIX path and the content it has."""

    path: str
    digest: str
    size: int
    mode: int = 0o644


Manifest = tuple[FileEntry, ...]


def manifest_digest(manifest: Manifest) -> str:
    """The id of a tree: equal trees have equal ids, in whatever order they were walked."""
    return hashlib.sha256(encode_manifest(manifest)).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical bytes of a tree, which are also what is stored as its blob."""
    return msgspec.json.encode(sorted(manifest))


def decode_manifest(data: bytes) -> Manifest:
    """The tree that `encode_manifest` was given."""
    return msgspec.json.decode(data, type=tuple[FileEntry, ...])


def is_digest(text: str) -> bool:
    """True if `text` has the form of a blob digest."""
    return len(text) == DIGEST_LENGTH and all(char in "0123456789abcdef" for char in text)


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a run as users see it: an artifact, or a log that is still growing."""

    path: str
    size: int
    digest: str | None = None  # None: a log that still grows, or is too long to be one blob
