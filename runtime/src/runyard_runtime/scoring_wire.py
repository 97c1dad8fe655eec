"""The contract between a service's front end and its workers: frames over a local socket.

A worker listens on a Unix socket; the front end connects. Numbers are big-endian.

    worker → front    one hello: a u32 length and that many bytes of JSON, see `Hello` below
    front → worker    batches:   a u32 count, then `count` requests
    worker → front    replies:   a u32 count, then `count` replies, in the order of the requests

    request           u32 length of the head, u32 length of the body, head, body
    reply             u16 status, u32 length of the head, u32 length of the body, head, body

A head is JSON, or empty for the common case. Of a request: {"method", "path", "query", "headers",
"model"} as far as they matter; empty is a POST of JSON to the scoring path. Of a reply:
{"headers": {name: value}}; empty is Content-Type: application/json. A body is passed on as it
came: only the worker, which knows the model, looks into it, so that the front end costs little.

The front end sends a batch of at most `max_batch` requests and the next one when the replies of
the one before have come. A worker that dies takes at most the batch it was given: the front end
gives that one to another worker, once.

The hello says what the worker serves:

    scorer      the row of the scorer table that answers: script, sklearn, onnx, tensorflow, …
    max_batch   how many requests it takes at once; 1: the model does not take batches
    methods     HTTP methods it answers, ["POST"] by default; a raw script may take more
    headers     true: every request comes with a head, for the script looks at its headers
    inputs      [{"name", "datatype", "shape"}, …] in the words of the Open Inference Protocol
    outputs     the same
    platform    for /v2 metadata, e.g. "onnxruntime_onnxv1"
    sample      an example of a request body, or null
    swagger     {"input": schema, "output": schema} of the scoring path, or null
    models      [{"name", "version"}, …]
"""

import json
import struct

_COUNT = struct.Struct("!I")
_REQUEST = struct.Struct("!II")
_REPLY = struct.Struct("!HII")

FRAME_LIMIT_BYTES = 1 << 30  # of one head or body; what claims to be longer is no frame of ours


class Broken(Exception):
    """The other side is gone, or does not speak this protocol."""


def encode_hello(hello):
    """The bytes of a hello."""
    text = json.dumps(hello).encode("utf-8")
    return _COUNT.pack(len(text)) + text


def encode_batch(requests):
    """The bytes of [(head, body), …]; a head is b"" or JSON."""
    parts = [_COUNT.pack(len(requests))]
    for head, body in requests:
        parts += (_REQUEST.pack(len(head), len(body)), head, body)
    return b"".join(parts)


def encode_replies(replies):
    """The bytes of [(status, head, body), …]."""
    parts = [_COUNT.pack(len(replies))]
    for status, head, body in replies:
        parts += (_REPLY.pack(status, len(head), len(body)), head, body)
    return b"".join(parts)


def read_hello(stream):
    """The hello, from a binary stream with read(n)."""
    return json.loads(_exactly(stream, _length(_exactly(stream, 4))).decode("utf-8"))


def read_batch(stream):
    """[(head, body), …], or None at a clean end of the stream."""
    first = stream.read(4)
    if not first:
        return None
    found = []
    for _ in range(_length(first)):
        head, body = _REQUEST.unpack(_exactly(stream, _REQUEST.size))
        found.append((_exactly(stream, _checked(head)), _exactly(stream, _checked(body))))
    return found


def read_replies(stream):
    """[(status, head, body), …]."""
    found = []
    for _ in range(_length(_exactly(stream, 4))):
        status, head, body = _REPLY.unpack(_exactly(stream, _REPLY.size))
        found.append((status, _exactly(stream, _checked(head)), _exactly(stream, _checked(body))))
    return found


def split_batch(data):
    """[(head, body), …] of the bytes that have come so far; None: more must come.

    For who cannot wait in a read. The next batch comes after the replies to this one, so that
    bytes behind it are an error.
    """
    here = len(data)
    if here < _COUNT.size:
        return None
    places = []
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(data)[0]):
        if here < at + _REQUEST.size:
            return None
        head, body = _REQUEST.unpack_from(data, at)
        middle = at + _REQUEST.size + _checked(head)
        places.append((at + _REQUEST.size, middle, middle + _checked(body)))
        at = middle + body
        if here < at:
            return None
    if here > at:
        raise Broken("there is something behind the batch")
    if type(data) is not bytes:
        data = memoryview(data)  # so that each part is copied once
    return [(bytes(data[start:middle]), bytes(data[middle:end])) for start, middle, end in places]


def split_hello(data):
    """The hello in the bytes that have come so far; None: more must come."""
    if len(data) < _COUNT.size:
        return None
    end = _COUNT.size + _length(data[: _COUNT.size])
    if len(data) < end:
        return None
    if len(data) > end:
        raise Broken("there is something behind the hello")
    return json.loads(bytes(data[_COUNT.size : end]).decode("utf-8"))


def split_replies(data):
    """[(status, head, body), …] of the bytes that have come so far; None: more must come.

    For who cannot wait in a read. Replies to one batch stand alone, so that bytes behind them
    are an error.
    """
    here = len(data)
    if here < _COUNT.size:
        return None
    found = []
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(data)[0]):
        if here < at + _REPLY.size:
            return None
        status, head, body = _REPLY.unpack_from(data, at)
        middle = at + _REPLY.size + head
        at = middle + body
        if here < at:
            if head > FRAME_LIMIT_BYTES or body > FRAME_LIMIT_BYTES:
                raise Broken("a frame claims %d bytes" % max(head, body))
            return None
        found.append((status, data[middle - head : middle], data[middle:at]))
    if here > at:
        raise Broken("there is something behind the replies")
    return found


def _length(data):
    if len(data) != _COUNT.size:
        raise Broken("the stream ended inside a frame")
    return _checked(_COUNT.unpack(data)[0])


def _checked(length):
    if length > FRAME_LIMIT_BYTES:
        raise Broken("a frame claims %d bytes" % length)
    return length


def _exactly(stream, size):
    data = stream.read(size) if size else b""
    if len(data) != size:
        raise Broken("the stream ended inside a frame")
    return data
