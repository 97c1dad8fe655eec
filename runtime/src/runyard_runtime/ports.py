"""Where the processes of a job listen: the address of a node, and ports that are theirs alone.

A port is *reserved*, not hoped for. It lies below the range from which the system gives ports to
outgoing connections, nobody listens on it, and an abstract unix socket of its name keeps other
jobs of this machine off it. Keepers that the agent forks inherit that socket, so it is held as long
as a rank lives, whatever becomes of the agent. Those that mpirun starts do not: then the next agent
takes the port again, and nobody holds it for the moment in between.
"""

import errno
import random
import re
import socket

from runyard_runtime.ranks import CannotBegin

_LOWEST = 20000
_USUAL_RANGE = 32768  # where Linux's own range begins unless somebody moved it
_LEAST_CHOICE = 1000
_TRIES = 2000
_RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"


class NoPorts(CannotBegin):
    """A node has no free ports for the job; the text says why."""


class Reservation:
    """Ports of this machine that are a job's; held until `release`, or the end of this process."""

    def __init__(self):
        self.ports = []
        self._held = []

    def take(self, address, count):
        """Reserve so many more on that address. NoPorts if there are not as many."""
        if count and not can_listen(address):
            raise NoPorts("%s is not an address of this node." % address)
        low, high = choices()
        for _ in range(_TRIES):
            if len(self.ports) >= count:
                return self
            port = random.randrange(low, high)
            if port not in self.ports and self._hold(port):
                if is_free(address, port):
                    self.ports.append(port)
                else:
                    self._held.pop().close()
        raise NoPorts(
            "%d ports are needed on %s, and among %d to %d only %d are free."
            % (count, address, low, high - 1, len(self.ports))
        )

    def take_again(self, ports):
        """Hold the ports of an earlier agent, whose ranks may already listen on them."""
        for port in ports:
            self._hold(port)
            self.ports.append(port)
        return self

    def release(self):
        """Let others have them."""
        for holder in self._held:
            holder.close()
        self._held = []

    def _hold(self, port):
        """False if another job has it."""
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind("\0runyard-port-%d" % port)
        except OSError as error:
            holder.close()
            return error.errno != errno.EADDRINUSE and self._hold_nothing()
        self._held.append(holder)
        return True

    def _hold_nothing(self):
        # A system without abstract sockets: that nobody listens there has to do.
        self._held.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        return True


def choices(range_file=_RANGE_FILE):
    """(first, last + 1) of the ports to choose from: the system gives them to nobody else."""
    try:
        with open(range_file) as stream:
            low = int(stream.read().split()[0])
    except (OSError, ValueError, IndexError):
        low = _USUAL_RANGE
    if low >= _LOWEST + _LEAST_CHOICE:
        return _LOWEST, low
    return (_LOWEST // 2, low) if low >= _LOWEST // 2 + _LEAST_CHOICE else (_LOWEST, _USUAL_RANGE)


def is_free(address, port):
    """True if a process can listen there, also one that listens on all addresses."""
    places = [(socket.AF_INET, address), (socket.AF_INET, ""), (socket.AF_INET6, "::")]
    return all(_can_bind(family, where, port) for family, where in places)


def can_listen(address):
    """True if that is an address of this machine."""
    return _can_bind(socket.AF_INET, address, 0)


def own_address(node, one_machine, url):
    """The address by which other nodes reach this one.

    Nodes that share a machine get loopback addresses of their own where the system has them, so
    that ports never collide. Elsewhere it is the address from which the server is reached; NoPorts
    if that is one which other machines cannot reach.
    """
    if one_machine:
        address = "127.%d.%d.%d" % tuple((node + 1) >> shift & 255 for shift in (16, 8, 0))
        return address if can_listen(address) else "127.0.0.1"
    host = _host_of(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host or "192.0.2.1", 9))  # sends nothing: only asks for the route
            address, why = probe.getsockname()[0], ""
    except OSError as error:
        address, why = "127.0.0.1", " (%s)" % error
    if address.startswith("127."):
        raise NoPorts(
            "Other nodes cannot reach this one: towards the server, %s, it has no address but "
            "%s%s. Have the server's address be one of its network, and the node be in it."
            % (url, address, why)
        )
    return address


def is_loopback(url):
    """True if the server is reached without leaving its machine."""
    host = _host_of(url)
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _host_of(url):
    found = re.match(r"\w+://(?:[^/@]*@)?(\[[^\]]*\]|[^/:]*)", url or "")
    return found.group(1).strip("[]") if found else ""


def _can_bind(family, where, port):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((where, port))
            return True
    except OSError as error:
        # A machine without IPv6 has nobody who listens there.
        return family == socket.AF_INET6 and error.errno != errno.EADDRINUSE
