"""Whole batches at a stream's ingest: which are stored, and how."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.types import MonotonicUs
from jetstream_server.ingest.stream.unpacking import (
    NODE_BYTES_PER_SECOND,
    STREAM_BYTES_PER_SECOND,
    Unpacking,
)
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, SUBJECT, batch, deliver, produced, with_headers
from tests.unit.ingest.streams import INBOX, stream_on

INVALID, UNSUPPORTED, CORRUPT = 10003, 20001, 20015


@on_loop
async def test_a_batch_is_stored_as_it_came_and_its_answer_counts_it(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    sent = batch(b"1", b"2", keys=[b"k", None], timestamps=[7, 5], compression=Flags.ZSTD)
    deliver(stream, b"before", encode_batch(sent, ack_inbox=INBOX, correlation=b"c"), b"after")
    assert stream.written == []
    stream.node.flushes.run()
    (answer,) = stream.answers()
    assert answer == (
        "_INBOX.a",
        {"stream": "orders", "seq": 3, "count": 2, "correlation": "c"},
    )
    before, stored, after = stream.batches()
    assert (before.values(), after.values()) == ([b"before"], [b"after"])
    assert stored.header.body_crc == int.from_bytes(sent.header[12:16], "little")
    assert (stored.header.base_offset, stored.header.leader_epoch) == (
        1,
        stream.replica.stream.leader_epoch,
    )
    assert (stored.values(), stored.keys(), stored.timestamps()) == (
        [b"1", b"2"],
        [b"k", None],
        [7, 5],
    )


@on_loop
async def test_a_batch_of_another_subject_than_nats_says_is_refused(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(
        stream,
        encode_batch(batch(subject=b"orders.forged"), ack_inbox=INBOX),
        encode_batch(encode([b"a", b"b"], [SUBJECT, b"orders.forged"]), ack_inbox=INBOX),
        encode_batch(batch(subject=b""), ack_inbox=INBOX),
    )
    assert stream.nacked() == [("_INBOX.a", INVALID)] * 3
    assert stream.values() == []


@pytest.mark.parametrize(
    "header",
    [b"Nats-Msg-Id: 1", b"Jetstream-Key: k", b"Nats-TTL: 1", b"Nats-Expected-Last-Sequence: 0"],
)
def test_a_batch_whose_headers_ask_for_anything_is_refused(tmp_path: Path, header: bytes) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path)
        block = with_headers(header)
        inside = batch(b"1", b"2", header_blocks=[b"", block])
        packed = batch(b"1", b"2", header_blocks=[b"", block], compression=Flags.LZ4)
        stream.deliver(
            (encode_batch(inside), INBOX), (encode_batch(packed), INBOX), subject=SUBJECT
        )
        stream.deliver((encode_batch(batch()), INBOX), headers=[block], subject=SUBJECT)
        assert stream.nacked() == [("_INBOX.a", UNSUPPORTED)] * 3
        harmless = with_headers(b"Nats-Trace-Dest: x")
        around = encode_batch(batch(b"1", header_blocks=[harmless]))
        stream.deliver((around, INBOX), headers=[harmless], subject=SUBJECT)
        assert stream.values() == [b"1"]

    scenario()


@on_loop
async def test_garbage_instead_of_a_batch_is_refused(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    good = batch()
    for body in (b"", good.body[:-8], good.body + bytes(8), b"x" * len(good.body)):
        deliver(stream, encode_batch(EncodedBatch(good.header, body, 3, 2), ack_inbox=INBOX))
    deliver(stream, encode_batch(EncodedBatch(bytearray(5), b"", 3, 2), ack_inbox=INBOX))
    assert stream.nacked() == [("_INBOX.a", CORRUPT)] * 5
    assert stream.values() == []


@on_loop
async def test_a_batch_over_the_bounds_is_refused_and_one_that_asks_nothing_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    stream.bounds.pending_acks_max = 0
    deliver(stream, produced(0), encode_batch(batch(b"quiet")))
    assert stream.nacked() == [("_INBOX.a", 10008)]
    assert stream.values() == [b"quiet"]
    stream.bounds.pending_acks_max = 1
    deliver(stream, produced(0, b"0"))
    assert stream.values() == [b"quiet", b"0"]


@on_loop
async def test_one_read_unpacks_so_much_and_the_rest_is_to_come_again(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.bounds.uncommitted_bytes_max = 1 << 30
    values = [bytes(1 << 20)] * 12
    packed = [
        encode_batch(
            batch(*values, producer_id=PRODUCER, producer_sequence=i, compression=Flags.ZSTD),
            ack_inbox=INBOX,
        )
        for i in range(3)
    ]
    deliver(stream, *packed, b"plain")
    assert stream.nacked() == [("_INBOX.a", 10008)]
    assert [len(each) for each in stream.batches()] == [12, 12, 1]
    deliver(stream, *packed[2:])
    assert [len(each) for each in stream.batches()] == [12, 12, 1, 12]


BOMB = encode_batch(batch(bytes(15 << 20), compression=Flags.ZSTD), ack_inbox=INBOX)
USUAL = encode_batch(
    batch(*(random.Random(n).randbytes(2048) * 20 for n in range(200)), compression=Flags.ZSTD),
    ack_inbox=INBOX,
)


@on_loop
async def test_a_stream_unpacks_so_much_a_second_of_what_is_packed_too_closely(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    stream.bounds.uncommitted_bytes_max = 1 << 30
    log = stream.replica.log
    for _ in range(10):
        deliver(stream, BOMB)
    stored = log.log_end_offset
    assert 2 <= stored <= 4
    assert stream.nacked() == [("_INBOX.a", 10008)] * (10 - stored)
    deliver(stream, USUAL, b"plain")  # Others of the stream are stored.
    assert log.log_end_offset == stored + 200 + 1
    stream.node.clocks.advance(1_000_000)
    for _ in range(10):
        deliver(stream, BOMB)
    assert stored + 201 + 1 <= log.log_end_offset <= stored + 201 + 4


@on_loop
async def test_what_is_packed_as_data_usually_is_has_no_limit(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.bounds.uncommitted_bytes_max = 1 << 30
    for _ in range(30):
        deliver(stream, USUAL)
    assert stream.replica.log.log_end_offset == 30 * 200
    assert stream.nacked() == []


def test_one_stream_leaves_the_others_theirs() -> None:
    assert 2 * STREAM_BYTES_PER_SECOND <= NODE_BYTES_PER_SECOND
    node = Unpacking(NODE_BYTES_PER_SECOND)
    now = MonotonicUs(0)
    for _ in range(100):  # Each a stream with its own.
        if node.has_room(16 << 20, now):
            node.take(16 << 20)
    assert not node.has_room(16 << 20, now)
    assert node.has_room(16 << 20, MonotonicUs(1_000_000))
