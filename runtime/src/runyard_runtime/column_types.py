"""`DataType` and the two choices that v1's readers of tables offer."""

import enum

from runyard_runtime.exceptions import UserErrorException, explain


class PromoteHeadersBehavior(enum.Enum):
    """Which files have a line of column names."""

    NO_HEADERS = 0
    ONLY_FIRST_FILE_HAS_HEADERS = 1
    COMBINE_ALL_FILES_HEADERS = 2
    ALL_FILES_HAVE_SAME_HEADERS = 3


class FileEncoding(enum.Enum):
    """How texts are written."""

    UTF8 = "utf8"
    ISO88591 = "iso88591"
    LATIN1 = "latin1"
    ASCII = "ascii"
    UTF16 = "utf16"
    UTF32 = "utf32"
    UTF8BOM = "utf8bom"
    WINDOWS1252 = "windows1252"


class DataType(object):
    """The type of a column: `set_column_types={'price': DataType.to_float()}`."""

    def __init__(self, definition):
        self.definition = definition

    @staticmethod
    def to_bool(true_values=None, false_values=None, mismatch_as=None):
        """Truth values."""
        if mismatch_as not in (None, "error"):
            raise UserErrorException(
                explain("mismatch_as=%r is not supported; leave it out." % (mismatch_as,))
            )
        return DataType(
            {"type": "bool", "true_values": _list(true_values), "false_values": _list(false_values)}
        )

    @staticmethod
    def to_datetime(formats=None):
        """Times; `formats` as for `datetime.strptime`, the first that fits is taken."""
        return DataType({"type": "datetime", "formats": _list(formats)})

    @staticmethod
    def to_float(decimal_mark="."):
        """Numbers."""
        if decimal_mark not in (".", ","):
            raise UserErrorException(
                explain("decimal_mark=%r is neither '.' nor ','." % (decimal_mark,))
            )
        return DataType({"type": "float", "decimal_mark": decimal_mark})

    @staticmethod
    def to_long():
        """Whole numbers."""
        return DataType({"type": "long"})

    @staticmethod
    def to_string():
        """Texts, as they stand in the file."""
        return DataType({"type": "string"})

    @staticmethod
    def to_stream(*args, **kwargs):
        """Not supported: cells that are files themselves."""
        raise UserErrorException(
            explain(
                "DataType.to_stream() is not supported.",
                fix="Keep the paths as texts and open them.",
            )
        )

    def __repr__(self):
        return "DataType(%r)" % (self.definition,)


def _list(given):
    return [given] if isinstance(given, str) else list(given or ())
