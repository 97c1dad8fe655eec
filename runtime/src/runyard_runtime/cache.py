"""The node's cache of fetched data: one folder, shared by all jobs and safe under kill -9.

    contents/ab/cdef…    whole contents, named by their sha256, read-only
    names/ab/cdef…       what an address had at a stamp: a link whose text is DIGEST:SIZE
    partial/KEY[.json]   what is being fetched, and of what it is a part
    leases/PID-START/    links that a mount holds, so that nothing it uses is evicted

A partial file is its own lock: whoever holds it fetches, others wait and then find the content, or
go on from the part if the holder died. A content appears by a rename, so it is whole or not there.
A name is a link to nowhere because that is one step to make, to read and to replace.

A content with more than one link is laid out in some job and is not evicted: it would free nothing.
Every content has the same odd modification time; one that has another was written to through a
link (its owner can, read-only or not), so it is thrown away and fetched again.
"""

import errno
import fcntl
import hashlib
import io
import os
import shutil
import threading
import time

from runyard_runtime import processes
from runyard_runtime.fetch import (
    Fetched,
    FetchFailed,
    load_beginning,
    make_empty,
    not_kept,
    save,
    stamps_differ,
)
from runyard_runtime.origins import digest_of, stamp_of

UNTOUCHED = 978307200 * 10**9  # 2001-01-01: the modification time of every whole content
_FICLONE = 0x40049409
_YOUNG_SECONDS = 10.0  # what was used this recently is about to be laid out
_STALE_SECONDS = 7 * 24 * 3600.0  # a part that nobody went on from in that time
_FILL_TO = 0.9  # evicting goes on until there is some room, or it would be done for every file
_WORTH_RESUMING = 1 << 20  # bytes; less is fetched again, which is cheaper than to keep a note
_LOOK_EVERY = 0.05  # of the limit: how much arrives between two looks at the size


class _Another(Exception):
    """What is about to arrive is not what was listed; the text says how."""


class Cache:
    """Contents on this node. `scope` keeps apart what has no stamp: the run's id."""

    def __init__(
        self, folder, limit_bytes, origins, scope="", young_seconds=_YOUNG_SECONDS, is_root=None
    ):
        self._folder = folder
        self._limit = limit_bytes
        self._origins = origins
        self._scope = scope
        self._young = young_seconds
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self._since = 0
        self._lock = threading.Lock()
        self._lease = None
        for name in ("contents", "names", "partial", "leases"):
            os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)

    def find(self, file):
        """Where its whole content is on this node, or None."""
        digest, size = self._known(file)
        if digest is None:
            return None
        place = self._content(digest)
        try:
            known = os.stat(place)
        except OSError:
            return None
        if known.st_mtime_ns != UNTOUCHED or known.st_size != size:
            _unlink(place)
            return None
        try:
            os.utime(place, ns=(int(time.time() * 1e9), UNTOUCHED))
        except OSError:
            pass  # somebody else's cache: then it is evicted earlier
        return place

    def ensure(self, file, arrived=None, opened=None):
        """Where its whole content is, fetched if need be. FetchFailed if it cannot be had.

        `arrived(count)` is told of every piece; `opened(handle)` gets the file that is filled.
        """
        key = self._key(file)
        while True:
            place = self.find(file)
            if place is not None:
                return place
            try:
                stream = self._open_partial(key)
            except OSError as error:
                raise not_kept(repr(file.path), error)
            if stream is None:
                continue  # somebody else has just finished it
            with stream:
                if self.find(file) is not None:
                    # It was finished between our look and our lock, and this part is a new one.
                    _unlink(self._partial(key))
                    continue
                if opened is not None:
                    opened(stream.fileno())
                self._fill(file, key, stream, arrived)

    def has(self, file):
        """True if it can be laid out read-only at no cost."""
        return self.find(file) is not None

    def lay(self, file, target, private, arrived=None):
        """Put it at `target`: the job's own copy, or a read-only link."""
        tries = 0
        while True:
            tries += 1
            try:
                self._put(file, target, private, arrived)
                return
            except OSError as error:
                # It may have been evicted between the two steps.
                if error.errno != errno.ENOENT or tries > 2:
                    raise not_kept(repr(file.path), error)

    def hold(self, place):
        """Keep a content from being evicted while this process lives."""
        with self._lock:
            if self._lease is None:
                me = os.getpid()
                name = "%d-%d" % (me, processes.start_time(me))
                self._lease = os.path.join(self._folder, "leases", name)
                os.makedirs(self._lease, mode=0o700, exist_ok=True)
        if place.startswith(self._folder):
            try:
                os.link(place, os.path.join(self._lease, place[-62:]))
            except OSError:
                pass  # held already; or this filesystem has no links, and recent use protects it

    def let_go(self):
        """Give back what `hold` held."""
        if self._lease is not None:
            shutil.rmtree(self._lease, ignore_errors=True)

    def make_room(self, extra=0):
        """Evict what was used longest ago, until `extra` bytes fit below the limit."""
        with open(os.path.join(self._folder, "evicting"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # somebody else does it
            self._end_leases()
            entries = sorted(self._entries())
            total = sum(size for _, size, _, _ in entries)
            if total + extra <= self._limit:
                return
            before = time.time() - self._young
            for used, size, links, place in entries:
                if total + extra <= self._limit * _FILL_TO or used > before:
                    break
                if links == 1 and self._drop(place):
                    total -= size

    def _fill(self, file, key, stream, arrived):
        note = self._partial(key) + ".json"
        for again in (True, False):
            try:
                found = self._fetch(file, stream, note, arrived)
                break
            except (FetchFailed, OSError) as error:
                failed = not_kept(repr(file.path), error) if isinstance(error, OSError) else error
                if not (failed.disk_full and again):
                    raise failed
                self.make_room(self._limit // 10)
        self._check(file, found, stream)
        digest, size = found.digest, found.size
        try:
            os.fchmod(stream.fileno(), 0o444)
            os.utime(stream.fileno(), ns=(int(time.time() * 1e9), UNTOUCHED))
            if digest_of(file) is None:
                self._name(key, digest, size)  # first: with the rename it is there for all
            self._move(self._partial(key), self._content(digest))
        except OSError as error:
            raise not_kept(repr(file.path), error)
        self._count(size)

    def _fetch(self, file, stream, note, arrived):
        """What was put into the partial file, as `Fetched`."""
        local = self._origins.local(file)
        if local is not None:
            make_empty(stream)
            return _copy_and_hash(local, stream)
        is_small = 0 <= file.size < _WORTH_RESUMING

        def begun(beginning):
            why = _difference(file, beginning.total, beginning.stamp)
            if why:
                raise _Another(why)  # before a reader who follows gets any of it
            if not is_small:
                save(note, beginning)

        try:
            before = None if is_small else load_beginning(note)
            found = self._origins.fetch(file, stream, before, begun, arrived)
        except _Another as error:
            raise _not_what_it_was(file, str(error))
        if not is_small:
            _unlink(note)
        return found

    def _move(self, partial, place):
        try:
            os.rename(partial, place)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.rename(partial, place)

    def _check(self, file, found, stream):
        wanted = digest_of(file)
        if wanted is not None and found.digest != wanted:
            stream.truncate(0)
            raise FetchFailed("%r arrived damaged." % file.path, "Its digest is another one.")
        why = _difference(file, found.size, found.stamp)
        if why:
            stream.truncate(0)
            raise _not_what_it_was(file, why)

    def _open_partial(self, key):
        """The locked partial file, or None if it became a content while we waited for it."""
        path = self._partial(key)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            mine = os.fstat(handle)
            if (mine.st_ino, mine.st_dev) == _identity(path):
                return io.open(handle, "r+b", buffering=0)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _known(self, file):
        """(digest, size) of its content, as far as this node knows."""
        digest = digest_of(file)
        if digest is not None:
            return digest, file.size
        try:
            text = os.readlink(self._name_path(self._key(file)))
        except OSError:
            return None, -1
        digest, _, size = text.partition(":")
        if file.size not in (-1, int(size)):
            return None, -1
        return digest, int(size)

    def _key(self, file):
        digest = digest_of(file)
        if digest is not None:
            return digest
        # Without a stamp nobody can tell whether it is still the same: for this run alone.
        scope = "" if file.stamp else self._scope
        text = "\n".join((file.origin, file.stamp, scope))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def _name(self, key, digest, size):
        path, text = self._name_path(key), "%s:%d" % (digest, size)
        try:
            os.symlink(text, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOENT):
                raise
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            temporary = "%s.%d.%d" % (path, os.getpid(), threading.get_ident())
            os.symlink(text, temporary)
            os.rename(temporary, path)

    def _put(self, file, target, private, arrived):
        # Never the server's own blob: whoever owns a link can write through it.
        place = self.ensure(file, arrived)
        if private:
            self._copy(place, target, 0o644)
        elif self._is_root:
            # Root heeds no read-only mode: what one script wrote, others would read.
            self._copy(place, target, 0o444)
        else:
            self._link(place, target)

    def _link(self, place, target):
        try:
            os.link(place, target)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise
            if error.errno == errno.EEXIST:
                os.unlink(target)
                self._link(place, target)
            else:
                self._copy(place, target, 0o444)  # another disk, or no links there

    def _copy(self, place, target, mode):
        temporary = "%s.%d.new" % (target, os.getpid())
        try:
            with io.open(temporary, "wb", buffering=0) as stream:
                _copy_bytes(place, stream)
                os.fchmod(stream.fileno(), mode)
            os.rename(temporary, target)
        except BaseException:
            _unlink(temporary)
            raise

    def _count(self, size):
        with self._lock:
            self._since += size
            look = self._since > self._limit * _LOOK_EVERY
            if look:
                self._since = 0
        if look:
            self.make_room()

    def _entries(self):
        """(last use, size, links, path) of contents and of parts that nobody works on."""
        for folder in _scan(os.path.join(self._folder, "contents")):
            for entry in _scan(folder.path):
                try:
                    known = entry.stat()
                except OSError:
                    continue
                yield known.st_atime, known.st_size, known.st_nlink, entry.path
        for entry in _scan(os.path.join(self._folder, "partial")):
            try:
                known = entry.stat()
            except OSError:
                continue
            yield known.st_mtime, known.st_size, known.st_nlink, entry.path
            if known.st_mtime < time.time() - _STALE_SECONDS:
                self._drop(entry.path)

    def _drop(self, place):
        """Remove a content, or a part that nobody holds."""
        try:
            handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(place)
            return True
        except OSError:
            return False
        finally:
            os.close(handle)

    def _end_leases(self):
        for entry in _scan(os.path.join(self._folder, "leases")):
            pid, _, start = entry.name.partition("-")
            if not (start.isdigit() and processes.is_alive(int(pid), int(start))):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _content(self, digest):
        return os.path.join(self._folder, "contents", digest[:2], digest[2:])

    def _name_path(self, key):
        return os.path.join(self._folder, "names", key[:2], key[2:])

    def _partial(self, key):
        return os.path.join(self._folder, "partial", key)


def _difference(file, size, stamp):
    """How a content differs from the one that was listed; "" as far as is known."""
    if file.size >= 0 and size not in (-1, file.size):
        return "It had %d bytes and has %d now." % (file.size, size)
    if stamps_differ(stamp_of(file), stamp):
        return "It was written to: its stamp was %s and is %s now." % (stamp_of(file), stamp)
    return ""


def _not_what_it_was(file, why):
    return FetchFailed(
        "%r is not what it was when the run's data was listed." % file.path,
        why,
        "Submit the run again to use the new content.",
    )


def _copy_bytes(place, stream):
    """Copy a file into an open one; shared blocks where the filesystem can."""
    with io.open(place, "rb", buffering=0) as source:
        if _share_blocks(source, stream):
            return
        left = os.fstat(source.fileno()).st_size
        offset = 0
        while left:
            try:
                count = os.sendfile(stream.fileno(), source.fileno(), offset, left)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS) or offset:
                    raise
                shutil.copyfileobj(source, stream, 1 << 20)
                return
            if not count:
                return
            offset += count
            left -= count


def _copy_and_hash(place, stream):
    """Copy a file into an open, empty one, and tell what arrived there."""
    hashed, size = hashlib.sha256(), 0
    with io.open(place, "rb", buffering=0) as source:
        shared = _share_blocks(source, stream)
        for piece in iter(lambda: (stream if shared else source).read(1 << 20), b""):
            if not shared:
                view = memoryview(piece)
                while view:  # an unbuffered file may take less than all
                    view = view[stream.write(view) :]
            hashed.update(piece)
            size += len(piece)
    return Fetched(size, hashed.hexdigest(), "")


def _share_blocks(source, stream):
    """Have an open file share the blocks of another; False if the filesystem cannot."""
    try:
        fcntl.ioctl(stream.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _identity(path):
    try:
        known = os.stat(path)
    except OSError:
        return None
    return known.st_ino, known.st_dev


def _scan(folder):
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass
