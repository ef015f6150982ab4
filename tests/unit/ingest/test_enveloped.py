"""Envelopes at a stream's ingest: what is stored of them, and who is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol import batch as batches
from jetstream_protocol.batch import EncodedBatch, Flags, encode
from jetstream_protocol.envelope import COOKIE, encode_batch, encode_record
from tests.support.loops import on_loop
from tests.unit.ingest.streams import INBOX, Stream, stream_on

S = b"orders.x"
P = 2**62
INVALID, UNSUPPORTED, CORRUPT, OUT_OF_SEQUENCE, WRONG_SEQUENCE = 10003, 20001, 20015, 20017, 10071


def batch(*values: bytes, subject: bytes = S, **options: object) -> EncodedBatch:
    return encode(list(values) or [b"a", b"b", b"c"], subject, **options)  # type: ignore[arg-type]


def produced(sequence: int, *values: bytes, producer_id: int = P) -> bytes:
    return encode_batch(
        batch(*values, producer_id=producer_id, producer_sequence=sequence), ack_inbox=INBOX
    )


def deliver(stream: Stream, *payloads: bytes, reply: bytes = b"") -> None:
    stream.deliver(*[(payload, reply) for payload in payloads], subject=S)


# Records.


@on_loop
async def test_a_record_is_stored_with_its_key_headers_and_value(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    block = b"NATS/1.0\r\nX: y\r\n\r\n"
    deliver(
        stream,
        encode_record(b"v", key=b"k", header_block=block),
        b"plain",
        encode_record(None, key=b""),
        encode_record(b""),
    )
    (stored,) = stream.batches()
    assert stored.values() == [b"v", b"plain", None, b""]
    assert stored.keys() == [b"k", None, b"", None]
    assert stored.header_blocks() == [block, b"", b"", b""]
    assert stored.subjects() == [S] * 4


@on_loop
async def test_a_coincidental_cookie_is_a_plain_message(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    good = encode_record(b"v", key=b"k")
    payloads = [COOKIE, COOKIE + b"text", good[:-1], good + b"x", good]
    deliver(stream, *payloads, reply=INBOX)
    stream.node.flushes.run()
    assert stream.values() == [*payloads[:-1], b"v"]
    assert stream.acked() == [("_INBOX.a", seq) for seq in range(1, 6)]


@on_loop
async def test_the_answer_goes_to_the_envelopes_inbox_with_its_correlation_id(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    deliver(
        stream,
        encode_record(b"1", ack_inbox=b"_INBOX.e", correlation=b"c-1"),
        encode_record(b"2", ack_inbox=b"_INBOX.e"),
        encode_record(b"3", correlation=b"c-3"),
        encode_record(b"4"),
        b"5",
        reply=b"_INBOX.r",
    )
    assert stream.bounds.pending_acks == 5
    stream.node.flushes.run()
    assert sorted(stream.answers(), key=lambda each: each[1]["seq"]) == [
        ("_INBOX.e", {"stream": "orders", "seq": 1, "correlation": "c-1"}),
        ("_INBOX.e", {"stream": "orders", "seq": 2}),
        ("_INBOX.r", {"stream": "orders", "seq": 3, "correlation": "c-3"}),
        ("_INBOX.r", {"stream": "orders", "seq": 4}),
        ("_INBOX.r", {"stream": "orders", "seq": 5}),
    ]
    assert stream.bounds.pending_acks == 0


@on_loop
async def test_under_acks_envelope_only_who_asks_in_an_envelope_is_answered(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, acks="envelope")
    deliver(
        stream,
        b"plain",
        encode_record(b"no inbox"),
        encode_record(b"asks", ack_inbox=b"_INBOX.e"),
        encode_batch(batch(), ack_inbox=b"_INBOX.e"),
        encode_batch(batch()),
        reply=b"_INBOX.service",
    )
    deliver(stream, b"plain again", reply=b"_INBOX.service")
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.e", 3), ("_INBOX.e", 6)]
    assert stream.replica.log.log_end_offset == 10


@on_loop
async def test_under_acks_off_nobody_is_answered_and_everything_stored(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, acks="off")
    deliver(stream, encode_record(b"v", ack_inbox=INBOX), produced(0), produced(7), reply=INBOX)
    stream.node.flushes.run()
    assert stream.written == []
    assert stream.values() == [b"v", b"a", b"b", b"c"]
    assert stream.ingest.pending_count == 0


@on_loop
async def test_no_envelope_makes_the_server_publish_where_it_may_not(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(
        stream,
        encode_record(b"v", ack_inbox=b"orders.evil"),
        encode_record(b"v", ack_inbox=b"$SYS.evil", correlation=b"c"),
        encode_batch(batch(), ack_inbox=b"orders.evil"),
        encode_batch(batch(subject=b"forged"), ack_inbox=b"orders.evil", correlation=b"c"),
    )
    stream.node.flushes.run()
    assert stream.written == []
    assert stream.replica.counters.acks_suppressed == 4
    assert stream.bounds.pending_acks == 0


@on_loop
async def test_level_leader_is_answered_at_once(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(
        stream,
        encode_record(b"v", ack_inbox=INBOX, ack_leader=True, correlation=b"c"),
        encode_record(b"v", ack_inbox=INBOX, ack_leader=True),
        encode_batch(batch(), ack_inbox=INBOX, ack_leader=True),
    )
    assert stream.acked() == [("_INBOX.a", 1), ("_INBOX.a", 2), ("_INBOX.a", 5)]
    assert stream.bounds.pending_acks == 0


BLOCK = b"NATS/1.0\r\n%b\r\n\r\n"


@pytest.mark.parametrize(
    ("enveloped", "inside", "outside", "err_code"),
    [
        ({"key": b"k"}, b"", b"Jetstream-Key: k", INVALID),
        ({"key": b"k"}, b"Jetstream-Key: k", b"", INVALID),
        ({"ack_leader": True}, b"Jetstream-Ack: all", b"", INVALID),
        ({"expected_offset": 0}, b"Nats-Expected-Last-Sequence: 0", b"", INVALID),
        ({}, b"X: y", b"Nats-Msg-Id: 1", UNSUPPORTED),
        ({}, b"X: y", b"Jetstream-Ack: none", UNSUPPORTED),
        ({}, b"Nats-TTL: 1", b"", UNSUPPORTED),
        ({}, b"Jetstream-Tombstone: true", b"", INVALID),
        ({"correlation": b"c"}, b"Nats-Expected-Stream: other", b"", WRONG_SEQUENCE),
    ],
)
def test_nothing_is_said_twice_or_where_it_is_not_heard(
    tmp_path: Path, enveloped: dict[str, object], inside: bytes, outside: bytes, err_code: int
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path)
        payload = encode_record(
            b"v", header_block=BLOCK % inside if inside else b"", ack_inbox=INBOX, **enveloped
        )  # type: ignore[arg-type]
        stream.deliver((payload, b""), (b"next", INBOX), headers=[BLOCK % outside, b""])
        (_, refusal), *others = stream.answers()
        assert refusal["error"]["err_code"] == err_code
        assert refusal.get("correlation", "").encode() == enveloped.get("correlation", b"")
        assert others == []
        stream.node.flushes.run()
        assert stream.acked() == [("_INBOX.a", 1)]
        assert stream.values() == [b"next"]

    scenario()


@on_loop
async def test_the_header_block_around_a_record_is_stored_if_it_has_none(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    around, own = BLOCK % b"Jetstream-Ack: leader", BLOCK % b"X: y"
    stream.deliver(
        (encode_record(b"1", key=b"k", ack_inbox=INBOX), b""),
        (encode_record(b"2", header_block=own), b""),
        headers=[around, BLOCK % b"Trace: z"],
    )
    assert stream.acked() == [("_INBOX.a", 1)]
    assert stream.batches()[0].header_blocks() == [around, own]


@on_loop
async def test_askers_with_correlation_ids_are_refused_by_them(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.bounds.pending_acks_max = 0
    deliver(
        stream,
        encode_record(b"1", ack_inbox=INBOX, correlation=b"c-1"),
        encode_record(b"2", ack_inbox=INBOX),
        encode_record(b"3"),
        encode_batch(batch(), ack_inbox=INBOX, correlation=b"c-4"),
    )
    answers = stream.answers()
    assert sorted(payload.get("correlation", "") for _, payload in answers) == ["", "c-1", "c-4"]
    assert {payload["error"]["err_code"] for _, payload in answers} == {10008}
    assert stream.values() == [b"3"]


# Batches.


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
        encode_batch(encode([b"a", b"b"], [S, b"orders.forged"]), ack_inbox=INBOX),
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
        block = BLOCK % header
        inside = batch(b"1", b"2", header_blocks=[b"", block])
        packed = batch(b"1", b"2", header_blocks=[b"", block], compression=Flags.LZ4)
        stream.deliver((encode_batch(inside), INBOX), (encode_batch(packed), INBOX), subject=S)
        stream.deliver((encode_batch(batch()), INBOX), headers=[block], subject=S)
        assert stream.nacked() == [("_INBOX.a", UNSUPPORTED)] * 3
        harmless = BLOCK % b"Nats-Trace-Dest: x"
        around = encode_batch(batch(b"1", header_blocks=[harmless]))
        stream.deliver((around, INBOX), headers=[harmless], subject=S)
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
async def test_a_producers_batches_are_stored_in_sequence_and_once(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(0, b"0"), produced(1, b"1"), produced(0, b"0"), produced(1, b"1"))
    stream.node.flushes.run()
    assert [(a["seq"], a["count"], a.get("duplicate")) for _, a in stream.answers()] == [
        (1, 1, None),
        (2, 1, None),
        (1, 1, True),
        (2, 1, True),
    ]
    deliver(stream, produced(3, b"3"), produced(2, b"2"), produced(3, b"3"))
    (_, refusal) = stream.answers()[0]
    assert refusal["error"]["err_code"] == OUT_OF_SEQUENCE
    assert stream.values() == [b"0", b"1", b"2", b"3"]


@on_loop
async def test_an_unknown_producer_begins_with_its_first_batch(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(1), produced(4), produced(5), produced(1_000))
    assert stream.nacked() == [("_INBOX.a", OUT_OF_SEQUENCE)] * 4
    deliver(stream, produced(0, b"0"), produced(2), produced(1, b"1"))
    assert stream.nacked() == [("_INBOX.a", OUT_OF_SEQUENCE)]
    assert stream.values() == [b"0", b"1"]


@on_loop
async def test_a_duplicate_is_answered_when_its_original_is_committed_and_not_before(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    early = encode_batch(
        batch(b"0", producer_id=P, producer_sequence=0), ack_inbox=b"_INBOX.d", ack_leader=True
    )
    deliver(stream, produced(0, b"0"))
    deliver(stream, produced(0, b"0"), early)
    assert stream.written == []
    assert stream.bounds.pending_acks == 3
    stream.node.flushes.run()
    assert [(reply, a.get("duplicate")) for reply, a in stream.answers()] == [
        ("_INBOX.a", None),
        ("_INBOX.a", True),
        ("_INBOX.d", True),
    ]
    deliver(stream, produced(0, b"0"))
    assert [a["duplicate"] for _, a in stream.answers()] == [True]
    assert stream.bounds.pending_acks == 0


@on_loop
async def test_duplicates_that_wait_are_bounded_too(tmp_path: Path) -> None:
    """Also of level `leader`, which usually wait for nothing."""
    stream = stream_on(tmp_path)
    early = with_headers(b"Nats-Msg-Id: a", b"Jetstream-Ack: leader")
    stream.deliver((b"1", b""), headers=[early])
    stream.bounds.pending_acks_max = 2
    stream.deliver(*[(b"1", b"_INBOX.%d" % i) for i in range(4)], headers=[early] * 4)
    assert stream.nacked() == [("_INBOX.2", 10008), ("_INBOX.3", 10008)]
    assert stream.bounds.pending_acks == 2
    stream.node.flushes.run()
    assert [(reply, a["duplicate"]) for reply, a in stream.answers()] == [
        ("_INBOX.0", True),
        ("_INBOX.1", True),
    ]


@on_loop
async def test_a_new_leader_answers_a_duplicate_once_it_has_committed_the_original(
    tmp_path: Path,
) -> None:
    """It has the original in its log, from its predecessor, and nothing pending."""
    stream = stream_on(tmp_path)
    deliver(stream, produced(0, b"0"), produced(1, b"1"))
    stream.lead_anew()
    deliver(stream, produced(0, b"0"), produced(1, b"1"))
    assert stream.written == []
    stream.node.flushes.run()
    stream.ingest.committed()
    assert [(a["seq"], a["duplicate"]) for _, a in stream.answers()] == [(1, True), (2, True)]


@on_loop
async def test_pending_duplicates_are_dropped_in_silence_when_the_leadership_ends(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    deliver(stream, produced(0), produced(0))
    stream.ingest.drop()
    stream.node.flushes.run()
    assert stream.written == []
    assert (stream.bounds.pending_acks, stream.bounds.uncommitted_bytes) == (0, 0)


@on_loop
async def test_a_batch_that_expects_an_offset_is_stored_there_or_refused(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)

    def expecting(offset: int, sequence: int) -> bytes:
        sent = batch(b"v", producer_id=P, producer_sequence=sequence)
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
            batch(*values, producer_id=P, producer_sequence=i, compression=Flags.ZSTD),
            ack_inbox=INBOX,
        )
        for i in range(3)
    ]
    deliver(stream, *packed, b"plain")
    assert stream.nacked() == [("_INBOX.a", 10008)]
    assert [len(each) for each in stream.batches()] == [12, 12, 1]
    deliver(stream, *packed[2:])
    assert [len(each) for each in stream.batches()] == [12, 12, 1, 12]


# Message ids and expectations of plain messages.


def with_headers(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))


def with_id(message_id: bytes) -> bytes:
    return with_headers(b"Nats-Msg-Id: " + message_id)


@on_loop
async def test_a_message_id_is_stored_once_and_its_repetitions_are_told_where(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    ids = [with_id(b"a"), b"", with_id(b"a"), with_id(b"b"), with_id(b"a"), with_id(b"b")]
    stream.deliver(*[(b"%d" % i, b"_INBOX.%d" % i) for i in range(6)], headers=ids)
    assert stream.written == []
    stream.node.flushes.run()
    assert sorted((reply, a["seq"], a.get("duplicate")) for reply, a in stream.answers()) == [
        ("_INBOX.0", 1, None),
        ("_INBOX.1", 2, None),
        ("_INBOX.2", 1, True),
        ("_INBOX.3", 3, None),
        ("_INBOX.4", 1, True),
        ("_INBOX.5", 3, True),
    ]
    assert stream.values() == [b"0", b"1", b"3"]


@on_loop
async def test_a_repetition_within_the_window_is_a_duplicate_and_after_it_a_message(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, duplicate_window_us=1_000_000)
    node = stream.node
    stream.deliver((b"1", INBOX), headers=[with_id(b"a")])
    node.clock_us += 1_000_000
    stream.deliver((b"2", INBOX), headers=[with_id(b"a")])
    node.clock_us += 1
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")])
    node.flushes.run()
    assert [(a["seq"], a.get("duplicate")) for _, a in stream.answers()] == [
        (1, None),
        (1, True),
        (2, None),
    ]


@on_loop
async def test_the_window_is_altered_while_the_stream_is_led(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX), headers=[with_id(b"a")])
    before = stream.replica.stream
    stream.node.cluster.do(
        "alter_stream",
        stream_id=before.id,
        stream_epoch=before.stream_epoch,
        config={"duplicate_window_us": 1_000_000},
    )
    stream.node.apply()
    stream.node.clock_us += 1_000_001
    stream.deliver((b"2", INBOX), headers=[with_id(b"a")])
    assert stream.values() == [b"1", b"2"]


@on_loop
async def test_a_window_of_0_turns_it_off(tmp_path: Path) -> None:
    stream = stream_on(tmp_path, duplicate_window_us=0)
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"a")] * 2)
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")])
    assert stream.values() == [b"1", b"2", b"3"]


@on_loop
async def test_an_empty_message_id_is_none(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"")] * 2)
    assert stream.values() == [b"1", b"2"]


@on_loop
async def test_duplicates_follow_their_ack_level_but_never_come_before_the_commit(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path)
    blocks = [
        with_headers(b"Nats-Msg-Id: a", b"Jetstream-Ack: " + level)
        for level in (b"all", b"leader", b"none")
    ]
    stream.deliver(*[(b"x", b"_INBOX.%d" % i) for i in range(3)], headers=blocks)
    assert stream.written == []
    stream.node.flushes.run()
    assert [(reply, a.get("duplicate")) for reply, a in stream.answers()] == [
        ("_INBOX.0", None),
        ("_INBOX.1", True),
    ]


@on_loop
async def test_the_original_of_a_refused_message_is_not_taken_for_stored(tmp_path: Path) -> None:
    """Refused for the bounds: its id must not make the next attempt a duplicate."""
    stream = stream_on(tmp_path)
    stream.bounds.pending_acks_max = 0
    stream.deliver((b"1", INBOX), (b"2", INBOX), headers=[with_id(b"a")] * 2)
    assert stream.nacked() == [("_INBOX.a", 10008)] * 2
    stream.bounds.pending_acks_max = 1
    stream.deliver((b"3", INBOX), headers=[with_id(b"a")])
    stream.node.flushes.run()
    assert stream.acked() == [("_INBOX.a", 1)]


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
async def test_offsets_expected_behind_a_batch_that_is_split_are_held_against_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is refused: those behind it come one offset earlier than was said."""
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
    stream.deliver((b"1", INBOX), (b"1", INBOX), headers=[block, block])
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
