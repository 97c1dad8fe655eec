"""Columns out of paths: `{country}/{day:yyyy/MM/dd}/data.csv`. Pure."""

import datetime
import re

from runyard_runtime.exceptions import UserErrorException, explain

_KEY = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
_PARTS = {
    "yyyy": ("year", r"\d{4}"),
    "MM": ("month", r"\d{2}"),
    "dd": ("day", r"\d{2}"),
    "HH": ("hour", r"\d{2}"),
    "mm": ("minute", r"\d{2}"),
    "ss": ("second", r"\d{2}"),
}
_PART = re.compile("|".join(sorted(_PARTS, key=len, reverse=True)))


class Partitioning(object):
    """A partition format, understood."""

    def __init__(self, text):
        self.text = text
        self.keys = []  # names, in their order
        self._times = {}  # of those that are times: the units in their order
        # A dataset's paths begin below its pattern's fixed folders, which the format may name too.
        above, pattern = "", ""
        end = text.rfind("/", 0, text.find("{") + 1) + 1
        if end > 0:
            above = "(?:%s)?" % _literal(text[:end])
        for found in _KEY.finditer(text):
            pattern += _literal(text[end : found.start()]) + self._key(*found.groups())
            end = found.end()
        rest = text[end:]
        if not self.keys or "{" in rest or "}" in rest:
            raise self._wrong("Keys are written {name} or {name:yyyy/MM/dd}.")
        self._pattern = re.compile("%s%s%s$" % (above, pattern, _literal(rest)))

    def values(self, path):
        """The keys' values in a path, times as datetimes; an error if it does not fit."""
        found = self._pattern.search("/" + path.lstrip("/"))
        if found is None:
            raise UserErrorException(
                explain(
                    "The path '%s' does not fit the partition_format '%s'." % (path, self.text),
                    "The format describes a path from its first key to its end.",
                    "Correct the partition_format, or the pattern of the dataset's path.",
                )
            )
        groups = iter(found.groups())
        values = {}
        for key in self.keys:
            if key not in self._times:
                values[key] = next(groups)
                continue
            units = {unit: int(next(groups)) for unit in self._times[key]}
            try:
                values[key] = datetime.datetime(
                    **dict({"year": 1900, "month": 1, "day": 1}, **units)
                )
            except ValueError as problem:
                raise UserErrorException(
                    explain(
                        "The path '%s' has no such time as '%s'." % (path, key), "%s." % problem
                    )
                )
        return values

    def _key(self, name, form):
        name = name.strip()
        if name in self.keys or not name:
            raise self._wrong("The key '%s' is there twice." % name)
        self.keys.append(name)
        if not form:
            return "([^/]+?)"
        units, pattern, end = [], "", 0
        for found in _PART.finditer(form):
            unit, digits = _PARTS[found.group()]
            pattern += re.escape(form[end : found.start()]) + "(%s)" % digits
            units.append(unit)
            end = found.end()
        if not units or len(set(units)) != len(units):
            raise self._wrong("'%s' is made of yyyy, MM, dd, HH, mm and ss, each once." % form)
        self._times[name] = units
        return pattern + re.escape(form[end:])

    def _wrong(self, why):
        return UserErrorException(
            explain(
                "partition_format='%s' makes no sense." % self.text,
                why,
                "Write, for example, '{country}/{day:yyyy/MM/dd}/data.csv'.",
            )
        )


def _literal(text):
    """Text between keys; `*` stands for anything in one part of a path."""
    return "[^/]*".join(re.escape(part) for part in text.split("*"))
