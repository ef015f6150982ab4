"""Errors on the wire stay small whatever they quote."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    from_proto,
)
from jetstream_server.net.error_limits import (
    CANDIDATES_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    bounded,
    bounded_text,
)


@pytest.mark.parametrize(
    "text", ["x" * 10_000, "é" * 10_000, "\U0001f980" * 10_000, "a" + "é" * 999]
)
def test_a_long_text_is_cut_between_characters(text: str) -> None:
    cut = bounded_text(text)
    assert cut.endswith("…")
    assert text.startswith(cut[:-1])
    assert len(cut[:-1].encode()) <= MESSAGE_BYTES_MAX


def test_a_text_that_fits_stays_and_one_that_is_no_unicode_becomes_it() -> None:
    assert bounded_text("fits") == "fits"
    assert bounded_text("x" * MESSAGE_BYTES_MAX) == "x" * MESSAGE_BYTES_MAX
    bounded_text("/folder/\udcff").encode()


def test_what_else_an_error_says_is_kept() -> None:
    found = from_proto(bounded(OffsetOutOfRangeError("m" * 9_999, 3, 7)))
    assert isinstance(found, OffsetOutOfRangeError)
    assert (found.log_start_offset, found.high_watermark) == (3, 7)


def test_candidates_are_listed_as_far_as_there_is_room() -> None:
    few = AmbiguousStreamError("which?", ("a@b", "a@c"))
    assert list(bounded(few).candidates) == ["a@b", "a@c"]
    many = bounded(AmbiguousStreamError("which?", tuple("é" * 100 for _ in range(1_000))))
    assert 0 < sum(len(each.encode()) for each in many.candidates) <= CANDIDATES_BYTES_MAX
    assert len(bounded(AmbiguousStreamError("which?", ("x" * 9_999,))).candidates) == 0
    assert len(bounded(InvalidRequestError("é" * 9_999)).SerializeToString()) < 700
