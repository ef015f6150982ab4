"""Planned hand-over of a stream's leadership: short, and nothing on its way is lost (design 6).

    old leader                                             target
    wait until it has caught up
    ask whether it can ──────────────────────────────────> session, NATS, log: `prepare`
    stop listening; take in what NATS had delivered
    ask it to listen ────────────────────────────────────> keeps what comes: `stand_by`
    wait until it has all of the log and all of it is
    committed: every ack is out
    transfer_leader ───────── metadata ──────────────────> leads, stores what it has kept

Between the third line and the fourth nobody listens: a publisher that asks for an ack is told "no
responders" by NATS and tries again, what others publish is lost. That is the gap; the new leader
counts it and shows it.

Every wait is bounded, and until the transfer is proposed nothing has changed for the metadata: what
fails before leaves the old leader listening again, what dies or hangs is replaced as any leader is.
**safety** Before it listens again it calls the target off: that would else store, should it come to
lead within the next seconds, what the old leader has meanwhile refused.
**safety** is the plain transfer's: the target is in the ISR, and the new epoch ends the old. That
no message is stored by both is stand_by.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from jetstream_protocol.errors import JetstreamError, NotLeaderError, UnavailableError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.clocks import monotonic_us
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.fitness import Fitness
from jetstream_server.replication.leader import LeaderState
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

CATCH_UP_SECONDS = 2.0
"""For a follower in sync to come near; one that does not is behind by more than that."""
NEAR_SECONDS = 0.1
"""Who needs no longer to reach the log end of before is near enough to be waited for in silence."""
TAIL_SECONDS = 1.0
PROPOSE_SECONDS = 2.0
POLL_SECONDS = 0.001
NEVER = -1
"""As the log end to stand by behind: the leader goes on, and nobody is to stand by."""

logger = structlog.get_logger("jetstream.replication")


class Publishers(Protocol):
    """Ingest, as hand-overs see it."""

    @property
    def listens(self) -> bool:
        """Whether NATS is connected and the session lets this node speak."""

    async def quiet(self, stream_id: int) -> None:
        """Stop listening; done when all that NATS had delivered is stored. Raises
        UnavailableError."""

    def resume(self, stream_id: int) -> None:
        """Listen again, if the stream is still led here."""

    def pending(self, stream_id: int) -> int:
        """Batches whose acknowledgements wait for the commit."""

    async def stand_by(
        self, stream: StreamMetadata, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to a stream that is about to be led here, after `leader_epoch`; returns the gap
        in µs."""

    def stand_down(self, stream_id: int, leader_epoch: int) -> None:
        """Undo `stand_by`, if it was for the leader of that epoch."""


class Successors(Protocol):
    """The same at other nodes."""

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None: ...

    async def stand_by(
        self,
        node_id: NodeId,
        stream_id: StreamId,
        leader_epoch: int,
        end_offset: int,
        silent_us: int,
    ) -> int: ...


class Metadata(Protocol):
    async def propose(self, command: dict[str, Any], *, patience: float) -> dict[str, Any]: ...


class HandOvers:
    """Both ends of hand-overs on this node: `give`; `prepare` and `stand_by`."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        publishers: Publishers,
        successors: Successors,
        *,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self._now_us = now_us
        self._metadata = metadata
        self._replicas = replicas
        self._publishers = publishers
        self._successors = successors
        self._giving: set[StreamId] = set()
        self.fitness = Fitness()
        """Whether this node can serve publishers; looked at by resigning.py."""

    # The old leader's.

    async def give(self, stream_id: StreamId, target: NodeId, *, urgent: bool = False) -> None:
        """Hand the leadership to that ISR member. urgent: this node cannot serve its publishers, so
        any that can will do.

        Raises NotLeaderError, UnavailableError (nothing has changed), UnknownOutcomeError, and
        PreconditionFailedError where the metadata does not allow it.
        """
        replica = self._replicas.led(stream_id)
        leadership = replica.leadership
        assert leadership is not None
        if target not in leadership.isr:
            raise UnavailableError(f"node {target} is not in sync with {replica.stream.full_name}")
        if stream_id in self._giving:
            raise UnavailableError(f"{replica.stream.full_name} is being handed over already")
        self._giving.add(stream_id)
        try:
            await self._give(replica, leadership, target, urgent=urgent)
        finally:
            self._giving.discard(stream_id)

    async def _give(
        self, replica: Replica, leadership: LeaderState, target: NodeId, *, urgent: bool
    ) -> None:
        stream_id, leader_epoch = replica.stream.id, replica.stream.leader_epoch
        await self._come_near(replica, leadership, target)
        trip_seconds = await self._prepare(target, stream_id, urgent=urgent)
        silent_since = self._seconds()
        is_asked = False
        try:
            _check_leads(replica, leadership)
            await self._publishers.quiet(stream_id)
            # The question has to arrive, too: nobody listens meanwhile.
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
                    await self._call_off(target, stream_id, leader_epoch)
            finally:  # Also when who asked for it gives up right then.
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

    async def _call_off(self, target: NodeId, stream_id: StreamId, leader_epoch: int) -> None:
        """One that does not answer is most likely dead; else it forgets by itself, in seconds."""
        try:
            await self._successors.stand_by(target, stream_id, leader_epoch, NEVER, 0)
        except JetstreamError as error:
            logger.info("successor_not_called_off", target=target, reason=error.message)

    async def _prepare(self, target: NodeId, stream_id: StreamId, *, urgent: bool) -> float:
        """Ask whether it can. Returns how long a question and its answer take: the quicker of two,
        because the first may have to connect."""
        trips = []
        for _ in range(2):
            asked_at = self._seconds()
            await self._successors.prepare(target, stream_id, urgent=urgent)
            trips.append(self._seconds() - asked_at)
        return min(trips)

    async def _come_near(self, replica: Replica, leadership: LeaderState, target: NodeId) -> None:
        """Until the target follows closely: a target that lags would be silence."""
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
        """Nothing is appended any more: until the target has all, and all is acknowledged that
        can be. Should another follower be slow, the target will acknowledge for itself."""
        _check_leads(replica, leadership)
        stream_id, end_offset = replica.stream.id, replica.log.log_end_offset
        deadline = self._seconds() + TAIL_SECONDS
        while leadership.position_of(target) < end_offset or self._publishers.pending(stream_id):
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
            {
                "op": "transfer_leader",
                "stream_id": stream.id,
                "leader": target,
                "stream_epoch": stream.stream_epoch,
            },
            patience=PROPOSE_SECONDS,
        )

    def _seconds(self) -> float:
        return self._now_us() / 1e6

    # The target's.

    def prepare(self, stream_id: StreamId, *, urgent: bool = True) -> None:
        """Raise UnavailableError unless this node could lead the stream and listen, at once; not
        urgent: and has been able to for a while."""
        replica = self._replicas.get(stream_id)
        if replica is None or replica.following is None:
            raise UnavailableError("this node does not follow the stream, as far as it knows")
        if replica.log.offline_reason:
            raise UnavailableError("this node's replica is offline")
        if not self._publishers.listens:
            raise UnavailableError("this node is not connected to NATS, or has no session")
        if self.fitness.problem:
            raise UnavailableError(f"this node could not serve it: {self.fitness.problem}")
        if not urgent and not self.fitness.is_steady(self._now_us()):
            raise UnavailableError("a moment ago this node could not have served it")

    async def stand_by(
        self, stream_id: StreamId, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to the stream from now on, and store it if the next leadership is this node's.
        Returns for how many µs nobody has listened. Raises UnavailableError. end_offset NEVER:
        no longer."""
        if end_offset == NEVER:
            self._publishers.stand_down(stream_id, leader_epoch)
            return 0
        self.prepare(stream_id)
        replica = self._replicas.get(stream_id)
        assert replica is not None, "it was there in `prepare`"
        stream = replica.stream
        if leader_epoch < stream.leader_epoch:
            raise UnavailableError(f"epoch {leader_epoch} of {stream.full_name} is over")
        return await self._publishers.stand_by(stream, leader_epoch, end_offset, silent_us)


def _check_leads(replica: Replica, leadership: LeaderState) -> None:
    if replica.leadership is not leadership:
        raise NotLeaderError(f"this node does not lead {replica.stream.full_name} any more")
