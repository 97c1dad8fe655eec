"""The application: the table of routes behind the edge."""

from runyard.server.edge import Edge
from runyard.server.platform import Platform
from runyard.server.table import ROUTES


def build_app(platform: Platform) -> Edge:
    """The ASGI application; refuses a table of routes with a hole in it."""
    return Edge(platform, ROUTES)
