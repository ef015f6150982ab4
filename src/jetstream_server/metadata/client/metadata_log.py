"""The metadata log: the interface of the metadata group for the server (raft_metadata_log.py).

A proposer gets the result of its command once it is durable and applied here. A watcher gets every
change, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.proposal import Proposal
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.state.changes import Change
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.registry import Registry

Watcher = Callable[[Change], None]


class MetadataLog(Protocol):
    """The replicated log of metadata commands, and the registry it builds."""

    @property
    def registry(self) -> Registry:
        """The state applied on this node. It may lag behind the leader's; see `barrier`."""

    @property
    def leader(self) -> NodeId:
        """The metadata leader as far as this node knows; NO_NODE: there is none."""

    async def start(self) -> None:
        """Recover, and take part. Raises StorageError if the metadata on disk is damaged."""

    async def close(self) -> None:
        """Stop taking part. Pending proposals fail with UnknownOutcomeError."""

    async def propose(self, command: Command) -> dict[str, Any]:
        """Propose a command. Returns its result, once it has been applied on this node.

        Raises the JetstreamError of a refused command, UnavailableError when there is no leader
        (nothing was done), UnknownOutcomeError when the command may or may not be applied.
        """

    def prepare(self, command: Command) -> Proposal:
        """A proposal of the command, for callers that must know its outcome."""

    async def barrier(self) -> int:
        """Wait until everything committed before this call is applied here; return its revision.

        Raises UnavailableError when there is no leader to ask.
        """

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Call back on the event loop for every later change, in order. Returns a function that
        ends it."""

    def status(self) -> MetadataStatus: ...


class Watchers:
    """Passes changes to callbacks on the loop, in order; a failing callback does not affect the
    others."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Watcher] = {}
        self._next = 0

    def add(self, callback: Watcher) -> Callable[[], None]:
        token = self._next
        self._next += 1
        self._callbacks[token] = callback

        def stop() -> None:
            self._callbacks.pop(token, None)

        return stop

    def notify(self, changes: list[Change]) -> None:
        # As loop callbacks they run in this order, each under the loop's exception handler, and
        # before the proposer that waits for the result continues.
        loop = asyncio.get_running_loop()
        for change in changes:
            for token in tuple(self._callbacks):
                loop.call_soon(self._call, token, change)

    def _call(self, token: int, change: Change) -> None:
        callback = self._callbacks.get(token)
        if callback is not None:
            callback(change)
