"""The parser gives the same messages however the stream was cut, and never anything but an error of
its own for a stream that is not NATS."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_server.ingest.nats.parser import (
    CONTROL_LINE_BYTES_MAX,
    ControlEvent,
    Event,
    Info,
    NatsParser,
    NatsProtocolError,
    Ping,
    Pong,
    ServerError,
)

# One message, as (subject, reply, header block, value).
Message = tuple[bytes, bytes, bytes, bytes]


@dataclass(frozen=True)
class Frame:
    wire: bytes
    event: Event | None = None
    sid: int = 0
    message: Message | None = None


def message_frame(subject: bytes, sid: int, reply: bytes, block: bytes, value: bytes) -> Frame:
    fields = [subject, b"%d" % sid] + [reply] * bool(reply)
    if block:
        fields = [b"HMSG", *fields, b"%d" % len(block), b"%d" % (len(block) + len(value))]
    else:
        fields = [b"MSG", *fields, b"%d" % len(value)]
    wire = b" ".join(fields) + b"\r\n" + block + value + b"\r\n"
    return Frame(wire, sid=sid, message=(subject, reply, block, value))


tokens = st.sampled_from([b"orders", b"eu", b"_INBOX", b"MSG", b"\xc3\xa4", b"$X", b"0"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(b".".join)
# Payloads that look like the protocol, which must not matter.
values = st.one_of(
    st.binary(max_size=20),
    st.lists(
        st.sampled_from([b"\r\n", b"\r", b"\n", b"MSG a 1 3", b"PING", b"x", b" ", b"-ERR 'no'"]),
        max_size=6,
    ).map(b"".join),
)
header_blocks = st.one_of(
    st.just(b""),
    st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nk: v\r\n\r\n", b"NATS/1.0 503\r\n\r\n"]),
    st.binary(min_size=1, max_size=8),
)
messages = st.builds(
    message_frame,
    subjects,
    st.sampled_from([1, 2, 31]),
    st.one_of(st.just(b""), subjects),
    header_blocks,
    values,
)
infos = st.dictionaries(
    st.sampled_from(["nonce", "ldm", "max_payload"]), st.integers() | st.text(max_size=5)
).map(lambda fields: Frame(b"INFO %b \r\n" % json.dumps(fields).encode(), Info(fields)))
controls = st.one_of(
    st.sampled_from(
        [
            Frame(b"PING\r\n", Ping()),
            Frame(b"PONG\r\n", Pong()),
            Frame(b"+OK\r\n"),
            Frame(b"-ERR 'Stale Connection'\r\n", ServerError("Stale Connection")),
        ]
    ),
    infos,
)
streams = st.lists(st.one_of(messages, messages, messages, controls), max_size=12)

# What was delivered between two other events, by sid; and those events.
Segments = list[tuple[dict[int, list[Message]], Event | None]]


def expected_segments(frames: Iterable[Frame]) -> Segments:
    segments: Segments = [({}, None)]
    for frame in frames:
        if frame.message is not None:
            segments[-1][0].setdefault(frame.sid, []).append(frame.message)
        elif frame.event is not None:
            segments[-1] = (segments[-1][0], frame.event)
            segments.append(({}, None))
    return segments


def received_segments(events: Iterable[Event]) -> Segments:
    segments: Segments = [({}, None)]
    for event in events:
        if not isinstance(event, ControlEvent):
            rows = zip(
                event.subjects,
                event.replies,
                event.header_blocks or [b""] * len(event),
                event.values,
                strict=True,
            )
            segments[-1][0].setdefault(event.sid, []).extend(rows)
        else:
            segments[-1] = (segments[-1][0], event)
            segments.append(({}, None))
    return segments


def feed_all(pieces: Iterable[bytes]) -> list[Event]:
    parser = NatsParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    assert parser.held_bytes == 0
    return events


def cut(wire: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges)]


@given(streams)
def test_every_cut_in_two_gives_the_same_deliveries(frames: list[Frame]) -> None:
    wire = b"".join(frame.wire for frame in frames)
    expected = expected_segments(frames)
    for place in range(len(wire) + 1):
        assert received_segments(feed_all([wire[:place], wire[place:]])) == expected


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_pieces_give_the_same_deliveries(frames: list[Frame], places: list[int]) -> None:
    wire = b"".join(frame.wire for frame in frames)
    assert received_segments(feed_all(cut(wire, places))) == expected_segments(frames)


@given(streams)
def test_single_bytes_give_the_same_deliveries(frames: list[Frame]) -> None:
    wire = b"".join(frame.wire for frame in frames)
    pieces = [wire[i : i + 1] for i in range(len(wire))]
    assert received_segments(feed_all(pieces)) == expected_segments(frames)


@given(streams)
def test_one_read_makes_one_delivery_per_subscription_and_barrier(frames: list[Frame]) -> None:
    events = feed_all([b"".join(frame.wire for frame in frames)])
    sids: list[int] = []
    for event in events:
        if not isinstance(event, ControlEvent):
            assert event.sid not in sids
            assert len(event) > 0
            sids.append(event.sid)
        else:
            sids.clear()


@given(streams, st.integers(0, 10_000), st.integers(1, 255), st.lists(st.integers(0, 10_000)))
def test_a_flipped_byte_gives_messages_or_a_protocol_error(
    frames: list[Frame], where: int, difference: int, places: list[int]
) -> None:
    wire = bytearray(b"".join(frame.wire for frame in frames) or b"PING\r\n")
    wire[where % len(wire)] ^= difference
    parser = NatsParser()
    try:
        for piece in cut(bytes(wire), places):
            parser.feed(piece)
            assert parser.held_bytes <= len(wire)
    except NatsProtocolError:
        pass


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=4))
@example(b"MSG a 1 -5\r\nabc\r\n", [])
@example(b"MSG a 1 +3\r\nabc\r\n", [])
@example(b"MSG a 1 1_0\r\n0123456789\r\n", [])
@example(b"HMSG a 1 5 3\r\nabc\r\n", [])
@example(b"INFO " + b"[" * 5000 + b"\r\n", [])
def test_foreign_bytes_give_a_protocol_error_or_nothing(data: bytes, places: list[int]) -> None:
    parser = NatsParser()
    try:
        for piece in cut(data, places):
            for event in parser.feed(piece):
                assert isinstance(event, ControlEvent) or all(
                    len(column) == len(event)
                    for column in (event.subjects, event.replies, event.values)
                )
    except NatsProtocolError:
        pass


@pytest.mark.parametrize("piece_bytes", [1000, 100_000])
def test_a_line_without_end_is_refused_before_it_fills_memory(piece_bytes: int) -> None:
    parser = NatsParser()
    while parser.held_bytes + piece_bytes <= CONTROL_LINE_BYTES_MAX:
        parser.feed(b"x" * piece_bytes)
    with pytest.raises(NatsProtocolError, match="too long"):
        parser.feed(b"x" * piece_bytes)
