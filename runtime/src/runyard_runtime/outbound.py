"""Where a request may go: mirrors, proxies, and addresses that are nobody's business."""

import ipaddress
import socket
from urllib.parse import unquote, urlsplit

from runyard_runtime.http_connection import basic

# Public by their number, but a cloud's own: they hand out credentials of the machine.
_METADATA = ("168.63.129.16",)
# Public by what this Python knows of them, but never a server's: 6to4 relays, and sites' own.
_CLOSED = (ipaddress.ip_network("192.88.99.0/24"), ipaddress.ip_network("fec0::/10"))
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 behind NAT64


def mirrored(url, mirrors):
    """`url` with the longest prefix that the mirror map knows replaced."""
    for prefix in sorted(mirrors or {}, key=len, reverse=True):
        rest = url[len(prefix) :]
        # "http://a.b" is no prefix of "http://a.bad".
        whole = prefix.endswith("/") or not rest or rest[0] in "/?#"
        if url.startswith(prefix) and whole:
            return mirrors[prefix] + rest
    return url


def shown(url):
    """`url` without what may be secret in it: a password, the query."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "that address"
    text = "%s://%s%s" % (parts.scheme, netloc, parts.path)
    return text + "?…" if parts.query else text


def is_public(address):
    """True if the address, as text, is one of the open internet."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if found.version == 6:
        inner = found.ipv4_mapped or found.sixtofour
        if found in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    closed = found.is_private or found.is_loopback or found.is_link_local or found.is_reserved
    closed = closed or found.is_multicast or found.is_unspecified or not found.is_global
    closed = closed or any(found in network for network in _CLOSED)
    return not closed and str(found) not in _METADATA


def resolve(host, port):
    """[(family, socket address), …] of a name, asked once. OSError if it has none."""
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def proxy_for(scheme, host, environ):
    """The proxy that the environment wants for this, as (host, port, authorization), or None."""
    if is_own_machine(host):
        return None  # no proxy can reach what is on this machine
    names = ("%s_proxy" % scheme, "all_proxy")
    values = [environ.get(name) or environ.get(name.upper()) for name in names]
    address = next((value for value in values if value), None)
    if not address or _excluded(host, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    parts = urlsplit(address if "://" in address else "http://" + address)
    authorization = None
    if parts.username is not None:
        authorization = basic(unquote(parts.username), unquote(parts.password or ""))
    return parts.hostname, parts.port or 80, authorization


def is_own_machine(host):
    """True for the names and numbers of the loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _excluded(host, rules):
    for rule in (one.strip().lower().lstrip(".") for one in rules.split(",")):
        if rule == "*" or (rule and (host == rule or host.endswith("." + rule))):
            return True
        if "/" in rule:
            try:
                if ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False):
                    return True
            except ValueError:
                pass
    return False
