"""The compiled hot path does exactly what its twin in plain Python does, whatever arrives."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_protocol.columns import offsets_grow, pure_offsets_grow, pure_slices, slices
from jetstream_server.ingest.nats.compiled import compiled, why_pure
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.gathering import Gathering
from jetstream_server.ingest.nats.parser import ControlEvent, NatsParser, NatsProtocolError
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.acks import AckFormat
from tests.property.test_nats_parser import Frame, cut, message_frame, streams

pytestmark = pytest.mark.skipif(compiled is None, reason=why_pure or "it is there")

TWO_SUBJECTS = [
    message_frame(b"eu.x", 1, b"", b"", b"v"),
    message_frame(b"us.x", 1, b"r", b"", b""),
]

ODD_SUBJECTS = [message_frame(b"a.%c" % each, 1, b"", b"", b"v") for each in (1, 31, 33, 126, 127)]

places = st.lists(st.integers(0, 10_000), max_size=4)
policies = st.sampled_from(
    [(), ("_INBOX.>",), ("_INBOX.*", "orders.eu"), ("*.eu", "*"), (">",), ("0.$X.>",)]
).map(AckPolicy)


def outcome(gathering: type[Gathering], pieces: list[bytes]) -> tuple[list[Any], str]:
    """All events, and the error that ended them."""
    parser = NatsParser(gathering)
    events: list[Any] = []
    try:
        for piece in pieces:
            events += parser.feed(piece)
            events.append(parser.held_bytes)
    except NatsProtocolError as error:
        return events, str(error)
    return events, ""


def assert_same(pieces: list[bytes]) -> list[tuple[Delivery, Delivery]]:
    """Returns the deliveries of both, in pairs."""
    assert compiled is not None
    pure, pure_error = outcome(Gathering, pieces)
    fast, fast_error = outcome(compiled.Gathering, pieces)
    assert pure_error == fast_error
    assert pure == fast
    assert [type(event).__name__ for event in fast if isinstance(event, ControlEvent)] == [
        type(event).__name__ for event in pure if isinstance(event, ControlEvent)
    ]
    return [
        (one, other) for one, other in zip(pure, fast, strict=True) if isinstance(one, Delivery)
    ]


@example(ODD_SUBJECTS[:2], [])
@example(ODD_SUBJECTS[2:4], [])
@example(ODD_SUBJECTS[4:], [])
@given(streams, places)
def test_the_same_messages(frames: list[Frame], where: list[int]) -> None:
    for pure, fast in assert_same(cut(b"".join(frame.wire for frame in frames), where)):
        assert (fast.sid, len(fast)) == (pure.sid, len(pure))
        assert fast.value_bytes == pure.value_bytes
        assert fast.is_plain == pure.is_plain


@given(streams, places, st.integers(0, 10_000), st.integers(1, 255))
def test_the_same_of_damaged_streams(
    frames: list[Frame], where: list[int], at: int, difference: int
) -> None:
    wire = bytearray(b"".join(frame.wire for frame in frames) or b"PING\r\n")
    wire[at % len(wire)] ^= difference
    assert_same(cut(bytes(wire), where))


@given(st.binary(max_size=100) | st.text("MSGH 1a.\r\n0", max_size=60).map(str.encode), places)
def test_the_same_of_foreign_bytes(data: bytes, where: list[int]) -> None:
    assert_same(cut(data, where))


@given(streams, policies, st.integers(0, 10**18 - 100))
def test_the_same_batch_and_the_same_acks(
    frames: list[Frame], policy: AckPolicy, base_offset: int
) -> None:
    wire = b"".join(frame.wire for frame in frames)
    for pure, fast in assert_same([wire]):
        if pure.is_plain:
            assert fast.encode().to_bytes() == pure.encode().to_bytes()
        chosen, chosen_fast = pure.select(policy), fast.select(policy)
        assert chosen_fast.to_list() == chosen.to_list()
        assert chosen_fast.positions() == chosen.positions()
        assert (len(chosen_fast), chosen_fast.refused) == (len(chosen), chosen.refused)
        acks = AckFormat("orders")
        assert acks.acks(chosen_fast, base_offset) == acks.acks(chosen, base_offset)


@example(TWO_SUBJECTS, AckPolicy(), 3, True)  # One subject, without the prefix.
@example(TWO_SUBJECTS, AckPolicy(), 12, False)  # And none at all.
@given(streams, policies, st.integers(0, 12), st.booleans())
def test_the_same_without_a_prefix(
    frames: list[Frame], policy: AckPolicy, length: int, were_lists: bool
) -> None:
    """Of mapped messages, and of those that were published by key."""
    wire = b"".join(frame.wire for frame in frames)
    for pure, fast in assert_same([wire]):
        if were_lists:
            assert fast.subjects == pure.subjects
        subjects = [subject[length:] for subject in pure.subjects]
        fast.remove_prefix(length)
        pure.remove_prefix(length)
        assert type(fast) is not Delivery
        assert fast == pure
        assert fast.subjects == subjects
        assert fast.is_plain == pure.is_plain
        if pure.is_plain:
            assert fast.encode().to_bytes() == pure.encode().to_bytes()
        assert fast.select(policy).to_list() == pure.select(policy).to_list()


@example(b"!\n!", AckPolicy(("*",)))
@given(st.binary(max_size=20), policies)
def test_the_same_replies_are_allowed(reply: bytes, policy: AckPolicy) -> None:
    assert policy.matcher is not None
    is_allowed = policy.select([reply]).to_list() == [reply]
    assert policy.matcher.allows(reply) == is_allowed


@given(st.lists(st.binary(max_size=9), max_size=12), st.binary(max_size=9))
def test_the_same_rows_are_cut_out_of_a_column(items: list[bytes], before: bytes) -> None:
    offsets = array("i", accumulate(map(len, items), initial=0)).tobytes()
    body = before + offsets + b"".join(items) + before
    where = (len(before), len(before) + len(offsets), len(items))
    for buffer in (body, memoryview(body), memoryview(bytearray(body))):
        assert slices(buffer, *where) == pure_slices(buffer, *where) == items


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5), st.binary(max_size=9))
def test_wild_offsets_of_a_column_are_refused_alike(offsets: list[int], data: bytes) -> None:
    column = array("i", [*offsets, len(data)]).tobytes()
    where = (0, len(column), len(offsets))
    assert slices(column + data, *where) == pure_slices(column + data, *where)
    found = offsets_grow(column, 0, len(offsets))
    assert found == pure_offsets_grow(column, 0, len(offsets))
    assert found == (slices(column + data, *where) is not None)


@pytest.mark.parametrize("where", [(0, 16, 4), (-4, 8, 1), (0, -1, 1), (0, 12, 1)])
def test_a_column_outside_of_its_body_is_never_read(where: tuple[int, int, int]) -> None:
    body = array("i", [0, 5]).tobytes() + b"abcd"
    with pytest.raises(ValueError, match="does not lie within"):
        slices(body, *where)


@pytest.mark.parametrize("where", [(0, 2), (-4, 1), (8, 0), (0, -1)])
def test_offsets_outside_of_their_body_are_never_read(where: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="does not lie within"):
        offsets_grow(array("i", [0, 5]).tobytes(), *where)


def test_replies_that_are_replaced_are_the_ones_that_are_answered() -> None:
    ((_, fast),) = assert_same([b"MSG a 1 _INBOX.a 1\r\nx\r\n"])
    fast.replies = [b""]
    assert len(fast.select(AckPolicy())) == 0


def test_an_envelope_is_noticed() -> None:
    ((_, fast),) = assert_same([b"MSG a 1 1\r\nx\r\nMSG a 1 6\r\n\x89JSENV\r\n"])
    assert fast.may_be_enveloped
