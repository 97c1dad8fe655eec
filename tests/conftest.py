"""Fixtures for all tests."""

import signal

from runyard.testing.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and processes inherit that; tests of
    # Ctrl-C need it back.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
