"""Spans from append to commit: begun for recorded traces only, ended in order, bounded."""

from __future__ import annotations

from pathlib import Path

from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.traces import TraceParent
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream import commit_spans
from jetstream_server.ingest.stream.commit_spans import CommitSpans, EndSpan
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, batch, deliver
from tests.unit.ingest.streams import INBOX, Stream, stream_on

TRACED = b"NATS/1.0\r\ntraceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01\r\n\r\n"
PLAIN = b"NATS/1.0\r\nX: y\r\n\r\n"


class Spans:
    """What was begun, and how it ended."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.begun: list[int] = []
        self.ended: list[tuple[int, str]] = []
        self.room = room

    def begin(
        self, parent: TraceParent, stream: str, offset: int, leader_epoch: int
    ) -> EndSpan | None:
        assert parent == TraceParent(int("a" * 32, 16), int("b" * 16, 16))
        if len(self.begun) >= self.room:
            return None
        self.begun.append(offset)
        return lambda failure: self.ended.append((offset, failure))


def traced(stream: Stream) -> Spans:
    """The stream's ingest anew, with spans."""
    spans = Spans()
    stream.ingest = StreamIngest(
        stream.replica, stream.node.replicas, AckPolicy(), stream.bounds, stream.write, spans
    )
    stream.replica.on_commit = lambda _: stream.ingest.committed()
    return spans


@on_loop
async def test_a_span_ends_when_its_message_is_committed(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    spans = traced(stream)
    stream.deliver((b"a", INBOX), (b"b", INBOX), (b"c", b""), headers=[PLAIN, TRACED, TRACED])
    stream.deliver((b"d", b""))
    assert (spans.begun, spans.ended) == ([1, 2], [])
    stream.node.flushes.run()
    assert spans.ended == [(1, ""), (2, "")]


@on_loop
async def test_records_of_a_batch_have_spans_once(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    spans = traced(stream)
    blocks = [PLAIN, TRACED, b"", TRACED]
    values = [b"1", b"2", b"3", b"4"]
    sent = batch(*values, header_blocks=blocks, compression=Flags.ZSTD)
    sent.set_producer(PRODUCER, 0)
    repeated = encode_batch(sent, ack_inbox=INBOX)
    deliver(stream, b"before", repeated, repeated)
    assert (spans.begun, spans.ended) == ([2, 4], [])
    stream.node.flushes.run()
    assert spans.ended == [(2, ""), (4, "")]


@on_loop
async def test_a_span_ends_with_an_error_when_the_leadership_does(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    spans = traced(stream)
    stream.deliver((b"a", INBOX), headers=[TRACED])
    stream.ingest.drop()
    ((offset, failure),) = spans.ended
    assert (offset, "leadership" in failure) == (0, True)


@on_loop
async def test_a_refused_message_has_no_span(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    spans = traced(stream)
    refused = TRACED.replace(b"\r\n\r\n", b"\r\nNats-Expected-Last-Sequence: 9\r\n\r\n")
    stream.deliver((b"a", INBOX), headers=[refused])
    assert spans.begun == []


def test_no_more_spans_wait_than_may() -> None:
    source = Spans()
    spans = CommitSpans(source, "orders", 0)
    for number in range(20):
        spans.appended([TRACED] * 200, number * 200)
    assert len(source.begun) == commit_spans.WAITING_MAX
    assert source.begun[:101] == [*range(100), 200], "100 of an append"
    spans.committed(10_000)
    assert len(source.ended) == commit_spans.WAITING_MAX
    source.room = 0
    spans.appended([TRACED], 10_000)
    spans.committed(20_000)
    assert len(source.ended) == commit_spans.WAITING_MAX, "there were enough in this second"
