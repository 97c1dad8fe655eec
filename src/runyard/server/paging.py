"""All records that match, page by page."""

from runyard.stores.base import R, Store, Where

_PAGE = 1000


def find_all(store: Store, kind: type[R], where: Where) -> list[R]:
    """Every matching record, newest first."""
    found: list[R] = []
    after: str | None = None
    while True:
        page, after = store.records.find(kind, where, limit=_PAGE, after=after)
        found += page
        if after is None:
            return found
