"""Messages and batches that are to be stored at an offset or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol import batch as batches
from jetstream_protocol.envelope import encode_batch, encode_record
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import PRODUCER, batch, deliver, with_headers, with_id
from tests.unit.ingest.streams import INBOX, stream_on

WRONG_SEQUENCE = 10071


def expecting(sequence: int, *others: bytes) -> bytes:
    return with_headers(b"Nats-Expected-Last-Sequence: %d" % sequence, *others)


@on_loop
async def test_the_expected_last_sequence_is_held_against_the_log_end_in_order(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    blocks = [expecting(0), expecting(0), b"", expecting(2), expecting(2), b"", expecting(4)]
    stream.deliver(*[(b"%d" % i, b"_INBOX.%d" % i) for i in range(7)], headers=blocks)
    refused = stream.answers()
    assert [(r, a["error"]["err_code"], a["error"]["description"]) for r, a in refused] == [
        ("_INBOX.1", WRONG_SEQUENCE, "wrong last sequence: 1"),
        ("_INBOX.4", WRONG_SEQUENCE, "wrong last sequence: 3"),
    ]
    assert stream.values() == [b"0", b"2", b"3", b"5", b"6"]


@on_loop
async def test_offsets_expected_one_after_the_other_are_stored_in_one_batch(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    blocks = [expecting(i) for i in range(5)]
    stream.deliver(*[(b"%d" % i, INBOX) for i in range(5)], headers=blocks)
    assert [batch.values() for batch in stream.batches()] == [[b"0", b"1", b"2", b"3", b"4"]]


@on_loop
async def test_offsets_expected_after_a_batch_that_is_split_are_held_against_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with a wrong expectation is refused, so those after it get lower offsets than
    expected."""
    monkeypatch.setattr(batches, "BATCH_BYTES_MAX", 4096)
    stream = stream_on(tmp_path)
    values = [bytes(1500), bytes(5000), b"late", b"right"]
    blocks = [b"", b"", expecting(2), expecting(1)]
    stream.deliver(*[(v, b"_INBOX.%d" % i) for i, v in enumerate(values)], headers=blocks)
    assert stream.nacked() == [("_INBOX.1", 10054), ("_INBOX.2", WRONG_SEQUENCE)]
    assert stream.values() == [values[0], b"right"]


@on_loop
async def test_a_repetition_is_a_duplicate_before_its_condition_is_untrue(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    block = expecting(0, b"Nats-Msg-Id: a")
    stream.deliver((b"1", INBOX), (b"1", INBOX), headers=[block, block], subject=b"orders.x")
    stream.node.flushes.run()
    assert [(a["seq"], a.get("duplicate")) for _, a in stream.answers()] == [(1, None), (1, True)]


@on_loop
async def test_an_enveloped_record_is_known_by_its_id_and_held_to_its_offset(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)

    def sent(value: bytes, offset: int, message_id: bytes) -> bytes:
        return encode_record(
            value, header_block=with_id(message_id), ack_inbox=INBOX,
            correlation=value, expected_offset=offset,
        )  # fmt: skip

    deliver(stream, sent(b"1", 0, b"a"), sent(b"2", 7, b"b"), sent(b"3", 0, b"a"))
    ((_, refusal),) = stream.answers()
    assert (refusal["correlation"], refusal["error"]["err_code"]) == ("2", WRONG_SEQUENCE)
    stream.node.flushes.run()
    assert [(a["correlation"], a.get("duplicate")) for _, a in stream.answers()] == [
        ("1", None),
        ("3", True),
    ]


@on_loop
async def test_a_batch_that_expects_an_offset_is_stored_there_or_refused(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)

    def expecting(offset: int, sequence: int) -> bytes:
        sent = batch(b"v", producer_id=PRODUCER, producer_sequence=sequence)
        return encode_batch(sent, ack_inbox=INBOX, expected_offset=offset)

    deliver(stream, expecting(0, 0), b"plain", expecting(1, 1), expecting(2, 1), expecting(0, 0))
    ((_, refusal),) = stream.answers()
    assert refusal["error"] == {
        "code": 400, "err_code": WRONG_SEQUENCE, "description": "wrong last sequence: 2"
    }  # fmt: skip
    stream.node.flushes.run()
    assert [(a["seq"], a.get("duplicate")) for _, a in stream.answers()] == [
        (1, None),
        (3, None),
        (1, True),
    ]
