"""All streams this node leads, on one NATS connection: subscriptions follow leaderships.

The `ReplicaListener` of the node. A stream is listened to exactly while this node leads it, but
for the last moments before a hand-over (replication/hand_over.py); group members that cannot store
leave their queue group, so that it does not feed a black hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import (
    NotEnoughReplicasAfterAppendError,
    NotLeaderError,
    PermissionDeniedError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.connection import NatsConnection
from jetstream_server.ingest.stand_by import StandBy
from jetstream_server.ingest.stream import Bounds, StreamIngest
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

CONFIRM_SECONDS = 5.0
"""A NATS server that takes longer to confirm a subscription is as good as away."""
DRAIN_SECONDS = 5.0
STAND_BY_SECONDS = 5.0
"""More than a leader takes to hand over once nobody listens (replication/hand_over.py)."""
QUIET_SECONDS = 1.0
"""Meanwhile nobody listens: rather no hand-over than a longer wait."""
_POLL_SECONDS = 0.005

logger = structlog.get_logger("jetstream.ingest")


class Ingest:
    """See the module. `start` must have returned before streams can be created."""

    def __init__(
        self,
        connection: NatsConnection,
        replicas: Replicas,
        policy: AckPolicy,
        bounds: Bounds,
        speaks: Callable[[], bool],
    ) -> None:
        """speaks: whether this node's session lease holds, at this very moment."""
        self._connection = connection
        self._speaks = speaks
        self._silenced = False  # the subscriptions are given up
        self._withheld = False  # acks of committed records wait for the lease
        self._replicas = replicas
        self._policy = policy
        self._bounds = bounds
        self._streams: dict[int, StreamIngest] = {}
        self._by_sid: dict[int, StreamIngest] = {}
        self._members: dict[int, StreamIngest] = {}  # those of `_streams` that are in a group
        self._quiet: set[int] = set()  # ids of those that are about to be handed over
        self._standing_by: dict[int, StandBy] = {}  # those that are about to be led here

    def leading(self, replica: Replica) -> None:
        """Subscribe; what arrives from now on is appended under this leadership."""
        ingest = StreamIngest(
            replica, self._replicas, self._policy, self._bounds, self._connection.write
        )
        self._streams[replica.stream.id] = ingest
        if replica.stream.group:
            self._members[replica.stream.id] = ingest
        stand_by = self._standing_by.pop(replica.stream.id, None)
        if stand_by is not None:
            if self._speaks() and self._wants(ingest) and self._adopt(ingest, stand_by):
                return
            self._connection.unsubscribe(stand_by.sid)
        if not self._speaks():
            self._silenced = True  # `check_lease` subscribes once it does.
        elif self._wants(ingest) and not self._silenced:
            self._subscribe(ingest)

    def _adopt(self, ingest: StreamIngest, stand_by: StandBy) -> bool:
        """What has arrived since nobody else listens, then what arrives from now on. False: that
        is not to be stored, and a subscription is wanted that begins now."""
        replica = ingest.replica
        counters = replica.counters
        ingest.sid = stand_by.sid
        self._by_sid[ingest.sid] = ingest
        if not stand_by.store(ingest, replica.stream.leader_epoch, replica.log.log_end_offset):
            del self._by_sid[ingest.sid]
            counters.suspected_gaps += 1
            return False
        counters.hand_overs += 1
        counters.hand_over_gap_us = stand_by.gap_us
        counters.hand_over_gaps_us += stand_by.gap_us
        return True

    def _wants(self, ingest: StreamIngest) -> bool:
        """A member of a queue group that cannot store leaves the messages to the others."""
        replica = ingest.replica
        if replica.stream.id in self._quiet:
            return False
        if not replica.stream.group:
            return True
        leadership = replica.leadership
        can_commit = leadership is not None and leadership.can_commit
        return can_commit and not replica.log.offline_reason and not self._replicas.full_reason

    def _keep_membership(self, ingest: StreamIngest) -> None:
        """Leave the queue group, or come back to it."""
        wanted = not self._silenced and self._wants(ingest)
        if wanted == (self._by_sid.get(ingest.sid) is ingest):
            return
        if wanted:
            self._subscribe(ingest)
        else:
            self._unsubscribe(ingest)
        event = "group_joined_again" if wanted else "group_left"
        logger.info(event, stream=ingest.replica.stream.full_name)

    def _subscribe(self, ingest: StreamIngest) -> None:
        stream = ingest.replica.stream
        ingest.sid = self._connection.subscribe(
            stream.subject, stream.group, ingest.deliver, self._refused
        )
        self._by_sid[ingest.sid] = ingest

    def _unsubscribe(self, ingest: StreamIngest) -> None:
        if self._by_sid.pop(ingest.sid, None) is not None:
            self._connection.unsubscribe(ingest.sid)

    def _refused(self, sid: int, error: PermissionDeniedError) -> None:
        """NATS does not let us subscribe: the stream hears nothing until that is mended."""
        ingest = self._by_sid.get(sid)
        if ingest is not None:
            ingest.refusal = error
            logger.error(
                "subscription_refused",
                stream=ingest.replica.stream.full_name,
                reason=error.message,
            )

    def stopped_leading(self, replica: Replica) -> None:
        self._quiet.discard(replica.stream.id)
        self._members.pop(replica.stream.id, None)
        ingest = self._streams.pop(replica.stream.id, None)
        if ingest is not None:
            self._unsubscribe(ingest)
            ingest.drop()

    def committed(self, replica: Replica) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            if self._speaks():
                ingest.committed()
            else:
                self._withheld = True

    # Handing over.

    @property
    def hears(self) -> bool:
        """Whether NATS is connected, and has said something lately."""
        return self._connection.hears

    @property
    def listens(self) -> bool:
        """Whether a stream led from now on would be heard."""
        return self.hears and self._speaks()

    def pending(self, stream_id: int) -> int:
        """Batches whose acknowledgements wait for the commit."""
        ingest = self._streams.get(stream_id)
        return 0 if ingest is None else ingest.pending_count

    async def quiet(self, stream_id: int) -> None:
        """Stop listening to a stream; done once all that NATS had delivered by then is stored. What
        is on its way from a server that is not heard is not waited for, nor stored.

        Raises UnavailableError when NATS does not answer in time, NotLeaderError.
        """
        ingest = self._streams.get(stream_id)
        if ingest is None:
            raise NotLeaderError("this node does not lead the stream any more")
        self._quiet.add(stream_id)
        if self._by_sid.pop(ingest.sid, None) is None:
            return
        if self.hears:
            await self._connection.drain_subscriptions([ingest.sid], QUIET_SECONDS)
        else:
            self._connection.unsubscribe(ingest.sid)

    def resume(self, stream_id: int) -> None:
        """Undo `quiet`."""
        self._quiet.discard(stream_id)
        ingest = self._streams.get(stream_id)
        if ingest is not None and not self._silenced and self._wants(ingest):
            self._unsubscribe(ingest)  # If `quiet` was not even begun.
            self._subscribe(ingest)
            ingest.replica.counters.suspected_gaps += 1  # Nobody has listened meanwhile.

    async def stand_by(
        self, stream: StreamMetadata, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to a stream that this node is about to lead, for STAND_BY_SECONDS at most.

        leader_epoch, end_offset: of the leader until now. silent_us: for how long nobody has
        listened. Returns that in all, once NATS has confirmed. Raises UnavailableError when it does
        not.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._end_stand_by(stream.id)
        stand_by = self._standing_by[stream.id] = StandBy(leader_epoch, end_offset)
        stand_by.sid = self._connection.subscribe(
            stream.subject, stream.group, stand_by.deliver, stand_by.refused
        )
        loop.call_later(STAND_BY_SECONDS, self._end_stand_by, stream.id, stand_by)
        await self._connection.flush(QUIET_SECONDS)
        if stand_by.refusal is not None:
            self._end_stand_by(stream.id, stand_by)
            raise UnavailableError(f"this node cannot listen: {stand_by.refusal.message}")
        stand_by.gap_us = silent_us + round((loop.time() - asked_at) * 1e6)
        return stand_by.gap_us

    def stand_down(self, stream_id: int, leader_epoch: int) -> None:
        """The leader of that epoch goes on: undo `stand_by`. In a queue group it would take
        messages from that."""
        stand_by = self._standing_by.get(stream_id)
        if stand_by is not None and stand_by.leader_epoch == leader_epoch:
            self._end_stand_by(stream_id)

    def _end_stand_by(self, stream_id: int, which: StandBy | None = None) -> None:
        """Of that stream; if it is `which`, where that is given."""
        stand_by = self._standing_by.get(stream_id)
        if stand_by is not None and which in (None, stand_by):
            del self._standing_by[stream_id]
            self._connection.unsubscribe(stand_by.sid)

    # Only a current leader speaks (design 6).

    def may_feed(self) -> bool:
        """Asked before the bytes of a read are looked at: right after a sleep, above all.

        **safety** Without its lease this node may have been replaced: the bytes are not looked at,
        and the connection forgets every subscription, so that the successor has them alone.
        """
        if self._speaks():
            return True
        self._by_sid.clear()
        self._silence()
        return False

    def check_lease(self) -> None:
        """Called several times a second, for when nothing arrives.

        Members of groups that can store again, or no longer, come and go at the same pace.
        """
        if not self._speaks():
            for ingest in self._streams.values():
                self._unsubscribe(ingest)
            self._silence()
        elif self._silenced or self._withheld:
            resubscribe = self._silenced
            self._silenced = self._withheld = False
            logger.info("session_regained", streams=len(self._streams))
            for ingest in self._streams.values():
                if resubscribe and self._wants(ingest):
                    self._subscribe(ingest)
                ingest.committed()
        else:
            for ingest in self._members.values():
                self._keep_membership(ingest)

    def _silence(self) -> None:
        for stream_id in list(self._standing_by):
            self._end_stand_by(stream_id)
        if not self._silenced:
            self._silenced = True
            logger.warning("session_lost", streams=len(self._streams))
            for ingest in self._streams.values():
                ingest.replica.counters.suspected_gaps += 1

    def fell_below_minimum(self, replica: Replica) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            self._keep_membership(ingest)  # First: who hears of it may publish again at once.
            self._doubt(
                ingest,
                NotEnoughReplicasAfterAppendError(
                    "stored by the leader, but too few replicas are in sync to commit it now; "
                    "it is unknown whether it will be"
                ),
            )

    def _doubt(self, ingest: StreamIngest, error: UnknownOutcomeError) -> None:
        """Say that nobody knows what becomes of what waits. **safety** Without a session nothing is
        said: another node may lead by now, and answer for it."""
        if self._speaks():
            ingest.fail(error)

    def failed(self, replica: Replica, error: StorageError) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            self._keep_membership(ingest)  # First: who hears of it may publish again at once.
            # `error` names our files: it is for the log and `describe`, not for publishers.
            reason = "stored, but not known to be durable: a disk failed"
            self._doubt(ingest, UnknownOutcomeError(reason))

    def disconnected(self, reason: str) -> None:
        """The NATS connection was lost: what was published meanwhile without ack is missing."""
        for ingest in self._streams.values():
            ingest.replica.counters.suspected_gaps += 1
            ingest.refusal = None  # The next connection's subscriptions are judged anew.

    async def confirm(self, stream_id: int) -> None:
        """Return once the NATS server has the stream's subscription.

        It may be given up, or made anew, while NATS is asked: then NATS is asked again. Raises
        UnavailableError when it does not answer, PermissionDeniedError when it refuses,
        NotLeaderError when the stream is not led here (any more).
        """
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        confirmed: tuple[StreamIngest, int] | None = None
        while True:
            ingest = self._streams.get(stream_id)
            if ingest is None:
                raise NotLeaderError("this node does not lead the stream now; try again")
            if self._may_stay_unheard(ingest) or confirmed == (ingest, ingest.sid):
                break
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    "the stream exists, but its leader does not listen now; create it again"
                )
            if self._by_sid.get(ingest.sid) is not ingest:
                await asyncio.sleep(_POLL_SECONDS)  # The session comes and goes.
                continue
            asked = (ingest, ingest.sid)
            await self._flush()
            confirmed = asked if self._by_sid.get(asked[1]) is ingest else None
        if ingest.refusal is not None:
            raise PermissionDeniedError(
                f"the stream exists, but NATS does not let this server subscribe to "
                f"{ingest.replica.stream.subject!r}: {ingest.refusal.message}"
            )

    def _may_stay_unheard(self, ingest: StreamIngest) -> bool:
        """A group member that cannot store: the others of its group are heard."""
        stream = ingest.replica.stream
        return bool(stream.group) and stream.id not in self._quiet and not self._wants(ingest)

    async def _flush(self) -> None:
        try:
            await self._connection.flush(CONFIRM_SECONDS)
        except UnavailableError as error:
            raise UnavailableError(
                "the stream exists, but NATS did not confirm its subscription "
                f"({error.message}); create it again once NATS answers"
            ) from error

    async def stop(self) -> None:
        """Unsubscribe, store what is on its way, acknowledge what commits, and disconnect."""
        try:
            await self._connection.drain_subscriptions()
        except UnavailableError as error:
            logger.warning("subscriptions_not_drained", reason=str(error))
        self._by_sid.clear()
        self._members.clear()
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while any(ingest.pending_count for ingest in self._streams.values()):
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("acks_pending_at_stop")
                break
            await asyncio.sleep(_POLL_SECONDS)
        await self._connection.close()
