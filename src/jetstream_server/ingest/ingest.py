"""All streams this node leads, on one NATS connection: subscriptions follow leaderships.

The `ReplicaListener` of the node. A stream is listened to exactly while this node leads it; group
members that cannot store leave their queue group, so that it does not feed a black hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import (
    NotEnoughReplicasAfterAppendError,
    PermissionDeniedError,
    StorageError,
    StreamNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.connection import NatsConnection
from jetstream_server.ingest.stream import Bounds, StreamIngest
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

CONFIRM_SECONDS = 5.0
"""A NATS server that takes longer to confirm a subscription is as good as away."""
DRAIN_SECONDS = 5.0
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

    def leading(self, replica: Replica) -> None:
        """Subscribe; what arrives from now on is appended under this leadership."""
        ingest = StreamIngest(
            replica, self._replicas, self._policy, self._bounds, self._connection.write
        )
        self._streams[replica.stream.id] = ingest
        if replica.stream.group:
            self._members[replica.stream.id] = ingest
        if not self._speaks():
            self._silenced = True  # `check_lease` subscribes once it does.
        elif self._wants(ingest) and not self._silenced:
            self._subscribe(ingest)

    def _wants(self, ingest: StreamIngest) -> bool:
        """A member of a queue group that cannot store leaves the messages to the others."""
        replica = ingest.replica
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
        if not self._silenced:
            self._silenced = True
            logger.warning("session_lost", streams=len(self._streams))
            for ingest in self._streams.values():
                ingest.replica.counters.suspected_gaps += 1

    def fell_below_minimum(self, replica: Replica) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            ingest.fail(
                NotEnoughReplicasAfterAppendError(
                    "stored by the leader, but too few replicas are in sync to commit it now; "
                    "it is unknown whether it will be"
                )
            )
            self._keep_membership(ingest)

    def failed(self, replica: Replica, error: StorageError) -> None:
        ingest = self._streams.get(replica.stream.id)
        if ingest is not None:
            # `error` names our files: it is for the log and `describe`, not for publishers.
            ingest.fail(UnknownOutcomeError("stored, but not known to be durable: a disk failed"))
            self._keep_membership(ingest)

    def disconnected(self, reason: str) -> None:
        """The NATS connection was lost: what was published meanwhile without ack is missing."""
        for ingest in self._streams.values():
            ingest.replica.counters.suspected_gaps += 1
            ingest.refusal = None  # The next connection's subscriptions are judged anew.

    async def confirm(self, stream_id: int) -> None:
        """Return once the NATS server has the stream's subscription.

        Raises UnavailableError when it does not answer, PermissionDeniedError when it refuses,
        StreamNotFoundError when the stream is not led here (any more).
        """
        ingest = self._streams.get(stream_id)
        if ingest is None:
            raise StreamNotFoundError("the stream was deleted while it was being created")
        await self._until_heard()
        try:
            await self._connection.flush(CONFIRM_SECONDS)
        except UnavailableError as error:
            raise UnavailableError(
                "the stream exists, but NATS did not confirm its subscription "
                f"({error.message}); create it again once NATS answers"
            ) from error
        if ingest.refusal is not None:
            raise PermissionDeniedError(
                f"the stream exists, but NATS does not let this server subscribe to "
                f"{ingest.replica.stream.subject!r}: {ingest.refusal.message}"
            )

    async def _until_heard(self) -> None:
        """Wait a little for the session: it comes and goes with the controller's."""
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        while self._silenced:
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    "the stream exists, but its leader holds no session now; create it again"
                )
            await asyncio.sleep(_POLL_SECONDS)

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
