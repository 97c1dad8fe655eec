"""How many waiting requests a free worker takes. Pure.

Nobody waits for company unless told to: a free worker takes what is there. While it works,
requests gather, and the next batch is larger. So batches grow with the load by themselves.
"""

from collections.abc import Iterable
from itertools import islice

BATCH_BYTES = 32 << 20  # bodies of one batch together; larger ones would only delay the small


def batch_size(
    *, waiting: int, free: int, limit: int, waited: float = 0.0, delay: float = 0.0
) -> int:
    """How many of the `waiting` requests the next of `free` workers takes; 0: wait for more.

    `limit` is the most a worker takes at once, `waited` how long the first has waited already
    and `delay` how long it may. Free workers share evenly: two of them answer eight requests
    sooner as four and four than as eight.
    """
    if not waiting or not free:
        return 0
    if waiting < limit and waited < delay:
        return 0
    return min(limit, -(-waiting // free))


def within_bytes(sizes: Iterable[int], count: int, most: int = BATCH_BYTES) -> int:
    """How many of the first `count` bodies fit into a batch; at least one."""
    total = 0
    for index, size in enumerate(islice(sizes, count)):
        total += size
        if total > most and index:
            return index
    return count
