"""Listening to a stream that this node is about to lead: kept until it does (design 6).

The old leader has stopped listening and has stored everything up to `end_offset` before this
begins, so what is kept here comes behind that.

**safety** It is stored only by the very next leadership, and if that begins at `end_offset` or
before. Had another one been between, it may have refused or stored these very messages. A log that
is longer shows that the old leader went on after all, and may have stored them, and acknowledged
them; should it have stored some that are not in the log, they were never committed. Nothing is
acknowledged before it is stored. Where it is not stored, neither is what comes on the same
subscription later: the old leader may have had it too, and sooner. A new one begins then.

Bounded in bytes here, in time by its owner; beyond, what was kept is given up: publishers that ask
for an ack hear nothing, the others' messages are part of the gap.
"""

from __future__ import annotations

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.ingest.delivery import Delivery
from jetstream_server.ingest.stream import StreamIngest

BYTES_MAX = 32 * 1024 * 1024
"""A hand-over takes some ten milliseconds: this is what arrives in a tenth of a second at most."""


class StandBy:
    """Of one stream. gap_us: for how long nobody listened before. refusal: of the subscription."""

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
        self._bytes += delivery.value_bytes
        if self._bytes > BYTES_MAX:
            self._kept = None
        if self._kept is not None:
            self._kept.append(delivery)

    def refused(self, _: int, error: PermissionDeniedError) -> None:
        if self._ingest is None:
            self.refusal = error
        else:
            self._ingest.refusal = error

    def store(self, ingest: StreamIngest, leader_epoch: int, log_end_offset: int) -> bool:
        """The leadership has begun: what was kept is stored, and what comes from now on. False:
        neither is, see the module."""
        kept, self._kept = self._kept, None
        is_next = leader_epoch == self.leader_epoch + 1
        if kept is None or not is_next or log_end_offset > self.end_offset:
            return False
        self._ingest = ingest
        for delivery in kept:
            ingest.deliver(delivery)
        return True
