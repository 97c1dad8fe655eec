"""The stored transformations of a dataset: how each is written down, and what it does to files.

A step is `{"op": name, "arguments": {…}}`, in the order the user called them:

    skip          count                      leave out the first ones
    take          count                      keep the first ones
    sample        probability, seed          keep each one with that probability
    split         percentage, seed, rest     the same draw; `rest`: those that it leaves
    filter        expression                 see expressions.py
    keep_columns  columns                    tables only, as all that follow
    drop_columns  columns
    timestamps    timestamp, partition_timestamp
    time          column, after, before, include_boundary    times in ISO form, or null

The same step over the same data gives the same result anywhere: chance comes from the seed alone,
which is drawn when the step is written down. What steps do to tables stands in `tables.py`.
"""

import datetime
import random

from runyard_runtime import expressions
from runyard_runtime.exceptions import UserErrorException, explain

ON_FILES = ("skip", "take", "sample", "split", "filter")


def skip(count):
    """Leave out the first `count`."""
    return _step("skip", count=_count("skip", count))


def take(count):
    """Keep the first `count`."""
    return _step("take", count=_count("take", count))


def sample(probability, seed=None):
    """Keep each one with a probability."""
    return _step("sample", probability=_share("probability", probability), seed=_seed(seed))


def split(percentage, seed=None):
    """Two steps: about that share of all, and exactly what it leaves."""
    share = _share("percentage", percentage)
    seed = _seed(seed)
    return (
        _step("split", percentage=share, seed=seed, rest=False),
        _step("split", percentage=share, seed=seed, rest=True),
    )


def filter(expression):
    """Keep what an expression over columns is true for."""
    return _step("filter", expression=expressions.tree_of(expression))


def keep_columns(columns):
    """Keep these columns, in this order."""
    return _step("keep_columns", columns=_columns(columns))


def drop_columns(columns):
    """Leave these columns out."""
    return _step("drop_columns", columns=_columns(columns))


def timestamps(timestamp=None, partition_timestamp=None):
    """Say which columns hold times."""
    return _step("timestamps", timestamp=timestamp, partition_timestamp=partition_timestamp)


def time(column, after=None, before=None, include_boundary=True):
    """Keep what lies between two times."""
    return _step(
        "time",
        column=column,
        after=None if after is None else expressions.time_text(after),
        before=None if before is None else expressions.time_text(before),
        include_boundary=bool(include_boundary),
    )


def recent(column, delta, include_boundary=True):
    """Keep the last span of time before now."""
    if not isinstance(delta, datetime.timedelta):
        raise UserErrorException(
            explain("%r is not a span of time." % (delta,), fix="Pass a datetime.timedelta.")
        )
    return time(column, after=datetime.datetime.now() - delta, include_boundary=include_boundary)


def apply_to_files(files, steps, describe):
    """The files that the steps leave, in their order.

    `describe(file)` gives what a filter may ask of a file: its Size, its Path, its partition keys.
    """
    kept = list(files)
    for step in steps:
        op, arguments = step["op"], step["arguments"]
        if op == "filter":
            kept = [one for one in kept if _true_for(arguments["expression"], describe(one))]
        elif op in ON_FILES:
            kept = [kept[index] for index in rows(op, arguments, len(kept))]
        else:
            raise UserErrorException(
                explain(
                    "'%s' cannot be done to files." % op,
                    "A dataset of files knows: %s." % ", ".join(ON_FILES),
                )
            )
    return kept


def rows(op, arguments, count):
    """Which of `count` things such a step keeps, by their index."""
    if op == "skip":
        return range(min(arguments["count"], count), count)
    if op == "take":
        return range(min(arguments["count"], count))
    draw = random.Random(arguments["seed"])
    if op == "sample":
        share, rest = arguments["probability"], False
    else:
        share, rest = arguments["percentage"], arguments["rest"]
    return [index for index in range(count) if (draw.random() < share) != rest]


def _true_for(expression, facts):
    def value_of(name):
        if name not in facts:
            raise UserErrorException(
                explain(
                    "A file has no '%s' to filter by." % name,
                    "It has: %s." % ", ".join(sorted(facts)),
                )
            )
        return facts[name]

    return bool(expressions.evaluate(expression, value_of))


def _step(op, **arguments):
    return {"op": op, "arguments": arguments}


def _count(name, count):
    whole = isinstance(count, int) and not isinstance(count, bool)
    if not whole or count < 0:
        raise UserErrorException(
            explain(
                "%s(%r) makes no sense." % (name, count), "It takes a count that is not negative."
            )
        )
    return count


def _share(name, share):
    number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not number or not 0 <= share <= 1:
        raise UserErrorException(
            explain("%s=%r makes no sense." % (name, share), "It is a number between 0 and 1.")
        )
    return float(share)


def _seed(seed):
    if seed is None:
        return random.SystemRandom().randrange(2**31)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserErrorException(explain("seed=%r is not a whole number." % (seed,)))
    return seed


def _columns(columns):
    names = [columns] if isinstance(columns, str) else list(columns)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise UserErrorException(
            explain(
                "columns=%r names no columns." % (columns,), fix="Pass a name, or a list of names."
            )
        )
    return names
