"""Headers that are accepted for sending are read back as they were given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import Headers, InvalidRequestError
from jetstream_client.values.headers import outgoing
from jetstream_server.ingest.stream.headers import Directives, parse_directives

NAMES = st.text(st.sampled_from("abcXYZ-_09"), min_size=1, max_size=8)


def block_of(pairs: list[tuple[str, str]]) -> bytes:
    """What nats-py writes for them."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


@given(st.dictionaries(NAMES, st.lists(st.text(max_size=12), min_size=1, max_size=3), max_size=4))
def test_what_is_accepted_arrives_as_it_was_given(given_: dict[str, list[str]]) -> None:
    try:
        pairs = outgoing(given_)
    except InvalidRequestError:
        return
    block = block_of(pairs)
    headers = Headers(block)
    assert {name: headers.get_all(name) for name in headers} == given_
    # The server accepts the block, by the same rules.
    assert parse_directives(block) == Directives()


@given(st.binary(max_size=80))
def test_no_block_is_too_odd_to_look_at(block: bytes) -> None:
    headers = Headers(block)
    assert len(headers.multi_items()) >= len(headers)
