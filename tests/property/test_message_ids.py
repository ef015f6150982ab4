"""What ingest reads as a message's id is what the log finds in its batch, wherever it stands.

The leader decides by the one and remembers by the other; they must never differ.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import decode_header, encode
from jetstream_protocol.errors import InvalidRequestError
from jetstream_server.ingest.stream.headers import Directives, inspect
from jetstream_server.log.producers import message_ids

NAMES = st.sampled_from(
    [
        b"Nats-Msg-Id",
        b"Nats-Msg-Id",
        b"nats-msg-id",
        b"Nats-Msg-Ids",
        b"X",
        b"X-Nats-Msg-Id",
        b"\xff",
    ]
)
VALUES = st.binary(max_size=12) | st.sampled_from(
    [b"", b" ", b"a", b"a \t", b"\r\nNats-Msg-Id: b", b"Nats-Msg-Id: c", b"\xff\xfe", b"a\rb"]
)
LINES = st.builds(
    lambda name, before, after, value: name + before + b":" + after + value,
    NAMES,
    st.sampled_from([b"", b" ", b"\t"]),
    st.sampled_from([b"", b" ", b"\t "]),
    VALUES,
)
BLOCKS = st.lists(LINES, max_size=3).map(
    lambda lines: b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))
)
FOREIGN = st.just(b"") | st.binary(max_size=30)


@given(st.lists(BLOCKS | FOREIGN, min_size=1, max_size=6))
def test_the_log_finds_the_ids_that_ingest_has_read(blocks: list[bytes]) -> None:
    outcomes = inspect(blocks, [b""] * len(blocks)) or [Directives()] * len(blocks)
    stored = [
        (block, outcome.message_id)
        for block, outcome in zip(blocks, outcomes, strict=True)
        if not isinstance(outcome, InvalidRequestError)
    ]
    if not stored:
        return
    batch = encode([b""] * len(stored), b"s", header_blocks=[block for block, _ in stored])
    batch.stamp(0, 0, 0)
    expected = [(offset, b"s", found) for offset, (_, found) in enumerate(stored) if found]
    assert message_ids(decode_header(batch.header), batch.body) == expected
