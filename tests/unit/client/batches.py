"""Encoded batches for the client's unit tests."""

from __future__ import annotations

from collections.abc import Sequence

from jetstream_client import Messages
from jetstream_client.reading.messages import MessageCollector
from jetstream_protocol.batch import encode


def batch_bytes(
    values: Sequence[bytes | None], base_offset: int = 0, leader_epoch: int = 0, **columns: object
) -> bytes:
    """One stamped batch, as a server sends it."""
    subjects = columns.pop("subjects", b"orders.eu")
    batch = encode(values, subjects, **columns)  # type: ignore[arg-type]
    batch.stamp(base_offset, leader_epoch, 1_700_000_000_000_000 + base_offset)
    return batch.to_bytes()


def numbered(count: int, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """A batch whose values are the offsets, as text."""
    values = [b"%d" % offset for offset in range(base_offset, base_offset + count)]
    return batch_bytes(values, base_offset, leader_epoch)


def messages_of(data: bytes, offset: int = 0) -> Messages:
    cutter = MessageCollector("orders", offset)
    cutter.add(data)
    return cutter.messages()
