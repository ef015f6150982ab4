"""Ingests all streams that this node leads over one NATS connection: subscriptions follow
leaderships.

    leadership, session, access, hand-over, disk ──> wants_to_listen ──> subscribe · unsubscribe
                                                        NATS ──> heard · refused (tried again)

What a stream's subscription is, its `StreamIngest` says: `is_listening`, `is_handed_over`,
`refusal`. `wants_to_listen` decides what it should be, and `_settle` makes it so. The connection
asks again for what NATS refuses (nats/connection.py).

The `ReplicaListener` of the node. This node listens to a stream exactly while it leads it, and
shortly before a hand-over (replication/drivers/hand_over.py). Group members that cannot store leave
their queue group: otherwise their messages would be lost. They also stop receiving the messages of
publishers that chose them (keyed groups): NATS answers those publishers "no responders".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial

import structlog

from jetstream_protocol.envelope import BatchEnvelope
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderError,
    PermissionDeniedError,
    StorageError,
    StreamPausedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.subjects import check_literal, matches
from jetstream_protocol.types import StreamId
from jetstream_server.background import run_in_background
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.acks import Direct
from jetstream_server.ingest.stream.commit_spans import SpanSource
from jetstream_server.ingest.stream.stand_by import StandBy
from jetstream_server.ingest.stream.stream_ingest import Bounds, StreamIngest
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.listeners import ReplicaListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

CONFIRM_SECONDS = 5.0
"""Seconds after which a NATS server that does not confirm a subscription counts as unreachable."""
DRAIN_SECONDS = 5.0
STAND_BY_SECONDS = 5.0
"""Longer than the rest of a hand-over takes (replication/drivers/hand_over.py)."""
PAUSE_SECONDS = 1.0
"""There is no subscription meanwhile, so a hand-over that takes longer is given up."""
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
        cluster: str = "",
    ) -> None:
        """lease_held: returns whether this node's session lease holds. spans: None: tracing is
        off. cluster: the mark of its acks."""
        self._cluster = cluster
        self._throttle = LogThrottle()
        self._spans = spans
        self._connection = connection
        self._lease_held = lease_held
        self._silenced = False  # the subscriptions are given up
        self._is_over = False  # nothing is listened to any more
        self._replicas = replicas
        self._policy = policy
        self._bounds = bounds
        self._streams: dict[int, StreamIngest] = {}  # led here
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
            self._cluster,
            self._is_of_others,
            self._lease_held,
        )
        self._streams[replica.stream.id] = ingest
        replica.on_commit = ingest.high_watermark_rose
        stand_by = self._standing_by.pop(replica.stream.id, None)
        if stand_by is not None:
            wants = self._lease_held() and self._wants(ingest, whether_silenced=False)
            if wants and self._adopt(ingest, stand_by):
                return
            self._connection.unsubscribe(stand_by.sid)
        if not self._lease_held():
            self._silenced = True  # `check_lease` subscribes once it does.
        else:
            self._settle(ingest)

    def _is_of_others(self, replica: Replica, mark: str) -> None:
        """Note that somebody publishes who expects the answers of another cluster."""
        if self._throttle.is_due(replica.stream.id):
            logger.warning(
                "publisher_of_another_cluster",
                stream=replica.stream.full_name,
                subject=replica.stream.subject,
                cluster=self._cluster,
                other=mark,
            )

    def _adopt(self, ingest: StreamIngest, stand_by: StandBy) -> bool:
        """Store the messages received while standing by, and those that arrive from now on. Returns
        False if they must not be stored and a new subscription is needed."""
        replica = ingest.replica
        ingest.listens(stand_by.sid)
        if not stand_by.store(ingest, replica.stream.leader_epoch, replica.log.log_end_offset):
            ingest.listens_no_more()
            replica.counters.gap_suspected()
            return False
        replica.counters.handed_over(stand_by.gap_us)
        return True

    def _wants(self, ingest: StreamIngest, *, whether_silenced: bool = True) -> bool:
        if self._is_over or (whether_silenced and self._silenced):
            return False
        replica = ingest.replica
        stream, leadership = replica.stream, replica.leadership
        # Only members of groups ask, because looking at each disk and log takes its time.
        can_store = not stream.group or (
            leadership is not None and leadership.can_commit and not replica.why_no_appends
        )
        return wants_to_listen(stream, is_handed_over=ingest.is_handed_over, can_store=can_store)

    def _settle(self, ingest: StreamIngest) -> bool:
        """Listen to the stream, or stop, as is wanted now. Returns whether that has changed."""
        wanted = self._wants(ingest)
        if wanted == ingest.is_listening:
            return False
        if wanted:
            self._subscribe(ingest)
        else:
            self._unsubscribe(ingest)
        return True

    def _keep_membership(self, ingest: StreamIngest) -> None:
        """Leave the queue group, or join it again."""
        if self._settle(ingest):
            event = "group_joined_again" if ingest.is_listening else "group_left"
            logger.info(event, stream=ingest.replica.stream.full_name)

    def _subscribe(self, ingest: StreamIngest) -> None:
        stream = ingest.replica.stream
        refused = partial(self._refused, ingest)
        sid = self._connection.subscribe(
            stream.subject, stream.listens_in, ingest.deliver, refused, stream.ingest_prefix
        )
        ingest.listens(sid)

    def _refused(self, ingest: StreamIngest, sid: int, error: PermissionDeniedError | None) -> None:
        """Note that NATS refuses the subscription: the stream receives nothing until NATS accepts
        it. None: NATS does, or the connection that it refused is gone."""
        ingest.refused(sid, error)
        if error is not None and ingest.refusal is error:
            stream = ingest.replica.stream.full_name
            logger.error("subscription_refused", stream=stream, reason=error.message)

    def _unsubscribe(self, ingest: StreamIngest) -> None:
        if ingest.is_listening:
            ingest.listens_no_more()
            self._connection.unsubscribe(ingest.sid)

    def led_elsewhere(self, replica: Replica) -> None:
        """End a stand-by that will not lead: in a queue group it would take messages from the new
        leader, and store none of them."""
        stand_by = self._standing_by.get(replica.stream.id)
        if stand_by is not None and replica.stream.leader_epoch > stand_by.leader_epoch:
            self._end_stand_by(replica.stream.id)

    def stopped_leading(self, replica: Replica) -> None:
        replica.on_commit = None
        ingest = self._streams.pop(replica.stream.id, None)
        if ingest is not None:
            # **safety** Also a subscription that is being drained: another node leads now, and may
            # have received what is still on the way here.
            self._connection.unsubscribe(ingest.sid)
            ingest.drop()

    # What producers send to this node itself.

    def produce(
        self,
        stream_id: int,
        batch: BatchEnvelope,
        subject: str,
        stored: Callable[[int, int, bool], None],
        refuse: Callable[[JetstreamError], None],
    ) -> None:
        """Store a producer's batch in a stream that this node leads, as if NATS had delivered it,
        and answer it now or once it is committed: see Direct. Raises a JetstreamError if it is not
        stored.

        **safety** It is refused where a message on NATS would not be heard: without the session,
        while the stream is handed over or paused, and on a subject that is not the stream's.
        """
        ingest = self._streams.get(stream_id)
        if ingest is None or not self._lease_held():
            raise NotLeaderError("this node does not lead the stream now; try again")
        stream = ingest.replica.stream
        if stream.is_silent:
            if stream.is_internal:
                raise InvalidRequestError(
                    f"stream {stream.name!r} is the server's own: nobody publishes to it"
                )
            raise StreamPausedError(f"stream {stream.name!r} is paused: nothing was stored")
        if not _is_heard(stream.subject, subject):
            raise InvalidRequestError(
                f"{subject!r} is not a subject of stream {stream.full_name}: nothing was stored"
            )
        if ingest.is_handed_over or self._is_over:
            raise UnavailableError(f"stream {stream.name!r} is being handed over; try again")
        ingest.produce(batch, subject.encode(), Direct(stored, refuse))

    def take(self, stream_id: int, delivery: Delivery) -> None:
        """Store messages that came by another way, in a stream that this node leads, as if NATS had
        delivered them on its subject. **safety** Where they would not be heard there, they are
        dropped without an answer, as there: another leader may store and acknowledge them."""
        ingest = self._streams.get(stream_id)
        if ingest is None or not ingest.is_listening or not self.may_feed():
            return
        delivery.sid = ingest.sid
        ingest.deliver(delivery)

    # Pausing.

    def access_changed(self, replica: Replica) -> None:
        """Listen again, or stop listening. Messages that NATS has delivered by then are stored."""
        ingest = self._streams.get(replica.stream.id)
        if ingest is None or self._silenced:
            return
        wanted = self._wants(ingest)
        if wanted and not ingest.is_listening:
            if ingest.has_listened:
                replica.counters.gap_suspected()  # There was no subscription meanwhile.
            self._subscribe(ingest)
        elif ingest.is_listening and not wanted:
            ingest.listens_no_more()
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

    @property
    def hears_nothing(self) -> bool:
        """Whether NATS refuses every subscription of this node."""
        listening = [each for each in self._streams.values() if each.is_listening]
        return bool(listening) and all(each.refusal is not None for each in listening)

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
        ingest.is_handed_over = True
        if not ingest.is_listening:
            return
        ingest.listens_no_more()
        if self.is_responsive:
            await self._connection.drain_subscriptions([ingest.sid], PAUSE_SECONDS)
        else:
            self._connection.unsubscribe(ingest.sid)

    def resume(self, stream_id: int) -> None:
        """Undo `pause`."""
        ingest = self._streams.get(stream_id)
        if ingest is None:
            return
        ingest.is_handed_over = False
        if self._wants(ingest):
            self._unsubscribe(ingest)  # If `pause` has not begun.
            self._subscribe(ingest)
            ingest.replica.counters.gap_suspected()  # There was no subscription meanwhile.

    async def stand_by(
        self, stream: StreamMetadata, leader_epoch: int, end_offset: int, silent_us: int
    ) -> int:
        """Listen to a stream that this node is about to lead, for STAND_BY_SECONDS at most.

        leader_epoch, end_offset: of the old leader. silent_us: for how long there was no
        subscription. Returns the length of the whole gap in µs, once NATS has confirmed. Raises
        UnavailableError if NATS does not confirm; no stand-by is left then, nor if the caller is
        cancelled.
        """
        if stream.is_silent:
            return silent_us
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._end_stand_by(stream.id)
        stand_by = self._standing_by[stream.id] = StandBy(leader_epoch, end_offset)
        stand_by.sid = self._connection.subscribe(
            stream.subject,
            stream.listens_in,
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
        for ingest in self._streams.values():
            ingest.listens_no_more()
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
        elif self._silenced or any(each.is_withheld for each in self._streams.values()):
            self._silenced = False
            logger.info("ingest_resumed", streams=len(self._streams))
            for ingest in self._streams.values():
                self._settle(ingest)
                ingest.committed()
        else:
            for ingest in self._streams.values():
                if ingest.replica.stream.group:
                    self._keep_membership(ingest)
            for stream_id in list(self._standing_by):
                if self._replicas.get(StreamId(stream_id)) is None:
                    self._end_stand_by(stream_id)

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

    def _suspect_gaps(self) -> None:
        """Count a gap for every stream: they have no subscription."""
        for ingest in self._streams.values():
            if not ingest.replica.stream.is_internal:
                ingest.replica.counters.gap_suspected()

    async def confirm(self, stream_id: int) -> None:
        """Return once the NATS server has confirmed the stream's subscription.

        If the subscription ends or is made again meanwhile, NATS is asked again; also if it was
        refused earlier, because the reason may be gone. Raises UnavailableError when NATS does not
        answer, PermissionDeniedError when it refuses, NotLeaderError when this node does not lead
        the stream (any more).
        """
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        confirmed: tuple[StreamIngest, int] | None = None
        first = self._streams.get(stream_id)
        if first is not None and first.refusal is not None:
            self._unsubscribe(first)
            self._settle(first)
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
            if not ingest.is_listening:
                await asyncio.sleep(_POLL_SECONDS)  # The session may lapse and return.
                continue
            asked = (ingest, ingest.sid)
            await self._flush()
            confirmed = asked if ingest.is_listening and ingest.sid == asked[1] else None
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
        wants = self._wants(ingest, whether_silenced=False)
        return bool(stream.group) and not ingest.is_handed_over and not wants

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
        for ingest in self._streams.values():
            ingest.listens_no_more()
        self._is_over = True
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while any(ingest.pending_count for ingest in self._streams.values()):
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("acks_pending_at_stop")
                break
            await asyncio.sleep(_POLL_SECONDS)
        await self._connection.close()


def wants_to_listen(stream: StreamMetadata, *, is_handed_over: bool, can_store: bool) -> bool:
    """Whether the leader of a stream, in its session, is to listen to the stream's subject.

    A member of a queue group that cannot store leaves the messages to the other members. Any other
    leader that cannot store listens, and tells publishers so."""
    if is_handed_over or stream.is_silent:
        return False
    return not stream.group or (can_store and not stream.readonly)


@lru_cache(maxsize=1024)
def _is_heard(pattern: str, subject: str) -> bool:
    """Whether a stream on `pattern` hears what is published on `subject`. Raises
    InvalidRequestError unless that is a subject without wildcards. (Producers repeat theirs.)"""
    check_literal(subject)
    return matches(pattern, subject)
