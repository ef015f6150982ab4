from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError, UnsupportedHeaderError
from jetstream_server.ingest.stream.headers import (
    NOTHING,
    AckLevel,
    Directives,
    asks_for,
    inspect,
    keys_only,
    parse_directives,
)


def block(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))


def test_headers_of_the_application_concern_nobody_here() -> None:
    assert inspect([block(b"source: web"), b""], [b"v", b"w"]) is None
    # Not even a block that is none: it is stored as it came.
    assert inspect([b"garbage"], [b"v"]) is None


def test_every_directive_is_read() -> None:
    directives = parse_directives(
        block(
            b"Jetstream-Key: k 1",
            b"source: web",
            b"Jetstream-Ack: leader",
            b"Jetstream-Tombstone: true",
            b"Nats-Msg-Id:id-1",
            b"Nats-Expected-Stream:\torders ",
            b"Nats-Expected-Last-Sequence: 42",
        )
    )
    assert directives == Directives(
        key=b"k 1",
        ack_level=AckLevel.LEADER,
        tombstone=True,
        message_id=b"id-1",
        expected_stream=b"orders",
        expected_offset=42,
    )


def test_each_message_gets_its_own_outcome() -> None:
    outcomes = inspect(
        [
            b"",
            block(b"Jetstream-Key: k"),
            block(b"Nats-TTL: 1s"),
            block(b"source: web"),
            b"NATS/1.0\r\nJetstream-Key k\r\n\r\n",
        ],
        [b"v"] * 5,
    )
    assert outcomes is not None
    assert outcomes[0] is NOTHING
    assert outcomes[1] == Directives(key=b"k")
    assert isinstance(outcomes[2], UnsupportedHeaderError)
    assert outcomes[3] is NOTHING
    assert isinstance(outcomes[4], InvalidRequestError)


@pytest.mark.parametrize(
    "name",
    [
        "Nats-Expected-Last-Msg-Id",
        "Nats-Expected-Last-Subject-Sequence-Subject",
        "Nats-Expected-Anything-New",
        "Nats-TTL",
        "Nats-Rollup",
        "Nats-Incr",
        "Nats-Schedule",
        "Nats-Schedule-Target",
        "Nats-Batch-Id",
        "Nats-Batch-Commit",
        "Jetstream-Frobnicate",
    ],
)
def test_what_is_not_supported_is_refused_not_ignored(name: str) -> None:
    with pytest.raises(UnsupportedHeaderError, match=name):
        parse_directives(block(name.encode() + b": 1"))


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        (b"Jetstream-Key", True),
        (b"Jetstream-Anything", True),
        (b"Nats-Msg-Id", True),
        (b"Nats-Expected-Stream", True),
        (b"Nats-Expected-Last-Sequence", True),
        (b"Nats-Schedule-TTL", True),
        (b"Nats-TTL", True),
        (b"Nats-Trace-Dest", False),
        (b"Nats-TTLs", False),
        (b"nats-msg-id", False),
        (b"X-Nats-Msg-Id", False),
        (b"Source", False),
    ],
)
def test_headers_that_ask_for_anything_are_found_among_many_blocks(name: bytes, asks: bool) -> None:
    blocks = [block(b"X: y"), b"", block(b"X: y", name + b" \t: z"), block(b"X: y")]
    assert asks_for(b"".join(blocks)) == (f"{name.decode()!r}" if asks else "")


@pytest.mark.parametrize(
    "name", ["Nats-Stream", "Nats-Sequence", "Nats-Trace-Dest", "Nats-Request-Info", "nats-ttl"]
)
def test_headers_that_ask_for_nothing_pass(name: str) -> None:
    assert parse_directives(block(name.encode() + b": x")) is NOTHING


def test_keys_alone_are_read_for_a_whole_delivery_at_once() -> None:
    blocks = [
        block(b"Jetstream-Key: a "),
        block(b"source: web", b"Jetstream-Key:", b"x: Nats-TTL: 1"),
        block(b"Jetstream-Key:\tb"),
    ]
    assert keys_only(blocks) == [b"a", b"", b"b"]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        block(b"source: web"),
        block(b"Jetstream-Key: a", b"Jetstream-Key: b"),
        block(b"Jetstream-Key: a", b"Jetstream-Ack: none"),
        block(b"Nats-TTL: 1s", b"Jetstream-Key: a"),
        b"NATS/1.0\r\nJetstream-Key: a\r\n",
        block(b"Jetstream-Key: a") + block(b"Jetstream-Key: b"),
    ],
)
def test_one_message_that_asks_for_more_or_less_than_a_key_needs_the_long_way(other: bytes) -> None:
    keyed = block(b"Jetstream-Key: a")
    assert keys_only([keyed, other, keyed]) is None
    assert keys_only([other]) is None


def test_a_block_that_ends_twice_does_not_give_its_key_to_the_next_message() -> None:
    twice = block(b"Jetstream-Key: a") + block(b"Jetstream-Key: b")
    assert keys_only([twice, b""]) is None


def test_a_message_id_is_exposed_and_asks_for_nothing_else() -> None:
    assert inspect([block(b"Nats-Msg-Id: a")], [b"v"]) == [Directives(message_id=b"a")]


def test_a_tombstone_with_a_payload_is_refused() -> None:
    tombstone = block(b"Jetstream-Tombstone: true")
    outcomes = inspect([tombstone, tombstone], [b"", b"v"])
    assert outcomes is not None
    assert outcomes[0] == Directives(tombstone=True)
    assert isinstance(outcomes[1], InvalidRequestError)


def test_an_empty_key_is_a_key() -> None:
    assert parse_directives(block(b"Jetstream-Key:")).key == b""


@pytest.mark.parametrize(
    "line",
    [
        b"Jetstream-Ack: every",
        b"Jetstream-Ack: ALL",
        b"Jetstream-Ack:",
        b"Jetstream-Tombstone: yes",
        b"Nats-Expected-Last-Sequence: -1",
        b"Nats-Expected-Last-Sequence: 1_0",
        b"Nats-Expected-Last-Sequence: " + b"9" * 20,
    ],
)
def test_values_out_of_range_are_refused(line: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_directives(block(line))


def test_a_directive_given_twice_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        parse_directives(block(b"Jetstream-Key: a", b"Jetstream-Key: b"))


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nk: v\r\n",
        b"NATS/1.0\r\nk: v",
        b"NATS/2.0\r\nk: v\r\n\r\n",
        b"NATS/1.0x\r\n\r\n",
        b"k: v\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: nameless\r\n\r\n",
        b"NATS/1.0\r\nna me: v\r\n\r\n",
        b"NATS/1.0\r\nk: a\nb\r\n\r\n",
        b"NATS/1.0\r\nk: a\x00b\r\n\r\n",
        b"NATS/1.0\r\nk: v\r\n\r\n\r\n",
        b"NATS/1.0\r\n\r\nk: v\r\n\r\n",
    ],
)
def test_malformed_blocks_are_refused(malformed: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_directives(malformed)
