"""Ingests all streams that this node leads over one NATS connection: subscriptions follow
leaderships.

The `ReplicaListener` of the node. This node listens to a stream exactly while it leads it, and
shortly before a hand-over (replication/drivers/hand_over.py). Group members that cannot store leave
their queue group: otherwise their messages would be lost. They also stop receiving the messages of
publishers that chose them (keyed groups): NATS tells those publishers that nobody listens.
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
from jetstream_server.background import run_in_background
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.commit_spans import SpanSource
from jetstream_server.ingest.stream.stand_by import StandBy
from jetstream_server.ingest.stream.stream_ingest import Bounds, StreamIngest
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.replication.core.log_config import why_no_appends
from jetstream_server.replication.core.replica import Replica
from jetstream_server.replication.listeners import ReplicaListener
from jetstream_server.replication.replica_manager import ReplicaManager

CONFIRM_SECONDS = 5.0
"""Seconds after which a NATS server that does not confirm a subscription counts as unreachable."""
DRAIN_SECONDS = 5.0
STAND_BY_SECONDS = 5.0
"""Longer than the rest of a hand-over takes (replication/drivers/hand_over.py)."""
PAUSE_SECONDS = 1.0
"""Nobody listens meanwhile, so a hand-over that takes longer is given up."""
_POLL_SECONDS = 0.005

logger = structlog.get_logger("jetstream.ingest")


class Ingest(ReplicaListener):
    """See the module. `start` must have returned before streams can be created."""

    def __init__(
        self,
        connection: NatsConnection,
        replicas: ReplicaManager,
        policy: AckPolicy,
        bounds: Bounds,
        lease_held: Callable[[], bool],
        spans: SpanSource | None = None,
    ) -> None:
        """lease_held: returns whether this node's session lease holds. spans: None: tracing is
        off."""
        self._spans = spans
        self._connection = connection
        self._lease_held = lease_held
        self._silenced = False  # the subscriptions are given up
        self._withheld = False  # acks of committed records wait for the lease
        self._replicas = replicas
        self._policy = policy
        self._bounds = bounds
        self._streams: dict[int, StreamIngest] = {}
        self._by_sid: dict[int, StreamIngest] = {}
        self._members: dict[int, StreamIngest] = {}  # the streams of `_streams` that are in a group
        self._handing_over: set[int] = set()  # ids of streams that are about to be handed over
        self._drains: set[asyncio.Task[None]] = set()  # of streams that were paused
        self._standing_by: dict[int, StandBy] = {}  # streams that this node is about to lead

    def leading(self, replica: Replica) -> None:
        """Subscribe. Messages that arrive from now on are appended under this leadership."""
        ingest = StreamIngest(
            replica,
            self._replicas,
            self._policy,
            self._bounds,
            self._connection.write,
            self._spans,
        )
        self._streams[replica.stream.id] = ingest
        if replica.stream.group:
            self._members[replica.stream.id] = ingest
        stand_by = self._standing_by.pop(replica.stream.id, None)
        if stand_by is not None:
            if self._lease_held() and self._wants(ingest) and self._adopt(ingest, stand_by):
                return
            self._connection.unsubscribe(stand_by.sid)
        if not self._lease_held():
            self._silenced = True  # `check_lease` subscribes once it does.
        elif self._wants(ingest) and not self._silenced:
            self._subscribe(ingest)

    def _adopt(self, ingest: StreamIngest, stand_by: StandBy) -> bool:
        """Store the messages received while standing by, and those that arrive from now on. Returns
        False if they must not be stored and a new subscription is needed."""
        replica = ingest.replica
        ingest.sid = stand_by.sid
        self._by_sid[ingest.sid] = ingest
        if not stand_by.store(ingest, replica.stream.leader_epoch, replica.log.log_end_offset):
            del self._by_sid[ingest.sid]
            replica.counters.gap_suspected()
            return False
        replica.counters.handed_over(stand_by.gap_us)
        return True

    def _wants(self, ingest: StreamIngest) -> bool:
        """Whether to listen. A member of a queue group that cannot store leaves the messages to the
        other members."""
        stream = ingest.replica.stream
        if stream.id in self._handing_over or stream.is_silent:
            return False
        if not stream.group:
            return True
        if stream.readonly:
            return False
        replica = ingest.replica
        leadership = replica.leadership
        can_commit = leadership is not None and leadership.can_commit
        reason = self._replicas.full_reason or why_no_appends(stream.config, replica.log)
        return can_commit and not reason

    def _keep_membership(self, ingest: StreamIngest) -> None:
        """Leave the queue group, or join it again."""
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
            stream.subject, stream.group, ingest.deliver, self._refused, stream.ingest_prefix
        )
        self._by_sid[ingest.sid] = ingest

    def _unsubscribe(self, ingest: StreamIngest) -> None:
        if self._by_sid.pop(ingest.sid, None) is not None:
            self._connection.unsubscribe(ingest.sid)

    def _refused(self, sid: int, error: PermissionDeniedError) -> None:
        """Note that NATS refuses the subscription: the stream receives nothing until that is
        corrected."""
        ingest = self._by_sid.get(sid)
        if ingest is not None:
            ingest.refusal = error
            logger.error(
                "subscription_refused",
                stream=ingest.replica.stream.full_name,
                reason=error.message,
            )

    def stopped_leading(self, replica: Replica) -> None:
        self._handing_over.discard(replica.stream.id)
        self._members.pop(replica.stream.id, None)
        ingest = self._streams.pop(replica.stream.id, None)
        if ingest is not None:
            self._by_sid.pop(ingest.sid, None)
            # **safety** Also a subscription that is being drained: another node leads now, and may
            # have received what is still on the way here.
            self._connection.unsubscribe(ingest.sid)
            ingest.drop()

    def committed(self, replica: Replica) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            if self._lease_held():
                ingest.committed()
            else:
                self._withheld = True

    # Pausing.

    def access_changed(self, replica: Replica) -> None:
        """Listen again, or stop listening. Messages that NATS has delivered by then are stored."""
        ingest = self._streams.get(replica.stream.id)
        if ingest is None or self._silenced:
            return
        is_listening = self._by_sid.get(ingest.sid) is ingest
        if self._wants(ingest) and not is_listening:
            self._subscribe(ingest)
            replica.counters.gap_suspected()  # Nobody listened meanwhile.
        elif is_listening and not self._wants(ingest):
            del self._by_sid[ingest.sid]
            drain = run_in_background(self._drain(ingest, ingest.sid), "draining a paused stream")
            self._drains.add(drain)
            drain.add_done_callback(self._drains.discard)

    async def _drain(self, ingest: StreamIngest, sid: int) -> None:
        try:
            await self._connection.drain_subscriptions([sid], PAUSE_SECONDS)
        except UnavailableError as error:
            logger.warning(
                "subscriptions_not_drained",
                stream=ingest.replica.stream.full_name,
                reason=error.message,
            )

    async def drained(self) -> None:
        """Return once every message that NATS has delivered to paused streams is stored, or NATS
        does not answer."""
        await asyncio.gather(*self._drains)

    # Handing over.

    @property
    def is_responsive(self) -> bool:
        """Whether NATS is connected and has answered lately."""
        return self._connection.is_responsive

    @property
    def listens(self) -> bool:
        """Whether a stream would receive messages if this node led it now."""
        return self.is_responsive and self._lease_held()

    def pending(self, stream_id: int) -> int:
        """How many batches have acknowledgements that wait for the commit."""
        ingest = self._streams.get(stream_id)
        return 0 if ingest is None else ingest.pending_count

    async def pause(self, stream_id: int) -> None:
        """Stop listening to a stream. Returns when every message that NATS has delivered is stored.
        If the NATS server does not answer, messages in flight are neither awaited nor stored.

        Raises UnavailableError when NATS does not answer in time, NotLeaderError.
        """
        ingest = self._streams.get(stream_id)
        if ingest is None:
            raise NotLeaderError("this node does not lead the stream any more")
        self._handing_over.add(stream_id)
        if self._by_sid.pop(ingest.sid, None) is None:
            return
        if self.is_responsive:
            await self._connection.drain_subscriptions([ingest.sid], PAUSE_SECONDS)
        else:
            self._connection.unsubscribe(ingest.sid)

    def resume(self, stream_id: int) -> None:
        """Undo `pause`."""
        self._handing_over.discard(stream_id)
        ingest = self._streams.get(stream_id)
        if ingest is not None and not self._silenced and self._wants(ingest):
            self._unsubscribe(ingest)  # If `pause` has not begun.
            self._subscribe(ingest)
            ingest.replica.counters.gap_suspected()  # Nobody listened meanwhile.

    async def stand_by(
        self, stream: StreamMetadata, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to a stream that this node is about to lead, for STAND_BY_SECONDS at most.

        leader_epoch, end_offset: of the old leader. silent_us: for how long nobody has listened.
        Returns the length of the whole gap in µs, once NATS has confirmed. Raises UnavailableError
        if NATS does not confirm; nobody stands by then, and none does if the caller is cancelled.
        """
        if stream.is_silent:
            return silent_us
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._end_stand_by(stream.id)
        stand_by = self._standing_by[stream.id] = StandBy(leader_epoch, end_offset)
        stand_by.sid = self._connection.subscribe(
            stream.subject,
            stream.group,
            stand_by.deliver,
            stand_by.refused,
            stream.ingest_prefix,
        )
        loop.call_later(STAND_BY_SECONDS, self._end_stand_by, stream.id, stand_by)
        try:
            await self._connection.flush(PAUSE_SECONDS)
            if stand_by.refusal is not None:
                raise UnavailableError(f"this node cannot listen: {stand_by.refusal.message}")
        except BaseException:  # Also if the old leader waits no longer: it listens again itself.
            self._end_stand_by(stream.id, stand_by)
            raise
        stand_by.gap_us = silent_us + round((loop.time() - asked_at) * 1e6)
        return stand_by.gap_us

    def cancel_stand_by(self, stream_id: int, leader_epoch: int) -> None:
        """Undo `stand_by`, because the leader of that epoch continues. In a queue group the
        subscription would take messages from it."""
        stand_by = self._standing_by.get(stream_id)
        if stand_by is not None and stand_by.leader_epoch == leader_epoch:
            self._end_stand_by(stream_id)

    def _end_stand_by(self, stream_id: int, which: StandBy | None = None) -> None:
        """End the stream's stand-by. which: if given, end only this one."""
        stand_by = self._standing_by.get(stream_id)
        if stand_by is not None and which in (None, stand_by):
            del self._standing_by[stream_id]
            self._connection.unsubscribe(stand_by.sid)

    # Only a current leader may answer publishers.

    def may_feed(self) -> bool:
        """Whether received bytes may be parsed. Called before each read is parsed; this matters
        most right after the process was suspended.

        **safety** Without its lease this node may have been replaced. The bytes are then dropped,
        and the connection ends every subscription, so that only the new leader gets messages.
        """
        if self._lease_held():
            return True
        self._by_sid.clear()
        self._silence()
        return False

    def check_lease(self) -> None:
        """React to the lease. Called when it has changed, and several times a second.

        Group members leave and rejoin their queue groups at the same pace.
        """
        if not self._lease_held():
            for ingest in self._streams.values():
                self._unsubscribe(ingest)
            self._silence()
        elif self._silenced or self._withheld:
            resubscribe = self._silenced
            self._silenced = self._withheld = False
            logger.info("ingest_resumed", streams=len(self._streams))
            for ingest in self._streams.values():
                # A stream that has just taken over its stand-by is subscribed already.
                if resubscribe and ingest.sid not in self._by_sid and self._wants(ingest):
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
            logger.info("ingest_stopped", streams=len(self._streams))
            self._suspect_gaps()

    def fell_below_minimum(self, replica: Replica) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            self._keep_membership(ingest)  # First: publishers that hear of it may publish at once.
            self._fail_with_unknown_outcome(
                ingest,
                NotEnoughReplicasAfterAppendError(
                    "stored by the leader, but too few replicas are in sync to commit it now; "
                    "it is unknown whether it will be"
                ),
            )

    def _fail_with_unknown_outcome(self, ingest: StreamIngest, error: UnknownOutcomeError) -> None:
        """Answer the waiting batches with an unknown outcome. **safety** Without a session it
        answers nothing: another node may lead by now and answer itself."""
        if self._lease_held():
            ingest.fail(error)

    def failed(self, replica: Replica, error: StorageError) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            self._keep_membership(ingest)  # First: publishers that hear of it may publish at once.
            # `error` names our files: show it in the log and in `describe`, not to publishers.
            reason = "stored, but not known to be durable: a disk failed"
            self._fail_with_unknown_outcome(ingest, UnknownOutcomeError(reason))

    def disconnected(self, reason: str) -> None:
        """Note that the NATS connection was lost. Messages published meanwhile without an ack are
        lost."""
        self._suspect_gaps()
        for ingest in self._streams.values():
            ingest.refusal = None  # The next connection's subscriptions are checked again.

    def _suspect_gaps(self) -> None:
        """Count a gap for every stream: nobody listens to them."""
        for ingest in self._streams.values():
            if not ingest.replica.stream.is_internal:
                ingest.replica.counters.gap_suspected()

    async def confirm(self, stream_id: int) -> None:
        """Return once the NATS server has confirmed the stream's subscription.

        If the subscription ends or is made again meanwhile, NATS is asked again. Raises
        UnavailableError when it does not answer, PermissionDeniedError when it refuses,
        NotLeaderError when this node does not lead the stream (any more).
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
                    "the stream exists, but its leader does not listen now; try again"
                )
            if self._by_sid.get(ingest.sid) is not ingest:
                await asyncio.sleep(_POLL_SECONDS)  # The session may lapse and return.
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
        """Whether the stream needs no subscription: it is silent, or a group member that cannot
        store, so that other members receive the messages."""
        stream = ingest.replica.stream
        if stream.is_silent:
            return True
        is_handed_over = stream.id in self._handing_over
        return bool(stream.group) and not is_handed_over and not self._wants(ingest)

    async def _flush(self) -> None:
        try:
            await self._connection.flush(CONFIRM_SECONDS)
        except UnavailableError as error:
            raise UnavailableError(
                "the stream exists, but NATS did not confirm its subscription "
                f"({error.message}); try again once NATS answers"
            ) from error

    async def stop(self) -> None:
        """Unsubscribe, store messages in flight, acknowledge what commits, and disconnect."""
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
