"""Hands over a stream's leadership as planned: quickly, and without loss.

    old leader                                             target
    wait until it has caught up
    ask whether it can ──────────────────────────────────> session, NATS, log: `prepare`
    stop listening; take in what NATS had delivered
    ask it to listen ────────────────────────────────────> keeps what comes: `stand_by`
    wait until it has all of the log and all of it is
    committed: every ack is out
    transfer_leader ───────── metadata ──────────────────> leads, stores what it has kept

Between the third line and the fourth there is no subscription. A publisher that wants an ack gets
"no responders" from NATS and tries again; messages without a reply subject are lost. This is the
gap: the new leader counts and shows it.

Every wait is bounded, and the metadata changes only with the transfer. After an earlier failure the
old leader listens again; if it dies or hangs, it is replaced like any leader. **safety** Before it
listens again it cancels the target's stand-by. Otherwise the target, if it led within seconds,
would store messages that the old leader has refused in between. The hand-over is as safe as a plain
transfer: the target is in the ISR, and the new epoch ends the old one. stand_by.py ensures that no
message is stored by both.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.clocks import MonotonicClock, monotonic_clock
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.fitness_to_lead import Fitness
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

CATCH_UP_SECONDS = 2.0
"""Time for an in-sync follower to catch up."""
NEAR_SECONDS = 0.1
"""A target that catches up this fast is close enough to pause ingest for."""
TAIL_SECONDS = 1.0
PROPOSE_SECONDS = 2.0
POLL_SECONDS = 0.001

logger = structlog.get_logger("jetstream.replication")


class Publishers(Protocol):
    """The part of ingest that a hand-over needs."""

    @property
    def listens(self) -> bool:
        """Whether NATS is connected and the session's lease holds."""

    async def pause(self, stream_id: int) -> None:
        """Stop listening. Returns when every message that NATS has delivered is stored. Raises
        UnavailableError."""

    def resume(self, stream_id: int) -> None:
        """Listen again, if this node still leads the stream."""

    def pending(self, stream_id: int) -> int:
        """The number of batches whose acks wait for the commit."""

    async def stand_by(
        self, stream: StreamMetadata, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to a stream that this node is about to lead, after `leader_epoch`. Returns the gap
        in µs."""

    def cancel_stand_by(self, stream_id: int, leader_epoch: int) -> None:
        """Undo `stand_by`, if it was for the leader of that epoch."""


class Successors(Protocol):
    """The target's part of a hand-over, on other nodes."""

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None: ...

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int: ...

    async def cancel_stand_by(
        self, node_id: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None: ...


class Metadata(Protocol):
    @property
    def registry(self) -> Tables: ...

    async def propose(self, command: TransferLeader, *, patience: float) -> dict[str, Any]: ...


class HandOver:
    """Both ends: `hand_over`, and for targets `prepare`, `stand_by`, `cancel_stand_by`."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: ReplicaManager,
        publishers: Publishers,
        successors: Successors,
        *,
        monotonic_clock: MonotonicClock = monotonic_clock,
    ) -> None:
        self._monotonic_clock = monotonic_clock
        self._metadata = metadata
        self._replicas = replicas
        self._publishers = publishers
        self._successors = successors
        self._under_way: set[StreamId] = set()
        self.fitness = Fitness()
        """Whether this node can serve publishers. resignation.py reads it."""

    # For the old leader.

    async def hand_over(self, stream_id: StreamId, target: NodeId, *, urgent: bool = False) -> None:
        """Hand the leadership to that ISR member. urgent: it has to go, because this node cannot
        serve its publishers, stops or drains, or because somebody demands it; any node that can
        serve now is accepted.

        Raises NotLeaderError and UnavailableError (nothing has changed), UnknownOutcomeError, and
        PreconditionFailedError when the metadata does not allow it.
        """
        replica = self._replicas.led_replica(stream_id)
        leadership = replica.leadership
        assert leadership is not None
        if target not in leadership.isr:
            raise UnavailableError(f"node {target} is not in sync with {replica.stream.full_name}")
        if stream_id in self._under_way:
            raise UnavailableError(f"{replica.stream.full_name} is being handed over already")
        self._under_way.add(stream_id)
        urgent = urgent or self.is_urgent(replica.stream)
        try:
            await self._hand_over(replica, leadership, target, urgent=urgent)
        finally:
            self._under_way.discard(stream_id)

    def is_urgent(self, stream: StreamMetadata) -> bool:
        """Whether the metadata say that the leadership has to go."""
        return self._metadata.registry.must_change_leader(stream)

    async def _hand_over(
        self, replica: Replica, leadership: LeaderState, target: NodeId, *, urgent: bool
    ) -> None:
        stream_id, leader_epoch = replica.stream.id, replica.stream.leader_epoch
        await self._come_near(replica, leadership, target)
        trip_seconds = await self._prepare(target, stream_id, urgent=urgent)
        silent_since = self._seconds()
        is_asked = False
        try:
            _check_leads(replica, leadership)
            self._check_stays(replica, target)
            await self._publishers.pause(stream_id)
            # The request takes its time too, and there is no subscription meanwhile.
            silent_us = round((self._seconds() - silent_since + trip_seconds) * 1e6)
            end_offset = replica.log.log_end_offset
            is_asked = True
            gap_us = await self._successors.stand_by(
                target, stream_id, leader_epoch, end_offset, silent_us
            )
            await self._replicate_tail(replica, leadership, target)
            unacknowledged = self._publishers.pending(stream_id)
            await self._transfer(replica, leadership, target)
        finally:
            try:
                if is_asked and replica.leadership is leadership:
                    await self._cancel_stand_by(target, stream_id, leader_epoch)
            finally:  # Even if the caller is cancelled here.
                if replica.leadership is leadership:
                    self._publishers.resume(stream_id)
        logger.info(
            "leadership_handed_over",
            stream=replica.stream.full_name,
            target=target,
            gap_ms=gap_us / 1000,
            seconds=round(self._seconds() - silent_since, 4),
            unacknowledged=unacknowledged,
        )

    def _check_stays(self, replica: Replica, target: NodeId) -> None:
        """No leader stops listening for a transfer that the metadata would refuse."""
        if not self._metadata.registry.may_be_given_leaderships(target):
            raise PreconditionFailedError(
                f"node {target} cannot lead {replica.stream.full_name} now: it is draining"
            )

    async def _cancel_stand_by(
        self, target: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None:
        """Cancel the target's stand-by. A target that does not answer is probably dead; if not, its
        stand-by ends by itself within seconds."""
        try:
            await self._successors.cancel_stand_by(target, stream_id, leader_epoch)
        except JetstreamError as error:
            logger.info("stand_by_not_cancelled", target=target, reason=error.message)

    async def _prepare(self, target: NodeId, stream_id: StreamId, *, urgent: bool) -> float:
        """Ask whether the target can lead. Returns the round-trip time in seconds: the shorter of
        two, because the first one may have to connect."""
        trips = []
        for _ in range(2):
            asked_at = self._seconds()
            await self._successors.prepare(target, stream_id, urgent=urgent)
            trips.append(self._seconds() - asked_at)
        return min(trips)

    async def _come_near(self, replica: Replica, leadership: LeaderState, target: NodeId) -> None:
        """Wait until the target follows closely: there is no subscription while it catches up."""
        deadline = self._seconds() + CATCH_UP_SECONDS
        while True:
            asked_at = self._seconds()
            end_offset = replica.log.log_end_offset
            while leadership.position_of(target) < end_offset:
                if self._seconds() > deadline:
                    raise UnavailableError(
                        f"node {target} does not keep up with {replica.stream.full_name}"
                    )
                await asyncio.sleep(POLL_SECONDS)
                _check_leads(replica, leadership)
            if self._seconds() - asked_at <= NEAR_SECONDS:
                return

    async def _replicate_tail(
        self, replica: Replica, leadership: LeaderState, target: NodeId
    ) -> None:
        """Wait until the target has the whole log and everything possible is acknowledged. Nothing
        is appended meanwhile. If another follower is slow, the target acknowledges the rest itself.
        While too few replicas are in sync nothing commits, so waiting for it would not help."""
        _check_leads(replica, leadership)
        stream_id, end_offset = replica.stream.id, replica.log.log_end_offset
        deadline = self._seconds() + TAIL_SECONDS
        while leadership.position_of(target) < end_offset or (
            leadership.can_commit and self._publishers.pending(stream_id)
        ):
            if self._seconds() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
            _check_leads(replica, leadership)
        if leadership.position_of(target) < end_offset:
            raise UnavailableError(
                f"node {target} did not fetch the end of {replica.stream.full_name} in time"
            )

    async def _transfer(self, replica: Replica, leadership: LeaderState, target: NodeId) -> None:
        _check_leads(replica, leadership)
        stream = replica.stream
        await self._metadata.propose(
            TransferLeader(stream_id=stream.id, leader=target, stream_epoch=stream.stream_epoch),
            patience=PROPOSE_SECONDS,
        )

    def _seconds(self) -> float:
        return self._monotonic_clock() / 1e6

    # For the target.

    def prepare(self, stream_id: StreamId, *, urgent: bool = True) -> None:
        """Raise UnavailableError unless this node can lead the stream and listen at once. If not
        urgent, which is for balance only, it must have been able to serve for a while."""
        replica = self._replicas.get(stream_id)
        if replica is None or replica.following is None:
            raise UnavailableError("this node does not follow the stream, as far as it knows")
        if why_no_appends(replica.stream.config, replica.log):
            raise UnavailableError("this node's replica is offline")
        if not self._publishers.listens:
            raise UnavailableError("this node is not connected to NATS, or has no session")
        if self.fitness.problem:
            raise UnavailableError(f"this node could not serve it: {self.fitness.problem}")
        if not urgent and not self.fitness.is_steady(self._monotonic_clock()):
            raise UnavailableError("this node could not have served it a moment ago")

    async def stand_by(
        self, stream_id: StreamId, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to the stream from now on, and store the messages if the next leadership is this
        node's. Returns the gap in µs. Raises UnavailableError."""
        self.prepare(stream_id)
        replica = self._replicas.get(stream_id)
        assert replica is not None, "it was there in `prepare`"
        stream = replica.stream
        if leader_epoch < stream.leader_epoch:
            raise UnavailableError(f"epoch {leader_epoch} of {stream.full_name} is over")
        return await self._publishers.stand_by(stream, leader_epoch, end_offset, silent_us)

    def cancel_stand_by(self, stream_id: StreamId, leader_epoch: int) -> None:
        """Stop listening, because the leader of that epoch continues."""
        self._publishers.cancel_stand_by(stream_id, leader_epoch)


def _check_leads(replica: Replica, leadership: LeaderState) -> None:
    if replica.leadership is not leadership:
        raise NotLeaderError(f"this node does not lead {replica.stream.full_name} any more")
