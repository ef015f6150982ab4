"""Batches that producers send to the node itself, at a real log: when they are answered, and what
they are told when a leadership ends or is about to."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.envelope import BatchEnvelope, encode_batch
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.stream.acks import Direct
from jetstream_server.ingest.stream.stream_ingest import Bounds
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, SUBJECT, batch, deliver
from tests.unit.ingest.streams import INBOX, Stream, stream_on
from tests.unit.ingest.test_ingest import Bench

Told = tuple[int, int, bool] | type[JetstreamError]


class Producer:
    """told: what it was answered, in order."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    @property
    def direct(self) -> Direct:
        return Direct(
            lambda *stored: self.told.append(stored),
            lambda error: self.told.append(type(error)),
        )

    def sends(self, stream: Stream, encoded: EncodedBatch, **asked: object) -> None:
        stream.ingest.produce(enveloped(encoded, **asked), SUBJECT, self.direct)


def enveloped(encoded: EncodedBatch, **asked: object) -> BatchEnvelope:
    return BatchEnvelope(bytes(encoded.header), bytes(encoded.body), **asked)  # type: ignore[arg-type]


def of_producer(sequence: int, *values: bytes) -> EncodedBatch:
    return batch(*values, producer_id=PRODUCER, producer_sequence=sequence)


@on_loop
async def test_it_is_told_once_the_batch_is_committed_and_not_before(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path), Producer()
    producer.sends(stream, batch(b"1", b"2"))
    producer.sends(stream, batch(b"3"), ack_leader=True)
    assert producer.told == [(2, 1, False)]
    assert stream.bounds.pending_acks == 1
    stream.node.flushes.run()
    assert producer.told == [(2, 1, False), (0, 2, False)]
    assert stream.written == [], "something went to NATS"
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)
    assert stream.replica.counters.acks_sent == 2


@pytest.mark.parametrize("acks", ["off", "envelope"])
def test_it_is_told_whatever_the_stream_answers_on_nats(tmp_path: Path, acks: str) -> None:
    @on_loop
    async def scenario() -> None:
        stream, producer = stream_on(tmp_path, acks=acks), Producer()
        producer.sends(stream, batch(b"1"))
        assert producer.told == []
        stream.node.flushes.run()
        assert producer.told == [(0, 1, False)]

    scenario()


@on_loop
async def test_both_ways_share_the_numbers_and_the_order(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path), Producer()
    producer.sends(stream, of_producer(0, b"0"))
    deliver(stream, encode_batch(of_producer(1, b"1"), ack_inbox=INBOX))
    deliver(stream, encode_batch(of_producer(0, b"0"), ack_inbox=INBOX))  # Sent again, on NATS.
    producer.sends(stream, of_producer(1, b"1"))  # And the other way round.
    assert producer.told == []
    stream.node.flushes.run()
    assert producer.told == [(0, 1, False), (1, 1, True)]
    assert [payload.get("duplicate", False) for _, payload in stream.answers()] == [False, True]
    assert stream.values() == [b"0", b"1"]


@on_loop
async def test_a_refusal_stores_nothing(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path, bounds=Bounds(1, 1 << 20)), Producer()
    producer.sends(stream, batch(b"1"), expected_offset=7)
    producer.sends(stream, batch(b"1", subject=b"orders.other"))
    producer.sends(stream, batch(b"1"))
    producer.sends(stream, batch(b"2"))
    assert producer.told == [PreconditionFailedError, InvalidRequestError, UnavailableError]
    assert stream.values() == [b"1"]
    assert stream.replica.counters.nacks_sent == 3


@on_loop
async def test_a_leadership_that_ends_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    """**safety** The batch may be lost with this leader's log, or the next one may hold it."""
    stream, producer = stream_on(tmp_path), Producer()
    producer.sends(stream, batch(b"1"))
    stream.ingest.drop()
    stream.node.flushes.run()
    assert producer.told == [UnknownOutcomeError]
    assert stream.bounds.pending_acks == 0


@on_loop
async def test_below_the_minimum_what_waits_becomes_unknown(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path), Producer()
    producer.sends(stream, batch(b"1"))
    stream.ingest.fail(UnknownOutcomeError("nobody knows"))
    stream.node.flushes.run()
    assert producer.told == [UnknownOutcomeError]


def sent(bench: Bench, value: bytes, subject: str = SUBJECT.decode()) -> list[Told]:
    producer = Producer()
    stored, refuse = producer.direct
    bench.ingest.produce(bench.id, enveloped(batch(value)), subject, stored, refuse)
    return producer.told


@on_loop
async def test_while_a_stream_is_handed_over_nothing_is_taken(tmp_path: Path) -> None:
    """**safety** The old leader's end has been told to the next one."""
    bench = Bench(tmp_path)
    told = sent(bench, b"before")
    await bench.ingest.pause(bench.id)
    with pytest.raises(UnavailableError, match="handed over"):
        sent(bench, b"meanwhile")
    bench.ingest.resume(bench.id)
    sent(bench, b"after")
    assert bench.values() == [b"before", b"on its way", b"after"]
    assert told == [(0, 1, False)]


@on_loop
async def test_without_the_session_nothing_is_taken_and_nobody_is_told(tmp_path: Path) -> None:
    """**safety** Another node may lead by now."""
    bench = Bench(tmp_path)
    told = sent(bench, b"before")
    bench.lease_held = False
    with pytest.raises(NotLeaderError):
        sent(bench, b"meanwhile")
    assert bench.values() == [b"before"]
    assert told == []
    bench.lease_held = True
    bench.ingest.check_lease()
    assert told == [(0, 1, False)]


@pytest.mark.parametrize("subject", ["", "other", "orders.*", "orders.x y", "orders..x"])
def test_a_subject_that_nats_would_not_deliver_is_refused(tmp_path: Path, subject: str) -> None:
    @on_loop
    async def scenario() -> None:
        bench = Bench(tmp_path)
        with pytest.raises(InvalidRequestError):
            sent(bench, b"1", subject)
        assert bench.values() == []

    scenario()
