"""The metadata log: what the rest of the server sees of the metadata group, and a group of one.

`MetadataLog` is the seam. Whoever proposes a command gets its result once it is durable and
applied here; whoever watches gets every change, in order. `SingleNodeMetadataLog` is the group
whose only member is this node: a journal and a registry, nothing to agree on.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from jetstream_protocol.errors import (
    JetstreamError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.changes import Change
from jetstream_server.metadata.journal import Entry, Journal, Snapshot, read_snapshot
from jetstream_server.metadata.proposal import Proposal
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.results import SPAN
from jetstream_server.metadata.status import MetadataStatus

COMPACT_AFTER_ENTRIES = 20_000
"""Replaying this many takes about a second; a snapshot of 10,000 streams 40 ms."""
APPLY_CHUNK = 64
"""Commands applied before other tasks of the loop get their turn: a few milliseconds."""

Watcher = Callable[[Change], None]


class MetadataLog(Protocol):
    """The replicated log of metadata commands, and the registry it builds."""

    @property
    def registry(self) -> Registry:
        """Everything applied on this node. It may lag behind the leader; see `barrier`."""

    @property
    def leader(self) -> NodeId:
        """The metadata leader as far as this node knows, NO_NODE without one."""

    async def start(self) -> None:
        """Recover and take part. Raises StorageError if the metadata on disk is damaged."""

    async def close(self) -> None:
        """Stop taking part. Proposals under way fail with UnknownOutcomeError."""

    async def propose(self, command: dict[str, Any]) -> dict[str, Any]:
        """The result of the command, applied on this node too when this returns.

        Raises the JetstreamError of a refused command, UnavailableError when there is no leader
        (nothing was done), UnknownOutcomeError when it may or may not be applied. A register_node
        without `session` gets this process's own.
        """

    def prepare(self, command: dict[str, Any]) -> Proposal:
        """The command, to be proposed until its outcome is known."""

    async def barrier(self) -> int:
        """Wait until everything committed before this call is applied here; its revision.

        Raises UnavailableError when there is no leader to ask.
        """

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Call back on the event loop for every later change, in order. Returns how to stop it."""

    def status(self) -> MetadataStatus: ...


class Watchers:
    """Hands changes to callbacks on the loop, in order, one callback's failure not another's."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Watcher] = {}
        self._next = 0

    def add(self, callback: Watcher) -> Callable[[], None]:
        token = self._next
        self._next += 1
        self._callbacks[token] = callback
        return lambda: self._callbacks.pop(token, None) and None

    def notify(self, changes: list[Change]) -> None:
        # As callbacks of the loop each runs under the loop's own exception handler, in this
        # order, and before the proposer that waits for the result goes on.
        loop = asyncio.get_running_loop()
        for change in changes:
            for token in tuple(self._callbacks):
                loop.call_soon(self._call, token, change)

    def _call(self, token: int, change: Change) -> None:
        callback = self._callbacks.get(token)
        if callback is not None:
            callback(change)


@dataclass(slots=True)
class _Proposal:
    command: str
    outcome: asyncio.Future[str]


class SingleNodeMetadataLog:
    """A metadata group of one. Concurrent proposals share one flush."""

    def __init__(
        self, directory: str, node_id: NodeId, *, compact_after_entries: int = COMPACT_AFTER_ENTRIES
    ) -> None:
        self.registry = Registry()
        self.node_id = node_id
        self._directory = directory
        self._compact_after_entries = compact_after_entries
        self._session = secrets.token_hex(8)
        self._watchers = Watchers()
        self._queue: asyncio.Queue[_Proposal | None] = asyncio.Queue()
        self._committer: asyncio.Task[None] | None = None
        self._stopped = "the metadata log has not started"
        # One thread: the journal is used by one at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-journal")

    @property
    def leader(self) -> NodeId:
        return self.node_id

    async def start(self) -> None:
        self._journal = await self._in_thread(self._recover)
        self._stopped = ""
        self._committer = asyncio.create_task(self._commit_forever(), name="metadata-committer")

    async def close(self) -> None:
        if self._committer is not None:
            self._stopped = self._stopped or "this server is stopping"
            self._queue.put_nowait(None)
            await self._committer
            await self._in_thread(self._journal.close)
        self._thread.shutdown()

    async def propose(self, command: dict[str, Any]) -> dict[str, Any]:
        if command.get("op") == "register_node":
            command = {"session": self._session, **command}
        return await self.prepare(command).submit()

    def prepare(self, command: dict[str, Any]) -> Proposal:
        return Proposal(command, lambda *_: self._submit(json.dumps(command)))

    async def barrier(self) -> int:
        result = json.loads(await self._submit('{"op":"barrier"}'))
        return int(result["revision"])

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return self._watchers.add(callback)

    def status(self) -> MetadataStatus:
        return MetadataStatus(
            node_id=self.node_id,
            leader=self.node_id,
            role="leader",
            term=self._journal.term,
            revision=self.registry.revision,
            commit_index=self._journal.last_index,
            applied_index=self.registry.revision,
            journal_entries=len(self._journal),
            journal_bytes=self._journal.size_bytes,
            voters=(self.node_id,),
            connected=(),
        )

    async def _submit(self, command: str) -> str:
        if self._stopped:
            raise UnavailableError(f"metadata cannot change: {self._stopped}")
        proposal = _Proposal(command, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(proposal)
        return await proposal.outcome

    async def _commit_forever(self) -> None:
        """Take what has queued up, make it durable, apply it; until told to stop."""
        stopping = False
        while not stopping:
            proposals: list[_Proposal] = []
            item = await self._queue.get()
            while True:
                if item is None:
                    stopping = True
                else:
                    proposals.append(item)
                if self._queue.empty() or len(proposals) == SPAN:
                    break
                item = self._queue.get_nowait()
            await self._commit(proposals)
            if len(self._journal) >= self._compact_after_entries:
                await self._compact()

    async def _commit(self, proposals: list[_Proposal]) -> None:
        first = self.registry.revision + 1
        entries = [
            Entry(proposal.command.encode(), first + position, 0)
            for position, proposal in enumerate(proposals)
        ]
        try:
            await self._in_thread(self._make_durable, entries)
        except StorageError as error:
            self._fail(proposals, error)
            return
        for position, proposal in enumerate(proposals):
            result = self.registry.apply(proposal.command, first + position)
            self._watchers.notify(self.registry.take_changes())
            if not proposal.outcome.done():
                proposal.outcome.set_result(result)
            if position % APPLY_CHUNK == APPLY_CHUNK - 1:
                await asyncio.sleep(0)

    async def _compact(self) -> None:
        index = self.registry.revision
        snapshot = Snapshot(index, 0, self.registry.snapshot())
        try:
            await self._in_thread(self._install, snapshot)
        except StorageError as error:
            self._fail([], error)

    def _fail(self, proposals: list[_Proposal], error: JetstreamError) -> None:
        self._stopped = error.message
        for proposal in proposals:
            if not proposal.outcome.done():
                proposal.outcome.set_exception(
                    UnknownOutcomeError(f"it is unknown whether this was stored: {error.message}")
                )

    def _make_durable(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._journal.append(entry)
        self._journal.sync()

    def _install(self, snapshot: Snapshot) -> None:
        self._journal.install(snapshot, keep_from=snapshot.index + 1)

    def _recover(self) -> Journal:
        journal = Journal.open(self._directory)
        snapshot = read_snapshot(self._directory)
        if snapshot is not None:
            self.registry.restore(snapshot.data)
        for entry in journal.entries(self.registry.revision + 1):
            self.registry.apply(entry.data.decode(), entry.index)
        self.registry.take_changes()  # Nobody watches yet; the registry itself is the start.
        return journal

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
