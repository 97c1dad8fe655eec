"""From `Where` to SQL whose cost does not grow with the table. Pure.

A page is read off the end of one index, newest first. Which index that is, is decided here and
not left to the planner, which without statistics takes any that fits a little: the narrowest
condition stays as it is, and the others are *quiet*, written so that no index serves them.
"""

import hashlib
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from sqlalchemy import BinaryExpression, ColumnElement, Select, exists, func, select, union_all

from runyard.domain.runs import RunKind
from runyard.domain.states import RunState
from runyard.stores.base import Where
from runyard.stores.schema import labels, records, text_bytes


class _Driver(Enum):
    """What leads to the matching records."""

    LABEL = auto()
    NAME = auto()
    PARENT = auto()
    PLACE = auto()  # workspace, experiment, state, or nothing


def plan_page(kind: str, where: Where, *, limit: int, before: int | None) -> Select[Any]:
    """Select (seq, body) of the newest `limit` matching records, only those before `before`."""
    if len(where.states) < 2 or _driver(where) is not _Driver.PLACE:
        return _page(kind, where, where.states, limit, before)
    # Two states lie apart in the index: a page of each, and of these the newest.
    pages = [
        _page(kind, where, frozenset({state}), limit, before).subquery()
        for state in sorted(where.states)
    ]
    merged = union_all(*(select(page.c.seq, page.c.body) for page in pages)).subquery()
    return select(merged.c.seq, merged.c.body).order_by(merged.c.seq.desc()).limit(limit)


def plan_count(kind: str, where: Where) -> Select[Any]:
    """Select (state, how many) of all matching records."""
    statement = select(records.c.state, func.count()).group_by(records.c.state)
    return _narrowed(statement, kind, where, where.states)


def labels_of(tags: Mapping[str, str | None], properties: Mapping[str, str]) -> set[int]:
    """The numbers under which a record with these tags and properties is found."""
    return {
        number
        for what, texts in (("tag", tags), ("property", properties))
        for name, value in texts.items()
        for number in (_label(what, name), _label(what, name, value))
    }


def _page(
    kind: str, where: Where, states: frozenset[RunState], limit: int, before: int | None
) -> Select[Any]:
    seq = labels.c.record if _driver(where) is _Driver.LABEL else records.c.seq
    statement = _narrowed(select(records.c.seq, records.c.body), kind, where, states)
    if before is not None:
        statement = statement.where(seq < before)
    return statement.order_by(seq.desc()).limit(limit)


def _narrowed(
    statement: Select[Any], kind: str, where: Where, states: frozenset[RunState]
) -> Select[Any]:
    driver = _driver(where)
    place = driver is _Driver.PLACE
    conditions: list[ColumnElement[bool]] = [
        _equal(records.c.kind, kind, loud=driver is not _Driver.LABEL)
    ]
    if driver is _Driver.LABEL:
        first, *others = _wanted(where)
        statement = statement.join(labels, labels.c.record == records.c.seq)
        conditions.append(labels.c.label == first)
        conditions += [_has_label(label) for label in others]
    if where.name is not None:
        conditions.append(_equal(records.c.name, where.name, loud=driver is _Driver.NAME))
    if where.parent is not None:
        conditions.append(_equal(records.c.parent, where.parent, loud=driver is _Driver.PARENT))
    if where.workspace is not None:
        conditions.append(_equal(records.c.workspace, where.workspace, loud=place))
    if where.experiment is not None:
        conditions.append(_equal(records.c.experiment, where.experiment, loud=place))
    if where.top_level:
        conditions.append(records.c.parent.is_(None))
    if where.kind is not None:
        conditions.append(records.c.run_kind == where.kind)
    elif kind == "run":
        # The processes of services are found only by who asks for them.
        conditions.append(records.c.run_kind != RunKind.SERVICE.value)
    if len(states) == 1 and place:
        conditions.append(records.c.state == next(iter(states)))
    elif states:
        conditions.append(records.c.state.concat("").in_(sorted(states)))
    return statement.where(*conditions)


def _driver(where: Where) -> _Driver:
    if where.tags or where.properties:
        return _Driver.LABEL
    if where.name is not None:
        return _Driver.NAME
    return _Driver.PARENT if where.parent is not None else _Driver.PLACE


def _equal(column: ColumnElement[str], value: str, *, loud: bool) -> BinaryExpression[bool]:
    side = column if loud else column.concat("")
    return side == value  # type: ignore[return-value]  # typed as the operator of any object


def _wanted(where: Where) -> list[int]:
    return [
        _label(what, name) if value is None else _label(what, name, value)
        for what, texts in (("tag", where.tags), ("property", where.properties))
        for name, value in texts.items()
    ]


def _has_label(label: int) -> ColumnElement[bool]:
    other = labels.alias()
    return exists().where(other.c.record == records.c.seq, other.c.label == label)


def _label(what: str, name: str, *value: str | None) -> int:
    """A number for one tag or property: 64 bits of a hash, which are enough to tell them apart."""
    parts = [what, name, *(repr(part) for part in value)]
    content = b"".join(len(data := text_bytes(part)).to_bytes(8) + data for part in parts)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)
