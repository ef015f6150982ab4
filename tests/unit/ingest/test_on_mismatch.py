"""A record that does not fit the schema is refused before anything of it is stored, if the stream's
`on_mismatch` is `refuse`, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.errors import SchemaMismatchError
from jetstream_protocol.typed_json import compiled
from jetstream_protocol.types import WallUs
from jetstream_server.serving.grpc.restores import Restores
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, batch, deliver, with_headers, with_id
from tests.unit.ingest.streams import INBOX, Stream, stream_on

MISMATCH = 20024
HEADERS = with_headers(b"A: b")
FITS, OTHER = b'{"price":1.5}', b'{"price":"dear"}'


def refuse(stream: Stream, schema: str, on_mismatch: str = "refuse") -> None:
    known = stream.replica.stream
    config = replace(known.config, on_mismatch=on_mismatch)
    stream.replica.stream = replace(known, config=config, schemas=(schema,))


def refusing(folder: Path, schema: str = "price double not null") -> Stream:
    stream = stream_on(folder)
    refuse(stream, schema)
    return stream


@pytest.mark.parametrize(("schema", "on_mismatch"), [("price double", "keep"), ("", "refuse")])
@on_loop
async def test_it_is_stored_otherwise(tmp_path: Path, schema: str, on_mismatch: str) -> None:
    stream = stream_on(tmp_path)
    refuse(stream, schema, on_mismatch)
    stream.deliver((OTHER, b"_INBOX.a"), (b"no JSON", b"_INBOX.b"))
    assert stream.values() == [OTHER, b"no JSON"]


@pytest.mark.parametrize("headers", [None, [HEADERS] * 4])
@on_loop
async def test_those_beside_it_are_stored(tmp_path: Path, headers: list[bytes] | None) -> None:
    stream = refusing(tmp_path)
    stream.deliver(
        *[(FITS, b"_INBOX.a"), (OTHER, b"_INBOX.b"), (b"{}", b"_INBOX.c"), (FITS, b"_INBOX.d")],
        headers=headers,
    )
    assert stream.values() == [FITS, FITS]
    found = dict(stream.answers())
    assert [found[inbox]["error"]["err_code"] for inbox in ("_INBOX.b", "_INBOX.c")] == [
        MISMATCH,
        MISMATCH,
    ]
    assert found["_INBOX.b"]["error"]["description"] == (
        "the record does not fit the schema of the stream: price is not a double"
    )
    assert "price is missing" in found["_INBOX.c"]["error"]["description"]


@on_loop
async def test_a_batch_that_holds_one_is_refused_as_a_whole(tmp_path: Path) -> None:
    stream = refusing(tmp_path)
    for compression in (0, Flags.ZSTD):
        sent = batch(FITS, OTHER, FITS, compression=compression)
        deliver(stream, encode_batch(sent, ack_inbox=INBOX))
        ((_, answer),) = stream.answers()
        assert answer["error"]["err_code"] == MISMATCH
        assert "record 2 of 3" in answer["error"]["description"]
    deliver(stream, encode_batch(batch(FITS, FITS), ack_inbox=INBOX))
    assert stream.values() == [FITS, FITS]


@on_loop
async def test_a_repeated_batch_and_message_of_before_are_duplicates(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    sent = encode_batch(batch(OTHER, producer_id=PRODUCER, producer_sequence=0), ack_inbox=INBOX)
    headers = [with_id(b"one")]
    for _ in range(2):
        deliver(stream, sent)
        stream.deliver((OTHER, b"_INBOX.b"), headers=headers)
        stream.node.flushes.run()
        assert "error" not in str(stream.answers())
        refuse(stream, "price double")
    assert stream.values() == [OTHER, OTHER]
    stream.deliver((OTHER, b"_INBOX.b"), headers=[with_id(b"two")])
    assert stream.nacked() == [("_INBOX.b", MISMATCH)]


@on_loop
async def test_a_tombstone_fits(tmp_path: Path) -> None:
    stream = refusing(tmp_path)
    stream.deliver((b"", b""), headers=[with_headers(b"Jetstream-Tombstone: true")])
    stream.deliver((b"", b"_INBOX.a"), headers=[HEADERS])
    assert stream.values() == [None]
    assert stream.nacked() == [("_INBOX.a", MISMATCH)]


@on_loop
async def test_an_expected_sequence_does_not_count_what_is_refused(tmp_path: Path) -> None:
    stream = refusing(tmp_path)
    expecting = with_headers(b"Nats-Expected-Last-Sequence: 1")
    stream.deliver(
        *[(FITS, b""), (OTHER, b""), (FITS, b"_INBOX.c")], headers=[HEADERS, HEADERS, expecting]
    )
    assert stream.values() == [FITS, FITS]


@on_loop
async def test_another_schema_holds_at_once(tmp_path: Path) -> None:
    stream = refusing(tmp_path)
    stream.deliver((OTHER, b""), (FITS, b"_INBOX.b"))
    refuse(stream, "price string")
    stream.deliver((OTHER, b""), (FITS, b"_INBOX.b"))
    assert stream.values() == [FITS, OTHER]


@on_loop
async def test_records_are_restored_only_if_they_fit(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, restoring=True)
    refuse(stream, "price double")
    sent = batch(FITS, OTHER)
    sent.stamp(0, 1, WallUs(1))
    with pytest.raises(SchemaMismatchError, match="record 2 of 2"):
        await Restores(lambda: WallUs(10**15)).restore(stream.replica, sent.to_bytes())
    assert stream.values() == []


@pytest.mark.skipif(compiled is None, reason="the decoder is not compiled here")
def test_a_check_keeps_nothing_and_is_done_before_rows_are_added() -> None:
    columns = compiled.Columns(((1, False, (b"a",), ()),))
    value, offsets = b'{"a":1}', (0).to_bytes(4, "little") + (7).to_bytes(4, "little")
    row = offsets, 0, value, 0, len(value), None, 0, 0, 1
    assert columns.check(*row) == (-1, 0)
    assert columns.take()[0] == 0
    columns.add(*row)
    with pytest.raises(ValueError, match="not taken"):
        columns.check(*row)
    assert columns.take()[0] == 1
