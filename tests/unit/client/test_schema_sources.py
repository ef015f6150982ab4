"""A schema that is made of records: each of them fits what they have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetstream_client.reading.schema_sources import Inference
from jetstream_protocol.typed_json import decoded


def learned(*records: Any) -> Inference:
    found = Inference()
    found.add(json.dumps(each).encode() for each in records)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "0000-00-00", "0000-00-00 00:00:00", "2026-02-30", "2026-13-01", "0001-01-01",
        "2026-01-31T10:00:00+99:99", "9999-12-31T00:00:00Z", "٢٠٢٦-01-31",
    ],
)  # fmt: skip
def test_what_is_no_day_is_text(text: str) -> None:
    """It would fit no column of days or times."""
    schema = learned({"a": text}).schema()
    assert str(schema) == "a string"
    assert decoded(json.dumps({"a": text}).encode(), schema.fields) == ([text], None)


def test_days_and_times_are_known() -> None:
    found = learned({"day": "2026-01-31", "at": "2026-01-31 10:00+01:00", "mixed": "2026-01-31"})
    assert str(found.schema()) == "day date, at timestamp, mixed date"
    found.add([b'{"mixed": "2026-01-31T10:00Z"}'])
    assert str(found.schema()) == "day date, at timestamp, mixed string"


def test_other_keys_in_each_record_are_told_a_hundred_times() -> None:
    records = [{"id": at, "by_user": {f"user-{at}": 1}} for at in range(500)]
    found = learned(*records, {"id": "x", "by_user": {"user-1": 1}})
    assert (len(found.left_out), found.has_more) == (100, True)
    with pytest.raises(Exception, match="no record"):  # An id is a number, or text.
        found.schema()


def test_a_key_with_a_dot_hides_no_field_of_that_path() -> None:
    found = learned({"a.b": 1, "a": {"b": 2}})
    assert str(found.schema()) == "a struct<b bigint>"
    assert [*found.left_out] == ["a.b"]
