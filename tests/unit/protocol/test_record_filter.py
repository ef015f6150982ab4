"""A reader's filter: which rows are wanted, and which batches can be ruled out as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.record_filter import RecordFilter
from jetstream_protocol.subjects import matches
from tests.unit.client.batches import batch_bytes

SUBJECTS = ["a", "a.b", "a.b.c", "ab.c", "x.b.c", "x.a.b"]
PATTERNS = [*SUBJECTS, ">", "*", "a.>", "a.*", "*.b.c", "*.b.>", "a.*.c", "x.*.>"]
KEYS = [None, b"", b"k", b"kk", b"l"]


def batch_of(rows: list[tuple[str, bytes | None]]) -> Batch:
    subjects = [subject.encode() for subject, _ in rows]
    return Batch.decode(
        batch_bytes(
            [b"v"] * len(rows),
            subjects=subjects[0] if len(set(subjects)) == 1 else subjects,
            keys=[key for _, key in rows],
        )
    )


ROWS = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(KEYS)), min_size=1)


@given(ROWS, st.sampled_from(["", *PATTERNS]), st.sampled_from(KEYS))
def test_the_rows_are_those_that_match_and_a_batch_with_some_is_never_ruled_out(
    rows: list[tuple[str, bytes | None]], pattern: str, key: bytes | None
) -> None:
    if not pattern and key is None:
        return
    wanted, batch = RecordFilter(pattern, key), batch_of(rows)
    expected = [
        number
        for number, (subject, given) in enumerate(rows)
        if (not pattern or matches(pattern, subject)) and (key is None or given == key)
    ]
    assert list(wanted.rows(batch)) == expected
    assert wanted.may_hold(batch) or not expected


@pytest.mark.parametrize("pattern", ["x.b", "a.*", "b.>", "*.x"])
def test_a_batch_without_a_subject_of_the_pattern_is_ruled_out(pattern: str) -> None:
    assert not RecordFilter(pattern).may_hold(batch_of([("a.b.c", b"k"), ("c.d.e", b"k")]))
    assert not RecordFilter(pattern).may_hold(batch_of([("a.b.c", b"k")]))


def test_a_batch_without_the_key_is_ruled_out() -> None:
    assert not RecordFilter(key=b"k").may_hold(batch_of([("a", b"l"), ("a", None)]))
    assert not RecordFilter(key=b"k").may_hold(batch_of([("a", None)]))


@pytest.mark.parametrize("pattern", ["a..b", "a.>.b", "a b", "."])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError):
        RecordFilter(pattern)


def test_a_filter_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        RecordFilter()
