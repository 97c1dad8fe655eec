"""Services for the tests of the front end."""

from collections.abc import Iterator

import pytest

from runyard.testing.front_service import Service, a_service


@pytest.fixture
def service() -> Iterator[Service]:
    """Nothing runs yet."""
    with a_service() as one:
        yield one


@pytest.fixture(scope="module")
def echo() -> Iterator[Service]:
    """A front end with one worker that echoes, for all tests of a module."""
    with a_service() as one:
        one.worker()
        one.start(limits={"max_body_bytes": 200_000})
        one.wait_ready()
        yield one
