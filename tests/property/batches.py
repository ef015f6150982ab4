"""Hypothesis strategies for batches, and the plain lists a batch is held against."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from jetstream_protocol.batch import HEADER_BYTES, EncodedBatch, decode_header, encode
from jetstream_protocol.columns import Flags

T = TypeVar("T")

INT64 = st.integers(-(2**63), 2**63 - 1)
PAYLOADS = st.binary(max_size=40)
SUBJECT = st.text("abc.é", min_size=1, max_size=12).map(str.encode)


@dataclass(frozen=True)
class Records:
    """The arguments of `encode`, as lists: what a batch must give back."""

    values: list[bytes | None]
    subjects: bytes | list[bytes]
    keys: list[bytes | None] | None
    header_blocks: list[bytes] | None
    timestamps: list[int] | None
    offset_deltas: list[int] | None
    last_offset_delta: int | None
    compression: int

    def encode(self) -> EncodedBatch:
        return encode(
            self.values,
            self.subjects,
            keys=self.keys,
            header_blocks=self.header_blocks,
            timestamps=self.timestamps,
            offset_deltas=self.offset_deltas,
            last_offset_delta=self.last_offset_delta,
            compression=self.compression,
        )

    def to_bytes(self, base_offset: int = 0, leader_epoch: int = 0, timestamp: int = 0) -> bytes:
        batch = self.encode()
        batch.stamp(base_offset, leader_epoch, timestamp)
        return batch.to_bytes()

    @property
    def subject_column(self) -> Sequence[bytes]:
        if isinstance(self.subjects, bytes):
            return [self.subjects] * len(self.values)
        return self.subjects


@st.composite
def wild_bodies(draw: st.DrawFn, batch: bytes) -> bytes:
    """The batch's body with some of its words replaced: offsets, lengths, data."""
    header = decode_header(batch)
    body = bytearray(batch[HEADER_BYTES : HEADER_BYTES + header.body_length])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(body) - 4)))
        word = draw(st.integers(-20, 200) | st.integers(-(2**31), 2**31 - 1))
        body[at : at + 4] = struct.pack("<i", word)
    return bytes(body)


@st.composite
def records(draw: st.DrawFn, min_size: int = 1, max_size: int = 20) -> Records:
    """Any combination of columns and compression, with and without compaction's gaps."""
    count = draw(st.integers(min_size, max_size))

    def column(items: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
        return st.lists(items, min_size=count, max_size=count)

    some = st.sets(st.integers(0, 60), min_size=count, max_size=count)
    # A batch that compaction left empty still covers offsets; a fresh one has records.
    deltas = draw(st.none() | some if count else some)
    offset_deltas = None if deltas is None else sorted(deltas)
    last_offset_delta = None
    if offset_deltas is not None:
        reach = offset_deltas[-1] if offset_deltas else 0
        last_offset_delta = draw(st.integers(reach, reach + 5))
    present: st.SearchStrategy[bytes | None] = PAYLOADS.map(lambda payload: payload)
    nullable = column(present) | column(st.none() | PAYLOADS)
    return Records(
        values=draw(nullable),
        subjects=draw(SUBJECT | column(SUBJECT)),
        keys=draw(st.none() | nullable),
        header_blocks=draw(st.none() | column(PAYLOADS)),
        timestamps=draw(st.none() | column(INT64)),
        offset_deltas=offset_deltas,
        last_offset_delta=last_offset_delta,
        compression=draw(st.sampled_from([0, Flags.ZSTD, Flags.LZ4])),
    )
