from __future__ import annotations

import tracemalloc

import pytest

from jetstream_server.ingest.nats.compiled import compiled
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.gathering import PAYLOAD_BYTES_MAX, Gathering
from jetstream_server.ingest.nats.parser import (
    ControlEvent,
    Info,
    NatsParser,
    NatsProtocolError,
    Ping,
    Pong,
    ServerError,
)

FORMS = [Gathering] if compiled is None else [Gathering, compiled.Gathering]


@pytest.fixture(params=FORMS, ids=lambda form: form.__module__.rpartition(".")[2])
def parser(request: pytest.FixtureRequest) -> NatsParser:
    """In plain Python, and compiled."""
    return NatsParser(request.param)


def test_messages_of_one_read_are_gathered_per_subscription(parser: NatsParser) -> None:
    events = parser.feed(
        b"MSG orders.eu 1 _INBOX.a 2\r\nv1\r\nMSG orders.us 2 3\r\nv22\r\nMSG orders.us 1 0\r\n\r\n"
    )
    assert events == [
        Delivery(1, [b"orders.eu", b"orders.us"], [b"_INBOX.a", b""], [b"v1", b""]),
        Delivery(2, [b"orders.us"], [b""], [b"v22"]),
    ]


def test_header_blocks_are_kept_verbatim_and_aligned_with_messages_that_have_none(
    parser: NatsParser,
) -> None:
    block = b"NATS/1.0\r\nk:  v \r\nk: w\r\n\r\n"
    hmsg = b"HMSG a 1 r %d %d\r\n%bval\r\n" % (len(block), len(block) + 3, block)
    bare = b"MSG a 1 1\r\nx\r\n"
    (delivery,) = parser.feed(bare + bare + hmsg + bare + hmsg + bare)
    assert not isinstance(delivery, ControlEvent)
    assert delivery.header_blocks == [b"", b"", block, b"", block, b""]
    assert delivery.values == [b"x", b"x", b"val", b"x", b"val", b"x"]
    assert delivery.replies == [b"", b"", b"r", b"", b"r", b""]


def test_a_delivery_without_headers_has_no_header_list(parser: NatsParser) -> None:
    (delivery,) = parser.feed(b"MSG a 1 1\r\nx\r\n")
    assert not isinstance(delivery, ControlEvent)
    assert delivery.header_blocks is None


def test_a_pong_comes_after_the_messages_before_it_and_ahead_of_those_after(
    parser: NatsParser,
) -> None:
    message = b"MSG a 1 1\r\nx\r\n"
    events = parser.feed(message + message + b"PONG\r\n" + message)
    assert [isinstance(event, Pong) for event in events] == [False, True, False]
    assert [len(event) for event in events if not isinstance(event, ControlEvent)] == [2, 1]


def test_control_lines_become_events(parser: NatsParser) -> None:
    events = parser.feed(
        b'INFO {"server_id":"X","ldm":true} \r\n'
        b"+OK\r\nPING\r\nPONG\r\n-ERR 'Authorization Violation'\r\n"
    )
    assert events == [
        Info({"server_id": "X", "ldm": True}),
        Ping(),
        Pong(),
        ServerError("Authorization Violation"),
    ]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HELLO\r\n", "unknown operation"),
        (b"\r\n", "unknown operation"),
        (b"msg a 1 1\r\nx\r\n", "unknown operation"),
        (b"MSG a 1\r\n", "unknown operation"),
        (b"MSG a 1 r s 1\r\nx\r\n", "unknown operation"),
        (b"MSG a  1 1\r\nx\r\n", "malformed subscription id"),
        (b"MSG a -1 1\r\nx\r\n", "malformed subscription id"),
        (b"MSG a 1 -1\r\n", "malformed length"),
        (b"MSG a 1 +1\r\nx\r\n", "malformed length"),
        (b"MSG a 1 0x1\r\nx\r\n", "malformed length"),
        (b"MSG a 1 \r\n\r\n", "malformed length"),
        (b"MSG a 1 999999999\r\n", "malformed length"),
        (b"MSG a 1 %d\r\n" % (PAYLOAD_BYTES_MAX + 1), "more than"),
        (b"HMSG a 1 %d 3\r\nabc\r\n" % (PAYLOAD_BYTES_MAX + 1), "more than"),
        (b"HMSG a 1 4 3\r\nabc\r\n", "header block longer"),
        (b"MSG a 1 1\r\nxyz", "does not end where"),
        (b"INFO nonsense\r\n", "not JSON"),
        (b"INFO [1]\r\n", "not a JSON object"),
    ],
)
def test_what_is_not_nats_is_refused(parser: NatsParser, stream: bytes, reason: str) -> None:
    with pytest.raises(NatsProtocolError, match=reason):
        parser.feed(stream)


def test_a_payload_that_looks_like_a_message_stays_a_payload(parser: NatsParser) -> None:
    forged = b"x\r\nMSG secret 1 _INBOX.y 1\r\nz"
    (delivery,) = parser.feed(b"MSG a 1 %d\r\n%b\r\n" % (len(forged), forged))
    assert delivery == Delivery(1, [b"a"], [b""], [forged])


def test_the_largest_payload_is_taken_in_small_reads_with_memory_for_it_once(
    parser: NatsParser,
) -> None:
    piece = b"x" * 65536
    tracemalloc.start()
    try:
        parser.feed(b"MSG a 1 %d\r\n" % PAYLOAD_BYTES_MAX)
        for _ in range(PAYLOAD_BYTES_MAX // len(piece) - 1):
            assert parser.feed(piece) == []
        # The pieces share one object here, so what is held is only the list of them: joining at
        # each read would show as tens of megabytes.
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    (delivery,) = parser.feed(piece + b"\r\n")
    assert not isinstance(delivery, ControlEvent)
    assert len(delivery.values[0]) == PAYLOAD_BYTES_MAX
    assert parser.held_bytes == 0


def test_held_bytes_tell_whether_the_stream_stands_between_two_frames(parser: NatsParser) -> None:
    parser.feed(b"PING\r\nMSG a 1 1\r\nx")
    assert parser.held_bytes == len(b"MSG a 1 1\r\nx")
    parser.feed(b"\r\n")
    assert parser.held_bytes == 0


def test_more_lengths_than_are_remembered_are_still_understood(parser: NatsParser) -> None:
    for length in range(5000):
        (delivery,) = parser.feed(b"MSG a 1 %d\r\n%b\r\n" % (length, bytes(length)))
        assert not isinstance(delivery, ControlEvent)
        assert len(delivery.values[0]) == length
