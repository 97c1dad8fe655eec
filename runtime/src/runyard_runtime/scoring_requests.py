"""v1's `AMLRequest`, `AMLResponse` and `rawhttp`: a request as it came, a response as it goes.

They read like Flask's, which v1's were, without needing it.
"""

import io
import json
import re
import urllib.parse

_RAW = "_runyard_rawhttp"
# name="a; \"quoted\" value" or name=value. Browsers do not escape the backslash itself.
_OPTIONS = re.compile(r';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))')


def rawhttp(func):
    """Let `run` get the request itself, an `AMLRequest`, instead of its body as text."""
    setattr(func, _RAW, True)
    return func


def is_raw(func):
    """Whether `run` was decorated with `rawhttp`, also below other decorators."""
    while func is not None:
        if getattr(func, _RAW, False):
            return True
        func = getattr(func, "__wrapped__", None)
    return False


class Headers(dict):
    """Header names in any case."""

    def __init__(self, items=()):
        super(Headers, self).__init__()
        for name, value in dict(items).items():
            self[name] = value

    def __setitem__(self, name, value):
        super(Headers, self).__setitem__(name.title(), value)

    def __getitem__(self, name):
        return super(Headers, self).__getitem__(name.title())

    def __contains__(self, name):
        return super(Headers, self).__contains__(name.title())

    def __delitem__(self, name):
        super(Headers, self).__delitem__(name.title())

    def get(self, name, default=None):
        """The value of a header, or `default`."""
        return super(Headers, self).get(name.title(), default)

    def pop(self, name, *default):
        """The value of a header, which is gone then."""
        return super(Headers, self).pop(name.title(), *default)

    def setdefault(self, name, default=None):
        """The value of a header; set to `default` first if it is not there."""
        return super(Headers, self).setdefault(name.title(), default)

    def update(self, *args, **more):
        """Set several headers."""
        for name, value in dict(*args, **more).items():
            self[name] = value

    def copy(self):
        """The same headers again."""
        return Headers(self)


class Values(dict):
    """Fields of a query or a form: the first value of each, all of them by `getlist`."""

    def __init__(self, pairs=()):
        super(Values, self).__init__()
        self._all = {}
        for name, value in pairs:
            self._all.setdefault(name, []).append(value)
            self.setdefault(name, value)

    def get(self, name, default=None, type=None):
        """The first value, converted by `type`; `default` where it is missing or does not fit."""
        if name not in self:
            return default
        try:
            return self[name] if type is None else type(self[name])
        except ValueError:
            return default

    def getlist(self, name):
        """All values of a field."""
        return list(self._all.get(name, []))

    def pairs(self):
        """(name, value) of all values."""
        return [(name, value) for name, values in self._all.items() for value in values]

    def to_dict(self, flat=True):
        """A plain dictionary of first values, or of lists of all."""
        return dict(self) if flat else dict(self._all)


class Upload(io.BytesIO):
    """A file of a form."""

    def __init__(self, data, filename, content_type):
        super(Upload, self).__init__(data)
        self.filename = filename
        self.content_type = self.mimetype = content_type

    @property
    def stream(self):
        """The file itself, as Flask has it."""
        return self

    def save(self, target):
        """Write the file to a path or an open file."""
        if hasattr(target, "write"):
            target.write(self.getvalue())
            return
        with open(target, "wb") as stream:
            stream.write(self.getvalue())


class AMLRequest(object):
    """A request as it came."""

    def __init__(self, method="POST", path="/score", query="", headers=None, body=b""):
        self.method = method
        self.path = path
        self.query_string = query.encode("utf-8")
        self.headers = Headers(headers or {})
        self.args = Values(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.content_type = self.headers.get("Content-Type", "")
        self.mimetype = self.content_type.partition(";")[0].strip().lower()
        self.content_length = len(body)
        self.host = self.headers.get("Host", "localhost")
        self.scheme = self.headers.get("X-Forwarded-Proto", "http")
        self.base_url = "%s://%s%s" % (self.scheme, self.host, path)
        self.full_path = path + "?" + query
        self.url = self.base_url + ("?" + query if query else "")
        self._body = body
        self._form = None

    @property
    def data(self):
        """The body; empty if it was a form, as in Flask."""
        forms = ("application/x-www-form-urlencoded", "multipart/form-data")
        return b"" if self.mimetype in forms else self._body

    def get_data(self, cache=True, as_text=False, parse_form_data=False):
        """The body, as bytes or as text."""
        return self._body.decode("utf-8") if as_text else self._body

    @property
    def stream(self):
        """The body as a file."""
        return io.BytesIO(self._body)

    @property
    def is_json(self):
        """Whether the content type says JSON."""
        return self.mimetype == "application/json" or self.mimetype.endswith("+json")

    @property
    def json(self):
        """The body as JSON."""
        return self.get_json()

    def get_json(self, force=False, silent=False, cache=True):
        """The body as JSON; None where it is none and that was not asked for."""
        if not force and not self.is_json:
            return None
        try:
            return json.loads(self._body.decode("utf-8"))
        except ValueError:
            if silent:
                return None
            raise

    @property
    def form(self):
        """The fields of a form."""
        return self._parsed()[0]

    @property
    def files(self):
        """The files of a form."""
        return self._parsed()[1]

    @property
    def values(self):
        """The fields of the query and of a form."""
        return Values(self.args.pairs() + self.form.pairs())

    def _parsed(self):
        if self._form is None:
            if self.mimetype == "multipart/form-data":
                self._form = _multipart(self._body, _option(self.content_type, "boundary"))
            elif self.mimetype == "application/x-www-form-urlencoded":
                pairs = urllib.parse.parse_qsl(self._body.decode("utf-8"), keep_blank_values=True)
                self._form = Values(pairs), Values()
            else:
                self._form = Values(), Values()
        return self._form


class AMLResponse(object):
    """A response as it goes: a message, its status and headers."""

    def __init__(
        self, message, status_code, response_headers=None, json_str=False, run_function_failed=False
    ):
        self.status_code = int(status_code)
        self.headers = Headers({"Content-Type": "text/html; charset=utf-8"})
        if message is None or json_str:
            self.headers["Content-Type"] = "application/json"
            message = json.dumps({} if message is None else message)
        elif not isinstance(message, (str, bytes, bytearray)):
            # v1 gave such a message to Flask, which made what it could of it.
            self.headers["Content-Type"] = "application/json"
            message = json.dumps(message)
        self.data = message.encode("utf-8") if isinstance(message, str) else bytes(message)
        self.headers["x-ms-run-function-failed"] = str(bool(run_function_failed))
        for name, value in (response_headers or {}).items():
            self.headers[name] = str(value)

    def get_data(self, as_text=False):
        """The body, as bytes or as text."""
        return self.data.decode("utf-8") if as_text else self.data


def _option(header, name):
    """An option of a header: boundary of "multipart/form-data; boundary=x"."""
    for key, quoted, plain in _OPTIONS.findall(header):
        if key.lower() == name:
            return quoted.replace('\\"', '"') if quoted else plain.strip()
    return None


def _multipart(body, boundary):
    """(fields, files) of a form."""
    fields, files = [], []
    if boundary:
        for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))[1:]:
            if part.startswith(b"--"):
                break
            head, _, data = part.partition(b"\r\n\r\n")
            headers = Headers(
                line.split(": ", 1)
                for line in head.decode("utf-8", "replace").split("\r\n")
                if ": " in line
            )
            disposition = headers.get("Content-Disposition", "")
            name = _option(disposition, "name")
            filename = _option(disposition, "filename")
            if filename is None:
                fields.append((name, data.decode("utf-8", "replace")))
            else:
                files.append((name, Upload(data, filename, headers.get("Content-Type"))))
    return Values(fields), Values(files)
