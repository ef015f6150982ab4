"""Streams with `key: subject`: what is stored as the key, and what deletes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.batch import Flags
from jetstream_protocol.envelope import encode_batch, encode_record
from jetstream_protocol.errors import InvalidRequestError, MessageTooLargeError
from jetstream_server.ingest.stream import keyed_batches
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, SUBJECT, batch, deliver, with_headers
from tests.unit.ingest.streams import INBOX, Stream, stream_on
from tests.unit.ingest.test_produced import Producer

INVALID, UNSUPPORTED, TOO_LARGE = 10003, 20001, 10054
BUCKET = {"key": "subject", "compact": True}


def keys(stream: Stream) -> list[bytes | None]:
    return [key for each in stream.batches() for key in each.keys()]  # noqa: SIM118  of a batch


@on_loop
async def test_the_key_of_each_record_is_its_subject(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, key="subject")
    stream.deliver((b"1", INBOX), (b"2", b""))
    stream.deliver((b"3", INBOX), subject=b"orders.c", headers=[with_headers(b"X: y")])
    assert keys(stream) == [b"orders.0", b"orders.1", b"orders.c"]
    assert stream.values() == [b"1", b"2", b"3"]
    stream.node.flushes.run()
    assert [seq for _, seq in stream.acked()] == [1, 3]


@on_loop
async def test_another_key_is_refused_however_it_comes(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, key="subject")
    other = with_headers(b"Jetstream-Key: k")
    own = with_headers(b"Jetstream-Key: " + SUBJECT)
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[other, own], subject=SUBJECT)
    deliver(stream, encode_record(b"3", key=b"k"), encode_record(b"4", key=SUBJECT), reply=INBOX)
    deliver(stream, encode_batch(batch(b"5", keys=[b"k"]), ack_inbox=INBOX))
    assert stream.nacked() == [(INBOX.decode(), INVALID)] * 3
    assert (stream.values(), keys(stream)) == ([b"2", b"4"], [SUBJECT, SUBJECT])


@pytest.mark.parametrize("compression", [0, int(Flags.ZSTD)])
def test_a_producers_batch_gets_the_keys_and_is_recognised_when_it_comes_again(
    tmp_path: Path, compression: int
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path, key="subject")
        sent = batch(
            b"a", b"b", timestamps=[5, 6], producer_id=PRODUCER, producer_sequence=0,
            compression=compression,
        )  # fmt: skip
        for _ in range(2):
            deliver(stream, encode_batch(sent, ack_inbox=INBOX))
        stream.node.flushes.run()
        answers = [answer for _, answer in stream.answers()]
        assert [(a["seq"], a.get("duplicate")) for a in answers] == [(2, None), (2, True)]
        assert (keys(stream), stream.values()) == ([SUBJECT] * 2, [b"a", b"b"])
        (stored,) = stream.batches()
        assert stored.timestamps() == [5, 6]

    scenario()


@on_loop
async def test_a_single_message_straight_to_the_leader_gets_its_key(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path, **BUCKET), Producer()
    deletion = with_headers(b"KV-Operation: DEL", b"Nats-Rollup: sub")
    producer.sends(stream, batch(b"1"))
    producer.sends(stream, batch(b"", header_blocks=[deletion]))
    producer.sends(stream, batch(b"1", keys=[b"k"]))
    stream.node.flushes.run()
    assert producer.told == [InvalidRequestError, (0, 1, False), (1, 1, False)]
    assert (keys(stream), stream.values()) == ([SUBJECT] * 2, [b"1", None])


@on_loop
async def test_keys_count_in_the_length_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes must not become gigabytes of keys."""
    monkeypatch.setattr(keyed_batches, "EXPANDED_BYTES_MAX", 200)
    stream, producer = stream_on(tmp_path, key="subject"), Producer()
    producer.sends(stream, batch(*[b""] * 20))
    producer.sends(stream, batch(*[b""] * 10))
    stream.node.flushes.run()
    assert producer.told == [MessageTooLargeError, (0, 10, False)]


@pytest.mark.parametrize(
    ("lines", "value", "stored"),
    [
        ([b"KV-Operation: DEL"], b"", None),
        ([b"KV-Operation: PURGE", b"Nats-Rollup: sub"], b"", None),
        ([b"Jetstream-Tombstone: true"], b"", None),
        ([b"X: y"], b"", b""),
        ([b"KV-Operation: PUT"], b"", b""),
        ([b"KV-Operation: DEL"], b"value", b"value"),
        ([b"X-KV-Operation: DEL"], b"", b""),
    ],
)
def test_what_deletes_a_key_of_a_bucket(
    tmp_path: Path, lines: list[bytes], value: bytes, stored: bytes | None
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path, **BUCKET)
        stream.deliver((value, INBOX), headers=[with_headers(*lines)])
        assert stream.values() == [stored]
        (found,) = stream.batches()
        assert found.header_blocks() == [with_headers(*lines)]

    scenario()


@on_loop
async def test_on_other_streams_these_headers_mean_what_they_meant(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, compact=True)
    blocks = [with_headers(b"KV-Operation: DEL"), with_headers(b"Nats-Rollup: sub")]
    stream.deliver((b"", INBOX), (b"", INBOX), headers=blocks)
    assert stream.nacked() == [(INBOX.decode(), UNSUPPORTED)]
    assert stream.values() == [b""]


@pytest.mark.parametrize("config", [{"key": "subject"}, {"compact": True}, {}])
def test_rollups_are_for_streams_that_keep_the_last_of_each_subject(
    tmp_path: Path, config: dict[str, object]
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path, **config)
        stream.deliver((b"v", INBOX), headers=[with_headers(b"Nats-Rollup: sub")])
        assert stream.nacked() == [(INBOX.decode(), UNSUPPORTED)]

    scenario()


@on_loop
async def test_a_bucket_takes_a_rollup_of_the_subject_and_no_other(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, **BUCKET)
    blocks = [with_headers(b"Nats-Rollup: sub"), with_headers(b"Nats-Rollup: all")]
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=blocks)
    assert stream.nacked() == [(INBOX.decode(), UNSUPPORTED)]
    assert stream.values() == [b"1"]


@on_loop
async def test_what_compaction_keeps_counts_as_it_is_now(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, key="subject")
    rollup = with_headers(b"Nats-Rollup: sub")
    stream.deliver((b"1", INBOX), headers=[rollup])
    assert stream.nacked() == [(INBOX.decode(), UNSUPPORTED)]
    config = replace(stream.replica.stream.config, compact=True)
    stream.replica.stream = replace(stream.replica.stream, config=config)
    stream.deliver((b"2", INBOX), headers=[rollup])
    assert stream.values() == [b"2"]
