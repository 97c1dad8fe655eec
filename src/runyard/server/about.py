"""Routes about the server itself."""

import msgspec

from runyard import __version__
from runyard.domain.server import ServerInfo
from runyard.server.routing import Call, NoQuery


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That the server answers."""

    status: str = "ok"
    version: str = __version__


async def health(call: Call[None, NoQuery]) -> Health:
    """Whether the server answers."""
    return Health()


def server(call: Call[None, NoQuery]) -> ServerInfo:
    """What the server is, and how busy."""
    platform = call.platform
    return msgspec.structs.replace(
        platform.info(), machine=platform.machine, slots=platform.settings.slots
    )


async def stop(call: Call[None, NoQuery]) -> None:
    """Stop the server gracefully; jobs go on."""
    call.platform.stop()
