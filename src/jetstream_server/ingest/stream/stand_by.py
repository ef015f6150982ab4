"""Listens to a stream that this node is about to lead, and keeps the messages until it leads
(docs/replication.md, "Hand-over").

Before this begins, the old leader has stopped listening and has stored everything up to
`end_offset`. So the messages kept here come after that.

**safety** They are stored only by the very next leadership, and only if it begins at `end_offset`
or before. Another leadership in between may have refused or stored the same messages. A longer log
shows that the old leader continued, and may have stored and acknowledged them. If the old leader
stored some that are not in the log, they were never committed. Nothing is acknowledged before it is
stored. If the kept messages are not stored, later messages of the same subscription are not stored
either, because the old leader may have received them too. A new subscription begins then.

Messages are copied, because a delivery may hold on to everything that was read with it. This module
limits the bytes, the owner limits the time. Beyond the limit the kept messages are
dropped: publishers that want an ack get none; messages without acks belong to the gap.
"""

from __future__ import annotations

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.stream.stream_ingest import StreamIngest

MESSAGE_BYTES = 256
"""What a message takes in memory beside its value."""
BYTES_MAX = 32 * 1024 * 1024
"""Upper bound on kept bytes. A hand-over takes about ten milliseconds; at most this much arrives in
a tenth of a second."""


class StandBy:
    """The stand-by of one stream. gap_us: for how long there was no subscription before. refusal:
    of the subscription, by NATS."""

    __slots__ = (
        "_bytes",
        "_ingest",
        "_kept",
        "end_offset",
        "gap_us",
        "leader_epoch",
        "refusal",
        "sid",
    )

    def __init__(self, leader_epoch: int, end_offset: int) -> None:
        self.sid = 0
        self.leader_epoch = leader_epoch
        self.end_offset = end_offset
        self.gap_us = 0
        self.refusal: PermissionDeniedError | None = None
        self._ingest: StreamIngest | None = None
        self._kept: list[Delivery] | None = []
        self._bytes = 0

    def deliver(self, delivery: Delivery) -> None:
        if self._ingest is not None:
            self._ingest.deliver(delivery)
            return
        self._bytes += delivery.value_bytes + MESSAGE_BYTES * len(delivery)
        if self._bytes > BYTES_MAX:
            self._kept = None
        if self._kept is not None:
            self._kept.append(_copy_of(delivery))

    def refused(self, sid: int, error: PermissionDeniedError | None) -> None:
        if self._ingest is None:
            self.refusal = error
        else:
            self._ingest.refused(sid, error)

    def store(self, ingest: StreamIngest, leader_epoch: int, log_end_offset: int) -> bool:
        """Begin the leadership: store the kept messages and those that arrive from now on. Returns
        False if neither must be stored; see the module."""
        kept, self._kept = self._kept, None
        is_next = leader_epoch == self.leader_epoch + 1
        if kept is None or not is_next or log_end_offset > self.end_offset:
            return False
        self._ingest = ingest
        for delivery in kept:
            ingest.deliver(delivery)
        return True


def _copy_of(delivery: Delivery) -> Delivery:
    return Delivery(
        delivery.sid,
        delivery.subjects,
        delivery.replies,
        delivery.values,
        delivery.header_blocks,
        may_be_enveloped=delivery.may_be_enveloped,
    )
