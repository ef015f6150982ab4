"""Drives the ISR changes that the leaders of this node decide on: ticks, proposals, outcomes.

Only streams that have something to wait for are looked at: one that is settled
(`LeaderState.is_settled`) costs nothing until it is stirred by an append, a fetch of a replica that
is out of sync, or metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnknownEpochError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.background import run_in_background
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.proposal import Proposal
from jetstream_server.replication.isr import IsrChange, Outcome
from jetstream_server.replication.liveness import Liveness
from jetstream_server.replication.replica import Replica

TICK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.replication")


class IsrDriver:
    """`start`, then `close`."""

    def __init__(self, metadata: MetadataLog, *, node_id: int, now_us: Callable[[], int]) -> None:
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._now_us = now_us
        self._led: dict[Replica, None] = {}  # here, with several replicas
        self._unsettled: dict[Replica, None] = {}  # of these
        self._liveness = Liveness()
        self._followers: tuple[NodeId, ...] | None = ()  # of these; None: to be looked up
        self._proposals: dict[int, asyncio.Task[None]] = {}
        # Changes of unknown outcome: the same change again is the same proposal (isr.py).
        self._unknown: dict[int, tuple[IsrChange, Proposal]] = {}
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = run_in_background(self._tick(), "ISR ticks")

    def role_changed(self, replica: Replica) -> None:
        """A RoleListener: only leaderships over other replicas are ticked."""
        leadership = replica.leadership
        if leadership is None or len(replica.stream.replicas) == 1:
            if replica in self._led:
                del self._led[replica]
                self._followers = None
            self._unsettled.pop(replica, None)
            self._unknown.pop(replica.stream.id, None)
            return
        if replica not in self._led:
            self._led[replica] = None
            self._followers = None
        for node_id in replica.stream.replicas:
            leadership.hear(node_id, is_silent=self._liveness.is_silent(node_id))

    def heard(self, node_id: NodeId) -> None:
        """A follower node has said something, if only that it is there."""
        self._liveness.heard(node_id, self._now_us())

    def progressed(self, replica: Replica) -> None:
        """A ProgressListener: there may be something to wait for."""
        if replica.leadership is not None:
            self._unsettled[replica] = None

    def flushed(self, replica: Replica) -> None:
        """Of no concern to the ISR."""

    def failed(self, replica: Replica) -> None:
        """The metadata that follows says what becomes of it."""

    async def close(self) -> None:
        tasks = [*self._proposals.values()]
        if self._ticking is not None:
            tasks.append(self._ticking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_us = self._now_us()
            self._listen(now_us)
            for replica in tuple(self._unsettled):
                replica.tick(now_us)
                self._consider(replica, now_us)
                if replica.is_settled(now_us):
                    self._unsettled.pop(replica, None)

    def _listen(self, now_us: int) -> None:
        """Tell the leaderships of this node which followers have fallen silent, or speak again."""
        if self._followers is None:
            nodes = (node_id for replica in self._led for node_id in replica.stream.replicas)
            self._followers = tuple(
                node_id for node_id in dict.fromkeys(nodes) if node_id != self._node_id
            )
        for node_id in self._liveness.look(self._followers, now_us):
            is_silent = self._liveness.is_silent(node_id)
            event = "follower_silent" if is_silent else "follower_heard_again"
            logger.info(event, node=node_id)
            for replica in self._led:
                if replica.leadership is not None and node_id in replica.stream.replicas:
                    replica.leadership.hear(node_id, is_silent=is_silent)
                    self._unsettled[replica] = None

    def _consider(self, replica: Replica, now_us: int) -> None:
        stream_id = replica.stream.id
        if stream_id in self._proposals:
            return
        change = replica.propose(now_us)
        if change is None:
            return
        task = asyncio.get_running_loop().create_task(self._propose(replica, change))
        self._proposals[stream_id] = task
        task.add_done_callback(lambda _: self._proposals.pop(stream_id, None))

    async def _propose(self, replica: Replica, change: IsrChange) -> None:
        known, proposal = self._unknown.pop(replica.stream.id, (None, None))
        if proposal is None or known is not change:
            proposal = self._metadata.prepare(change.command())
        try:
            await proposal.submit()
            outcome = Outcome.ACCEPTED
        except JetstreamError as error:
            outcome = outcome_of(error, proposal)
            if outcome is Outcome.UNKNOWN:
                self._unknown[replica.stream.id] = (change, proposal)
            logger.info(
                "isr_change_not_made",
                stream=replica.stream.full_name,
                outcome=outcome.name.lower(),
                reason=error.message,
            )
        replica.settle(change, outcome, self._now_us())


def outcome_of(error: JetstreamError, proposal: Proposal) -> Outcome:
    """What a refused or failed proposal of an ISR change means to the leader."""
    # A void one has not been applied, or the metadata that says so is here already: nothing more
    # will come of it, so the leader may stop counting whom it was to add.
    if isinstance(error, InvalidRequestError) or proposal.is_void:
        return Outcome.INELIGIBLE
    if isinstance(
        error, PreconditionFailedError | FencedEpochError | UnknownEpochError | StreamNotFoundError
    ):
        return Outcome.STALE
    return Outcome.UNKNOWN
