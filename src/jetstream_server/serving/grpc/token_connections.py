"""Which callers each gRPC connection had, so that those of a revoked token are closed.

Over gRPC every call has its own token, and a proxy sends the calls of many callers over one
connection. So a connection is closed once the tokens of all its callers were revoked or have
expired. Until then only the calls that wait are ended (access_control.py). gRPC does not tell when
a connection ends; the sockets of the process do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.close_peer import address_of, close_peers, each_connection
from jetstream_server.serving.grpc.connection_limiter import CONNECTIONS_MAX

PEERS_MAX = 2 * CONNECTIONS_MAX
"""Connections remembered. Above it, those that have ended are forgotten: at least half of them."""
CALLERS_MAX = 16
"""Callers remembered of one connection: the last new ones."""
RETRY_SECONDS = 1.0

logger = structlog.get_logger("jetstream.api")


class TokenConnections:
    """Belongs to the node's loop. port: our own. signed_in: called with a peer and whether it is a
    node, once it has made a call in somebody's name; with security off, once it has made a call."""

    def __init__(
        self,
        access: AccessControl,
        port: int,
        signed_in: Callable[[str, bool], None] = lambda peer, is_node: None,
    ) -> None:
        self._access = access
        self._signed_in = signed_in
        self._port = port
        self._callers: dict[str, dict[str, Identity]] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def called(self, peer: str, caller: Identity) -> None:
        """Note a call."""
        if not self._access.is_stranger(caller):
            self._signed_in(peer, caller.is_node)
        if not self._access.enabled:
            return
        callers = self._callers.get(peer)
        if callers is None:
            if len(self._callers) >= PEERS_MAX:
                self._forget_ended()
            callers = self._callers[peer] = {}
        if caller.key not in callers:
            if len(callers) == CALLERS_MAX:
                del callers[next(iter(callers))]
            callers[caller.key] = caller

    def close_ended(self) -> None:
        """Close the connections whose callers' tokens were all revoked or have expired. If there is
        no descriptor left to look with, that is tried again."""
        ended = [
            peer
            for peer, callers in self._callers.items()
            if all(self._access.has_ended(each) for each in callers.values())
        ]
        if not ended:
            return
        try:
            close_peers(ended, self._port)
        except OSError as error:
            logger.warning("connections_not_closed", reason=str(error))
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.close_ended)
            return
        for peer in ended:
            del self._callers[peer]

    def _forget_ended(self) -> None:
        """Forget the connections that have ended; none if there is no descriptor left to look
        with."""
        open_now = set()
        try:
            each_connection(self._port, lambda address, _: open_now.add(address))
        except OSError:
            return
        self._callers = {
            peer: callers for peer, callers in self._callers.items() if address_of(peer) in open_now
        }
