"""Conditions over columns: `(dataset['age'] > 18) & dataset['name'].starts_with('A')`.

An expression is kept as a tree of plain JSON, so that it can be stored with a dataset:

    {"column": name}   {"value": anything plain}   {"time": "2020-01-31T00:00:00.000000"}
    {"op": one of OPERATIONS, "of": [trees]}
"""

import datetime
import operator

from runyard_runtime.exceptions import UserErrorException, explain

_TIME = "%Y-%m-%dT%H:%M:%S.%f"


def _is_null(value):
    if hasattr(value, "isnull"):
        return value.isnull()
    return value is None


def _starts_with(value, prefix):
    if isinstance(value, str) or not hasattr(value, "str"):
        return str(value).startswith(prefix)
    return value.str.startswith(prefix, na=False)


def _contains(value, part):
    if isinstance(value, str) or not hasattr(value, "str"):
        return part in str(value)
    return value.str.contains(part, regex=False, na=False)


def _not(value):
    return operator.xor(value, True)  # of one truth value, and of a column of them


OPERATIONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "not": _not,
    "is_null": _is_null,
    "starts_with": _starts_with,
    "contains": _contains,
}


class Expression(object):
    """A column, or a condition over columns. Combine conditions with &, | and ~."""

    def __init__(self, tree):
        self._tree = tree

    def __eq__(self, other):
        return _combined("eq", self, other)

    def __ne__(self, other):
        return _combined("ne", self, other)

    def __lt__(self, other):
        return _combined("lt", self, other)

    def __le__(self, other):
        return _combined("le", self, other)

    def __gt__(self, other):
        return _combined("gt", self, other)

    def __ge__(self, other):
        return _combined("ge", self, other)

    def __and__(self, other):
        return _combined("and", self, other)

    def __or__(self, other):
        return _combined("or", self, other)

    def __invert__(self):
        return _combined("not", self)

    __hash__ = None

    def is_null(self):
        """Whether there is no value."""
        return _combined("is_null", self)

    def starts_with(self, prefix):
        """Whether the text begins so."""
        return _combined("starts_with", self, prefix)

    def contains(self, part):
        """Whether the text has that in it."""
        return _combined("contains", self, part)

    def __bool__(self):
        raise UserErrorException(
            explain(
                "A condition over columns has no truth value of its own.",
                "'and', 'or' and 'not' ask for one.",
                "Write (a > 1) & (b < 2), (a > 1) | (b < 2), ~(a > 1).",
            )
        )

    def __repr__(self):
        return "Expression(%r)" % (self._tree,)


class Fields(object):
    """What `dataset.file_metadata` is: its items are columns."""

    def __getitem__(self, name):
        return column(name)


def column(name):
    """The column of that name."""
    if not isinstance(name, str):
        raise UserErrorException(
            explain("%r is not the name of a column." % (name,), fix="Write dataset['age'].")
        )
    return Expression({"column": name})


def tree_of(expression):
    """The tree of a condition, or an error for what is none."""
    if not isinstance(expression, Expression) or "op" not in expression._tree:
        raise UserErrorException(
            explain(
                "%r is not a condition." % (expression,),
                "A filter compares columns with values.",
                "Write dataset.filter(dataset['age'] > 18)",
            )
        )
    return expression._tree


def evaluate(tree, value_of):
    """The value of a tree; `value_of(name)` is a column, whole or of one row."""
    if "column" in tree:
        return value_of(tree["column"])
    if "time" in tree:
        return time_of(tree["time"])
    if "value" in tree:
        return tree["value"]
    operation = OPERATIONS.get(tree.get("op"))
    if operation is None:
        raise UserErrorException(explain("%r is no operation of a filter." % (tree.get("op"),)))
    return operation(*[evaluate(one, value_of) for one in tree["of"]])


def time_text(moment):
    """A time as it is kept: UTC where it has a zone, as it stands where it has none."""
    if isinstance(moment, datetime.date) and not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime.datetime):
        raise UserErrorException(
            explain("%r is not a time." % (moment,), fix="Pass a datetime.datetime.")
        )
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return moment.strftime(_TIME)


def time_of(text):
    """The time that `time_text` was given."""
    return datetime.datetime.strptime(text, _TIME)


def _combined(op, *operands):
    return Expression({"op": op, "of": [_operand(one) for one in operands]})


def _operand(value):
    if isinstance(value, Expression):
        return value._tree
    if isinstance(value, datetime.date):
        return {"time": time_text(value)}
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value  # numpy's numbers
    if plain is not None and not isinstance(plain, (bool, int, float, str)):
        raise UserErrorException(
            explain("A column cannot be compared with a %s." % type(value).__name__)
        )
    return {"value": plain}
