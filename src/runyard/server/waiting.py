"""Waiting for news as long as somebody waits for the answer."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from starlette.types import Receive

from runyard.server.messages import ClientGone

T = TypeVar("T")


class Caller:
    """The one who waits for an answer."""

    def __init__(self, gone: "asyncio.Future[None]") -> None:
        self._gone = gone

    def check(self) -> None:
        """`ClientGone` if the caller has hung up."""
        if self._gone.done():
            raise ClientGone

    async def waits_for(self, news: Coroutine[Any, Any, T]) -> T:
        """What is waited for; `ClientGone` if the caller hangs up first."""
        work = asyncio.ensure_future(news)
        either: set[asyncio.Future[Any]] = {work, self._gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            return work.result()
        finally:
            work.cancel()


@contextlib.contextmanager
def attending(receive: Receive) -> Iterator[Caller]:
    """Notice when the caller hangs up; the body must have been read before."""
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        yield Caller(gone)
    finally:
        gone.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
