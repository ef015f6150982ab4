"""Plain acknowledgements on a leaf link are gathered as their messages would be taken one by one,
and the compiled form is the pure one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_server.jetstream_api.acknowledgements import AckSubject
from jetstream_server.jetstream_api.leaf.acknowledged import (
    Acknowledged,
    acknowledged,
    pure_acknowledged,
)
from jetstream_server.jetstream_api.leaf.parser import LeafMessage, LeafParser

PLAIN = b"LMSG $JS.ACK.log.h.orders.c.1.%d.3.1795881153620648000.7.ab 4\r\n+ACK\r\n"
EMPTY = b"LMSG $JS.ACK.log.h.orders.d.1.%d.3.1795881153620648000.7.ab 0\r\n\r\n"
OTHER = (
    b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab _INBOX.x 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab 4\r\n-NAK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab 5\r\n+ACK \r\n",
    b"LMSG $JS.ACK.orders.c.1.9.3.5.7 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.9999999999999999999.3.5.7.ab 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders..1.9.3.5.7.ab 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab.x 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.x.3.5.7.ab 4\r\n+ACK\r\n",
    b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7. 4\r\n+ACK\r\n",
    b"HMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"LMSG a 1\r\nx\r\n",
)
pieces = st.one_of(
    st.integers(0, 10**18 - 1).map(lambda number: PLAIN % number),
    st.integers(0, 99).map(lambda number: EMPTY % number),
    st.sampled_from(OTHER),
)
streams = st.lists(pieces, max_size=12).map(b"".join)


@given(streams, st.integers(0, 900), st.integers(0, 900), st.binary(max_size=2))
@example(b"LMSG $JS.ACK.log.h.orders.c.1.9.3.5.7.ab 4", 0, 900, b"")
@example(PLAIN % 1, 0, 900, b"\xff")
def test_the_compiled_form_finds_what_the_pure_one_finds(
    data: bytes, start: int, stop: int, spoilt: bytes
) -> None:
    for given_ in (data, data[:stop], data[: stop // 2] + spoilt + data[stop // 2 :]):
        for at in (0, min(start, len(given_))):
            assert acknowledged(given_, at) == pure_acknowledged(given_, at)


@given(streams)
def test_nothing_is_gathered_but_what_stands_there(data: bytes) -> None:
    gathered = []
    for event in LeafParser().feed(data):
        assert isinstance(event, list)
        for each in event:
            if isinstance(each, Acknowledged):
                gathered += [(each.consumer, each.mark, number) for number in each.sequences]
            else:
                assert isinstance(each, LeafMessage)
                is_plain = not each.reply and not each.headers and each.payload in (b"", b"+ACK")
                gathered.append((each.subject, is_plain))
    expected = []
    for frame in data.split(b"LMSG ")[1:] if b"HMSG" not in data else ():
        subject, payload = frame.split(b" ")[0], frame.split(b"\r\n")[1]
        at = AckSubject.of(subject)
        plain_line = len(frame.split(b"\r\n")[0].split(b" ")) == 2 and payload in (b"", b"+ACK")
        if at is not None and plain_line and frame.count(b"\r\n") == 2 and _is_whole(subject):
            expected.append((at.consumer, at.mark, at.sequence))
    if expected or b"HMSG" not in data:
        assert [each for each in gathered if len(each) == 3] == expected


def _is_whole(subject: bytes) -> bool:
    """Whether it has the tokens that ours have."""
    tokens = subject.split(b".")
    return len(tokens) == 12 and all(tokens) and len(tokens[7]) < 19


@pytest.mark.parametrize("other", OTHER)
def test_others_are_messages_like_all(other: bytes) -> None:
    assert acknowledged(other, 0) == ([], 0)
    events = LeafParser().feed(PLAIN % 3 + other + PLAIN % 4)
    ((first, message, last),) = events
    assert isinstance(message, LeafMessage)
    assert (first, last) == (
        Acknowledged(b"$JS.ACK.log.h.orders.c", b"ab", [3]),
        Acknowledged(b"$JS.ACK.log.h.orders.c", b"ab", [4]),
    )
