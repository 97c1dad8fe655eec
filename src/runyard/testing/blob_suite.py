"""What every blob store promises. Subclass it and give it a `blobs` fixture: an empty one."""

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runyard.domain.errors import Invalid, NotFound
from runyard.stores.base import Blobs

HELLO = hashlib.sha256(b"hello").hexdigest()
NOT_DIGESTS = ["", "../../etc/passwd", HELLO.upper(), HELLO[:-1], HELLO + "0", "g" * 64, "\0" * 64]


class BlobSuite:
    """The promises of `stores.base.Blobs`."""

    def test_a_content_comes_back(self, blobs: Blobs) -> None:
        blobs.put(HELLO, [b"he", b"", b"llo"])
        assert b"".join(blobs.open(HELLO)) == b"hello"
        assert blobs.size(HELLO) == 5

    def test_the_empty_content_is_a_content(self, blobs: Blobs) -> None:
        empty = hashlib.sha256(b"").hexdigest()
        blobs.put(empty, [])
        assert blobs.size(empty) == 0
        assert list(blobs.open(empty)) == []
        assert blobs.missing([empty]) == []

    def test_putting_twice_keeps_one(self, blobs: Blobs) -> None:
        for _ in range(2):
            blobs.put(HELLO, [b"hello"])
        assert b"".join(blobs.open(HELLO)) == b"hello"

    def test_a_wrong_content_is_refused_and_not_kept(self, blobs: Blobs) -> None:
        with pytest.raises(Invalid, match=HELLO):
            blobs.put(HELLO, [b"jello"])
        assert blobs.missing([HELLO]) == [HELLO]
        blobs.put(HELLO, [b"hello"])
        with pytest.raises(Invalid):
            blobs.put(HELLO, [b"jello"])
        assert b"".join(blobs.open(HELLO)) == b"hello"

    def test_a_source_that_breaks_off_leaves_nothing(self, blobs: Blobs) -> None:
        def broken() -> Iterator[bytes]:
            yield b"hel"
            raise ConnectionError("the client went away")

        with pytest.raises(ConnectionError):
            blobs.put(HELLO, broken())
        assert blobs.missing([HELLO]) == [HELLO]

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, None, b"hello"),
            (1, 4, b"ell"),
            (4, None, b"o"),
            (0, 100, b"hello"),
            (5, None, b""),
            (9, 20, b""),
            (3, 3, b""),
            (4, 2, b""),
        ],
    )
    def test_a_part_can_be_read(
        self, blobs: Blobs, start: int, end: int | None, expected: bytes
    ) -> None:
        blobs.put(HELLO, [b"hello"])
        assert b"".join(blobs.open(HELLO, start, end)) == expected

    def test_a_big_content_comes_in_chunks(self, blobs: Blobs) -> None:
        content = random.Random(0).randbytes(9_000_001)
        digest = hashlib.sha256(content).hexdigest()
        blobs.put(digest, (content[i : i + 1_000_000] for i in range(0, len(content), 1_000_000)))
        chunks = list(blobs.open(digest))
        assert len(chunks) > 1
        assert b"".join(chunks) == content
        assert b"".join(blobs.open(digest, 4_000_000, 8_500_000)) == content[4_000_000:8_500_000]

    def test_what_is_missing_is_named_once_in_order(self, blobs: Blobs) -> None:
        blobs.put(HELLO, [b"hello"])
        others = [hashlib.sha256(bytes([i])).hexdigest() for i in range(30)]
        assert blobs.missing([*others, HELLO, *others]) == others
        assert blobs.missing([]) == []

    def test_what_is_not_there_is_not_found_at_once(self, blobs: Blobs) -> None:
        with pytest.raises(NotFound):
            blobs.open(HELLO)  # not only when the first chunk is asked for
        with pytest.raises(NotFound):
            blobs.size(HELLO)

    @pytest.mark.parametrize("text", NOT_DIGESTS)
    def test_only_a_digest_names_a_content(self, blobs: Blobs, text: str) -> None:
        # A user's text must never become a path.
        with pytest.raises(Invalid):
            blobs.put(text, [b"hello"])
        with pytest.raises(Invalid):
            blobs.missing([text])
        with pytest.raises(NotFound):
            blobs.open(text)
        with pytest.raises(NotFound):
            blobs.size(text)

    def test_many_may_put_the_same_at_once(self, blobs: Blobs) -> None:
        content = b"x" * 300_000
        digest = hashlib.sha256(content).hexdigest()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: blobs.put(digest, [content[:100], content[100:]]), range(8)))
        assert b"".join(blobs.open(digest)) == content
