"""The host names under which the API answers: protects against DNS rebinding.

A page on another server can make its own name resolve to this node's address. Its scripts then send
requests to this node as if it were their server, and read the answers. Such requests still have the
page's name in `Host`. **safety** If callers need no token, the API answers only under an address,
`localhost`, or a name that the configuration gives to a node. With tokens no such check is needed:
the page has no token.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_protocol.host_names import is_address


class OwnHosts:
    """names: of the nodes, as clients reach them, without ports."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_plain(name) for name in names} | {"localhost"}

    def check(self, header: str | None) -> None:
        """Check the header `Host`. header: None: there is none; browsers always send one. Raises
        PermissionDeniedError."""
        if header is None:
            return
        name = _plain(_without_port(header))
        if name in self._names or is_address(name):
            return
        raise PermissionDeniedError(
            f"this is not {name[:100]!r}: open the console by an address, as localhost, or by a "
            "name that a node advertises (nodes[].http, nodes[].host)"
        )


def _without_port(header: str) -> str:
    """The host without its port: `::1` for `[::1]:9295`."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
