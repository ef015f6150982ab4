"""From where connections come, and which of those that are not authenticated goes first."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Generic, TypeVar
from urllib.parse import unquote

K = TypeVar("K", bound=Hashable)

_HOST_BITS = 64


@lru_cache(4096)
def origin_of(host: str) -> str:
    """The network that a host counts as: an IPv6 host its /64, because whoever has one of its
    addresses has all of them; every other host itself."""
    try:
        address = IPv6Address(host.partition("%")[0])
    except AddressValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS)}/64"


def origin_of_peer(peer: str) -> str:
    """Like `origin_of`, for a peer as a port names it: with or without a port, or as gRPC says it
    ("ipv6:%5B::1%5D:40000")."""
    text = unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
    if text.startswith("["):
        return origin_of(text[1:].partition("]")[0])
    origin = origin_of(text)
    return origin if origin != text or ":" not in text else origin_of(text.rpartition(":")[0])


class Strangers(Generic[K]):
    """Connections that are not authenticated, by origin. Each call costs the same however many
    connections and origins there are: a stranger may have thousands of networks."""

    def __init__(self) -> None:
        self._origins: dict[K, str] = {}
        self._by_origin: dict[str, dict[K, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}  # origins with so many, none empty
        self._most = 0  # connections of one origin

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, connection: K) -> bool:
        return connection in self._origins

    def add(self, connection: K, origin: str) -> None:
        self.discard(connection)
        self._origins[connection] = origin
        of_origin = self._by_origin.setdefault(origin, {})
        of_origin[connection] = None
        self._moved(origin, len(of_origin) - 1, len(of_origin))

    def discard(self, connection: K) -> None:
        """Note that it was authenticated, or has ended."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        of_origin = self._by_origin[origin]
        del of_origin[connection]
        self._moved(origin, len(of_origin) + 1, len(of_origin))
        if not of_origin:
            del self._by_origin[origin]

    def _moved(self, origin: str, before: int, after: int) -> None:
        """The origin had `before` connections and has `after`, one more or one less."""
        if before:
            del self._by_count[before][origin]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[origin] = None
        if after > self._most or self._most not in self._by_count:
            self._most = after

    def pop(self, origin: str | None = None) -> K | None:
        """Take out the one that must make room: of that origin, or of the one with most, the
        oldest. It has had the most time to authenticate. None: there is none."""
        if origin is None:
            origin = next(iter(self._by_count.get(self._most, ())), None)
        found = {} if origin is None else self._by_origin.get(origin, {})
        oldest = next(iter(found), None)
        if oldest is not None:
            self.discard(oldest)
        return oldest
