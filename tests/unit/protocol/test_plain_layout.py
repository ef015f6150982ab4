"""The short way to the columns of a plain batch finds what the general way does, and no more."""

from __future__ import annotations

import random

import pytest

from jetstream_protocol import columns
from jetstream_protocol.batch import encode
from jetstream_protocol.columns import Layout, read_layout
from jetstream_protocol.errors import CorruptBatchError


def found(body: bytes, count: int) -> Layout | str:
    try:
        return read_layout(body, count, 0)
    except CorruptBatchError as error:
        return error.reason


def changed(body: bytes, draw: random.Random) -> bytes:
    """Some bytes different, cut short, or longer."""
    data = bytearray(body)
    for _ in range(draw.randrange(3)):
        data[draw.randrange(len(data))] = draw.choice((0, 1, 255, draw.randrange(256)))
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    if draw.random() < 0.1:
        data += bytes(draw.randrange(20))
    return bytes(data)


def test_both_ways_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    cases: list[tuple[bytes, int]] = []
    for _ in range(4_000):
        values = [draw.randbytes(draw.randrange(9)) for _ in range(draw.randrange(1, 4))]
        batch = encode(values, b"s" * draw.randrange(1, 12))
        body = batch.body if draw.random() < 0.1 else batch.plain_body
        cases.append((changed(body, draw), len(values) + draw.choice((0, 0, 0, 1, -1))))
    short = [found(*case) for case in cases]
    monkeypatch.setattr(columns, "_plain_layout", lambda body, count: None)
    assert [found(*case) for case in cases] == short
    assert 500 < sum(isinstance(each, Layout) for each in short) < 3_500
