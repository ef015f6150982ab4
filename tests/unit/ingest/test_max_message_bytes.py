"""A record above the stream's `max_message_bytes` is refused before anything of it is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.errors import MessageTooLargeError
from jetstream_protocol.record_sizes import check_record_sizes
from tests.support.loops import on_loop
from tests.unit.ingest.streams import Stream, stream_on

TOO_LARGE = 10054


def limit(stream: Stream, most: int) -> None:
    config = replace(stream.replica.stream.config, max_message_bytes=most)
    stream.replica.stream = replace(stream.replica.stream, config=config)


@on_loop
async def test_without_a_limit_everything_is_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"x" * 100_000, b"_INBOX.a"))
    assert stream.values() == [b"x" * 100_000]


@on_loop
async def test_a_message_above_the_limit_is_refused_and_those_beside_it_are_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    limit(stream, 10)
    stream.deliver((b"1234567890", b"_INBOX.a"), (b"12345678901", b"_INBOX.b"), (b"1", b"_INBOX.c"))
    assert stream.values() == [b"1234567890", b"1"]
    found = dict(stream.answers())
    assert found["_INBOX.b"]["error"]["err_code"] == TOO_LARGE
    assert "of 11 bytes" in found["_INBOX.b"]["error"]["description"]
    assert "max_message_bytes: 10" in found["_INBOX.b"]["error"]["description"]


@on_loop
async def test_headers_count(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    limit(stream, 18)
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    stream.deliver((b"1", b"_INBOX.a"), headers=[block])
    assert stream.values() == []
    assert stream.nacked() == [("_INBOX.a", TOO_LARGE)]


@on_loop
async def test_a_duplicate_of_what_was_stored_before_the_limit_is_one(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    block = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    stream.deliver((b"12345", b"_INBOX.a"), headers=[block])
    limit(stream, 1)
    stream.written.clear()
    stream.deliver((b"12345", b"_INBOX.b"), headers=[block])
    assert len(stream.values()) == 1
    assert "error" not in str(stream.answers())
    other = block.replace(b"one", b"two")
    stream.deliver((b"12345", b"_INBOX.c"), headers=[other])
    assert stream.nacked() == [("_INBOX.c", TOO_LARGE)]
    assert len(stream.values()) == 1


def test_a_batch_is_measured_by_its_largest_record() -> None:
    encoded = encode([b"a", b"12345"], b"s", keys=[None, b"key"])
    encoded.stamp(0, 0, 0)  # type: ignore[arg-type]
    batch = Batch.decode(encoded.to_bytes())
    check_record_sizes(batch, 0)
    check_record_sizes(batch, 8)
    with pytest.raises(MessageTooLargeError, match="of 8 bytes"):
        check_record_sizes(batch, 7)
