"""Header blocks: what a client writes is read back; anything else is refused, never misread."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import InvalidRequestError
from jetstream_server.ingest.stream.headers import (
    Directives,
    inspect,
    keys_only,
    parse_directives,
)

names = st.one_of(
    st.sampled_from([b"source", b"Nats-Stream", b"X-1", "größe".encode()]),
    st.from_regex(rb"\A[A-Za-z][A-Za-z0-9_-]{0,8}\Z").filter(
        lambda name: not name.startswith((b"Nats-", b"Jetstream-"))
    ),
)
values = st.binary(max_size=12).map(
    lambda value: value.translate(None, b"\r\n\x00").strip(b" \t"),
)
fields = st.lists(st.tuples(names, values), max_size=6)


def block(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"


@given(fields, values, st.integers(0, 6))
def test_a_key_is_found_among_any_other_headers(
    pairs: list[tuple[bytes, bytes]], key: bytes, place: int
) -> None:
    raw = block([*pairs[:place], (b"Jetstream-Key", key), *pairs[place:]])
    assert parse_directives(raw).key == key
    assert inspect([b"", raw], [b"", b"v"]) == [Directives(), Directives(key=key)]


@given(fields, st.integers(0, 10_000))
def test_a_block_cut_short_is_refused(pairs: list[tuple[bytes, bytes]], place: int) -> None:
    raw = block(pairs)
    cut = raw[: place % len(raw)]
    try:
        parse_directives(cut)
    except InvalidRequestError:
        return
    # Only a cut that happens to end in an empty line is a block again, of fewer fields.
    assert cut.endswith(b"\r\n\r\n")


@given(st.lists(st.binary(max_size=60) | fields.map(block), max_size=5))
def test_foreign_bytes_give_an_outcome_each_and_no_other_error(blocks: list[bytes]) -> None:
    marked = [each + b"Nats-" if index % 2 else each for index, each in enumerate(blocks)]
    outcomes = inspect(marked, [b""] * len(marked))
    assert outcomes is None or len(outcomes) == len(marked)


@given(
    st.lists(
        st.tuples(fields, st.none() | values, st.sampled_from([b"", b"Nats-", b"\r\n"])), min_size=1
    )
)
def test_the_short_cut_for_keys_agrees_with_the_long_way(
    messages: list[tuple[list[tuple[bytes, bytes]], bytes | None, bytes]],
) -> None:
    blocks = [
        block(pairs + ([] if key is None else [(b"Jetstream-Key", key)])) + tail
        for pairs, key, tail in messages
    ]
    keys = keys_only(blocks)
    if keys is not None:
        assert inspect(blocks, [b""] * len(blocks)) == [Directives(key=key) for key in keys]
    elif all(key is not None and not tail for _, key, tail in messages):
        # Refused only where another header of ours is among them.
        assert any(name.startswith(b"Nats-") for pairs, _, _ in messages for name, _ in pairs)


BEGIN, KEYED, HELD = b"NATS/1.0\r\n", b"Jetstream-Key: a\r\n", b"A:NATS/1.0\r\n"

pieces = st.sampled_from([BEGIN, KEYED, HELD, b"A: b\r\n", b"Nats-Stream: s\r\n", b"A:", b"\r\n"])
hostile = st.lists(pieces, max_size=8).map(b"".join)


@given(st.lists(hostile | hostile.map(lambda tail: BEGIN + KEYED + tail), min_size=1, max_size=4))
def test_the_short_cut_for_keys_takes_exactly_what_the_long_way_finds_keyed(
    blocks: list[bytes],
) -> None:
    outcomes = inspect(blocks, [b""] * len(blocks)) or []
    keys = keys_only(blocks)
    if keys is not None:
        assert outcomes == [Directives(key=key) for key in keys]
    elif not any(b"Nats-" in each for each in blocks):
        keyed = [each for each in outcomes if isinstance(each, Directives) and each.key is not None]
        assert len(keyed) < len(blocks)


@pytest.mark.parametrize(
    "blocks",
    [
        [BEGIN + KEYED + HELD * 20_000],
        [BEGIN + HELD * 20_000 + KEYED],
        [BEGIN + b"A:"] * 20_000 + [KEYED],
        [BEGIN + KEYED + b"A:"] * 20_000,
        [BEGIN + KEYED + b"\r\n"] * 20_000 + [BEGIN + HELD * 20_000],
    ],
)
def test_no_header_block_makes_the_short_cut_read_it_again_and_again(blocks: list[bytes]) -> None:
    # Milliseconds if each byte is read once; at least ten seconds otherwise.
    begun = process_time()
    assert keys_only(blocks) is None
    assert process_time() - begun < 1
