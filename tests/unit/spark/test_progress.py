"""How far a streaming query is behind, by the names of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pyspark_jetstream import offsets_behind_latest

END = {"version": 1, "streams": {"7": {"name": "a@a.>", "offset": 10}, "9": {"offset": 5}}}
LATEST = {"streams": {"7": {"name": "a@a.>", "offset": 30}, "9": {"offset": 5}}}


@pytest.mark.parametrize("given", [json.dumps, lambda each: each], ids=["text", "parsed"])
def test_what_is_behind_is_told_over_the_streams(given: Callable[[object], object]) -> None:
    source = {"endOffset": given(END), "latestOffset": given(LATEST)}
    assert offsets_behind_latest({"sources": [source]}) == [
        {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 20, "avgOffsetsBehindLatest": 10.0}
    ]


def test_a_source_of_another_format_has_none() -> None:
    source = {"endOffset": "17", "latestOffset": None}
    assert offsets_behind_latest({"sources": [source, {"endOffset": None}]}) == [{}, {}]


@pytest.mark.parametrize("latest", [None, "null"])
def test_nothing_is_said_to_be_read_while_the_latest_offsets_are_not_known(
    latest: str | None,
) -> None:
    source = {"endOffset": json.dumps(END), "latestOffset": latest}
    assert offsets_behind_latest({"sources": [source]}) == [{}]
