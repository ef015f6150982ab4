"""Carries out the ISR changes that the leaders on this node decide: ticks, proposals, outcomes.

Only streams that wait for something are checked. A settled one (`LeaderState.is_settled`) costs
nothing until an append, a fetch of a replica out of sync, or new metadata.
"""

from __future__ import annotations

import asyncio

import structlog

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnknownEpochError,
)
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.client.raft_metadata_log import Proposal, RaftMetadataLog
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.replication.core.liveness import Liveness
from jetstream_server.replication.core.pending_isr import Outcome
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

TICK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.replication")


class IsrDriver(RoleListener):
    """Call `start`, then `close`."""

    def __init__(
        self, metadata: RaftMetadataLog, *, node_id: int, monotonic_clock: MonotonicClock
    ) -> None:
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._monotonic_clock = monotonic_clock
        self._led: dict[Replica, None] = {}  # led here, with other copies
        self._leads = asyncio.Event()  # any of these
        self._unsettled: dict[Replica, None] = {}  # of these
        self._liveness = Liveness()
        self._followers: tuple[NodeId, ...] | None = ()  # of these; None: to be looked up
        self._proposals: dict[int, asyncio.Task[None]] = {}
        # Changes with unknown outcome. Repeating a change repeats the same proposal
        # (core/pending_isr.py).
        self._unknown: dict[int, tuple[ChangeIsr, Proposal]] = {}
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = run_in_background(self._tick(), "ISR ticks")

    def role_changed(self, replica: Replica) -> None:
        """Only leaderships with other copies hear of followers."""
        leadership = replica.leadership
        if leadership is None or len(replica.stream.copies) == 1:
            if replica in self._led:
                del self._led[replica]
                self._followers = None
            if not self._led:
                self._leads.clear()
            self._unsettled.pop(replica, None)
            self._unknown.pop(replica.stream.id, None)
            return
        self._led[replica] = None
        self._leads.set()
        self._followers = None
        for node_id in replica.stream.copies:
            leadership.hear(node_id, is_silent=self._liveness.is_silent(node_id))

    def heard(self, node_id: NodeId) -> None:
        """Note that a follower node has sent something, perhaps only a keep-alive."""
        self._liveness.heard(node_id, self._monotonic_clock())

    def progressed(self, replica: Replica) -> None:
        """Note that a stream may need a change (a ProgressListener)."""
        if replica.leadership is not None:
            self._unsettled[replica] = None

    async def close(self) -> None:
        await end_tasks(*self._proposals.values(), self._ticking)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_us = self._monotonic_clock()
            self._listen(now_us)
            for replica in tuple(self._unsettled):
                replica.tick(now_us)
                self._consider(replica, now_us)
                if replica.is_settled(now_us):
                    self._unsettled.pop(replica, None)
            await self._leads.wait()

    def _listen(self, now_us: MonotonicUs) -> None:
        """Tell the leaderships on this node which followers have fallen silent or are heard
        again."""
        if self._followers is None:
            nodes = (node_id for replica in self._led for node_id in replica.stream.copies)
            self._followers = tuple(
                node_id for node_id in dict.fromkeys(nodes) if node_id != self._node_id
            )
        for node_id in self._liveness.look(self._followers, now_us):
            is_silent = self._liveness.is_silent(node_id)
            event = "follower_silent" if is_silent else "follower_heard_again"
            logger.info(event, node=node_id)
            for replica in self._led:
                if replica.leadership is not None and node_id in replica.stream.copies:
                    replica.leadership.hear(node_id, is_silent=is_silent)
                    self._unsettled[replica] = None

    def _consider(self, replica: Replica, now_us: MonotonicUs) -> None:
        stream_id = replica.stream.id
        if stream_id in self._proposals:
            return
        change = replica.propose(now_us)
        if change is None:
            return
        task = run_in_background(self._propose(replica, change), "proposal of an ISR")
        self._proposals[stream_id] = task
        task.add_done_callback(lambda _: self._proposals.pop(stream_id, None))

    async def _propose(self, replica: Replica, change: ChangeIsr) -> None:
        known, proposal = self._unknown.pop(replica.stream.id, (None, None))
        if proposal is None or known is not change:
            proposal = self._metadata.prepare(change)
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
        replica.settle(change, outcome, self._monotonic_clock())


def outcome_of(error: JetstreamError, proposal: Proposal) -> Outcome:
    """What a refused or failed proposal of an ISR change means for the leader."""
    # A void proposal was not applied, or the metadata with it is already here. Nothing more will
    # follow, so the leader may stop counting the member that it wanted to add.
    if isinstance(error, InvalidRequestError) or proposal.is_void:
        return Outcome.INELIGIBLE
    if isinstance(
        error, PreconditionFailedError | FencedEpochError | UnknownEpochError | StreamNotFoundError
    ):
        return Outcome.STALE
    return Outcome.UNKNOWN
