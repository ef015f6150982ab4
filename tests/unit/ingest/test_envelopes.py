"""Records in envelopes at a stream's ingest: what is stored of them, and who is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.envelope import COOKIE, encode_batch, encode_record
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import SUBJECT, batch, deliver, produced, with_headers
from tests.unit.ingest.streams import INBOX, stream_on

INVALID, UNSUPPORTED, WRONG_STREAM = 10003, 20001, 10060


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
    assert stored.subjects() == [SUBJECT] * 4


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
        ({"correlation": b"c"}, b"Nats-Expected-Stream: other", b"", WRONG_STREAM),
    ],
)
def test_nothing_is_said_twice_or_where_it_is_not_heard(
    tmp_path: Path, enveloped: dict[str, object], inside: bytes, outside: bytes, err_code: int
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path)
        payload = encode_record(
            b"v", header_block=with_headers(inside) if inside else b"", ack_inbox=INBOX, **enveloped
        )  # type: ignore[arg-type]
        stream.deliver((payload, b""), (b"next", INBOX), headers=[with_headers(outside), b""])
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
    around, own = with_headers(b"Jetstream-Ack: leader"), with_headers(b"X: y")
    stream.deliver(
        (encode_record(b"1", key=b"k", ack_inbox=INBOX), b""),
        (encode_record(b"2", header_block=own), b""),
        headers=[around, with_headers(b"Trace: z")],
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
