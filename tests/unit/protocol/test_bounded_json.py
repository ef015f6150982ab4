"""JSON from elsewhere is read or refused with ValueError, however it is nested, and however deep
the caller is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.bounded_json import DEPTH_MAX, loads

TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # Half a surrogate has no bytes.
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=300,
)


@given(VALUES)
def test_what_is_json_is_read(value: Any) -> None:
    text = json.dumps(value)
    assert loads(text) == loads(text.encode()) == value


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"[{":'])
def test_depth_is_counted_and_brackets_in_strings_are_not(opening: str) -> None:
    levels = sum(opening.replace('"[{"', "").count(each) for each in "[{")
    closing = opening.replace('"[{":', "").replace('"a":', "")[::-1].translate({91: 93, 123: 125})
    repeated = DEPTH_MAX // levels
    text = opening * repeated + '"]}\\"[[[{{"' + closing * repeated
    assert loads(text) == json.loads(text)
    deeper = opening * (repeated + 1) + "0" + closing * (repeated + 1)
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        loads(deeper)
    many = f"[{','.join(['[[]]'] * 1000)}]"
    assert loads(many) == json.loads(many)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"[]," * 60 + b'"' + b'\\"' * 500_000,
        b"[" * 101 + b'"' * 500_001,
        b"1e999",
        b"-1e999",
        b"NaN",
        b"[Infinity]",
        b"9" * 5_000,
        b"\xff\xfe",
        b"\xff",
        b"",
        b"[1,]",
    ],
)
def test_everything_else_is_refused_with_one_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_what_is_refused_does_not_depend_on_the_callers_depth() -> None:
    """Nodes that decode one command must not decide differently."""

    def deeper(levels: int, work: Callable[[], object]) -> object:
        return deeper(levels - 1, work) if levels else work()

    text = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    here = len(_frames())
    room = sys.getrecursionlimit() - here - DEPTH_MAX - 100
    assert deeper(room, lambda: loads(text)) == loads(text)


def _frames() -> list[Any]:
    frames, frame = [], sys._getframe()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return frames
