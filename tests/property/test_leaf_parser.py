"""The leaf parser gives the same messages however the stream was cut, and never anything but an
error of its own for a stream that is not of a leaf link."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_server.ingest.nats.parser import (
    ControlEvent,
    Info,
    NatsProtocolError,
    Ping,
    Pong,
    ServerError,
)
from jetstream_server.jetstream_api.leaf.parser import (
    MESSAGES_MAX,
    LeafEvent,
    LeafMessage,
    LeafParser,
)


@dataclass(frozen=True)
class Frame:
    wire: bytes
    event: LeafMessage | ControlEvent | None = None


tokens = st.sampled_from([b"orders", b"eu", b"_INBOX", b"LMSG", b"\xc3\xa4", b"$JS", b"0", b"+"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(b".".join)
queues = st.lists(st.sampled_from([b"q", b"workers", b"|", b"7"]), max_size=3)
values = st.one_of(
    st.binary(max_size=20),
    st.lists(
        st.sampled_from([b"\r\n", b"LMSG a 3", b"PING", b"x", b" ", b"LS+ a"]), max_size=6
    ).map(b"".join),
)
blocks = st.one_of(st.just(b""), st.binary(max_size=20).map(lambda rest: b"NATS/1.0\r\n" + rest))


@st.composite
def messages(draw: st.DrawFn) -> Frame:
    subject, reply = draw(subjects), draw(st.one_of(st.just(b""), subjects))
    block, value, to = draw(blocks), draw(values), draw(queues)
    routing = [reply] if reply else []
    if to:
        routing = [b"+", reply, *to] if reply else [b"|", *to]
    lengths = [b"%d" % (len(block) + len(value))]
    if block:
        lengths.insert(0, b"%d" % len(block))
    verb = b"HMSG" if block else b"LMSG"
    line = b" ".join([verb, subject, *routing, *lengths])
    return Frame(
        line + b"\r\n" + block + value + b"\r\n", LeafMessage(subject, reply, block, value)
    )


controls = st.sampled_from(
    [
        Frame(b"PING\r\n", Ping()),
        Frame(b"PONG\r\n", Pong()),
        Frame(b"+OK\r\n"),
        Frame(b"-ERR 'no'\r\n", ServerError("no")),
        Frame(b"LS+ orders.> q 1\r\n"),
        Frame(b"LS- orders.>\r\n"),
        Frame(b'INFO {"export":{"allow":["a"]}}\r\n', Info({"export": {"allow": ["a"]}})),
    ]
)
frames = st.lists(st.one_of(messages(), controls), max_size=12)


def flat(events: list[LeafEvent]) -> list[LeafMessage | ControlEvent]:
    found: list[LeafMessage | ControlEvent] = []
    for event in events:
        if isinstance(event, list):
            assert len(event) <= MESSAGES_MAX
            found += event
        else:
            found.append(event)
    return found


@given(frames, st.lists(st.integers(0, 400), max_size=8))
def test_however_the_stream_is_cut_the_events_are_the_same(
    sent: list[Frame], cuts: list[int]
) -> None:
    wire = b"".join(frame.wire for frame in sent)
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    parser = LeafParser()
    events: list[LeafEvent] = []
    for start, stop in pairwise(places):
        events += parser.feed(wire[start:stop])
    assert flat(events) == [frame.event for frame in sent if frame.event is not None]
    assert parser.held_bytes == 0


@given(st.binary(max_size=200))
@example(b"LMSG a 99999999999999999999\r\n")
@example(b"LMSG a -1\r\n\r\n")
@example(b"HMSG a 9 3\r\nxyz\r\n")
@example(b"LMSG\r\n")
@example(b"LMSG  3\r\nabc\r\n")
@example(b"LMSG a ? b q 3\r\nabc\r\n")
@example(b"LMSG a 3\r\nabcde\r\n")
@example(b"INFO " + b"[" * 3000 + b"\r\n")
@example(b"MSG a 1 1\r\nx\r\n")
def test_other_bytes_raise_nothing_but_the_protocols_error(data: bytes) -> None:
    parser = LeafParser()
    try:
        for event in flat(parser.feed(data)):
            if isinstance(event, LeafMessage):
                assert event.subject
    except NatsProtocolError:
        return
    assert parser.held_bytes <= len(data)


@given(st.integers(1, 200))
def test_many_messages_of_one_read_come_in_several_events(count: int) -> None:
    events = LeafParser().feed(b"LMSG a b 1\r\nx\r\n" * count)
    assert len(flat(events)) == count
    assert [len(event) for event in events[:-1]] == [MESSAGES_MAX] * (len(events) - 1)
