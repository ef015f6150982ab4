"""Headers, filters and outgoing rows, column by column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import Headers, InvalidRequestError
from jetstream_client.values.records import block_of
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.filters import SubjectMatches
from pyspark_jetstream.headers import HEADERS, parsed_headers
from pyspark_jetstream.publish import Identity
from pyspark_jetstream.rows import by_subject

names = st.text(
    st.characters(codec="ascii", exclude_characters=":\r\n \t\0"), min_size=1, max_size=9
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=9)
blocks = st.one_of(
    st.none(),
    st.lists(st.tuples(names, texts), max_size=5).map(
        lambda pairs: (
            "NATS/1.0\r\n" + "".join(f"{name}: {text}\r\n" for name, text in pairs) + "\r\n"
        ).encode()
    ),
    st.binary(max_size=40).map(lambda noise: b"NATS/1.0 " + noise),
)


@given(st.lists(blocks, max_size=20))
def test_headers_are_what_the_sdk_reads_in_a_block(found: list[bytes | None]) -> None:
    column = parsed_headers(pa.array(found, pa.binary()))
    assert column.type == HEADERS
    column.validate(full=True)
    for block, row in zip(found, column.to_pylist(), strict=True):
        said: dict[str, list[bytes]] = {}
        for each in row or ():
            said.setdefault(each["key"], []).append(each["value"])
        wanted = Headers(block or b"")
        assert (row is None) == (len(wanted) == 0)
        if any("\udc80" <= letter <= "\udcff" for name in wanted for letter in name):
            continue  # Names that are no text are shown otherwise.
        assert said == {
            name: [text.encode("utf-8", "surrogateescape") for text in wanted.get_all(name)]
            for name in wanted
        }


def test_what_headers_say_in_columns_is_not_among_the_headers() -> None:
    ours = b"NATS/1.0\r\nJetstream-Key: k\r\nJetstream-Tombstone: true\r\n"
    blocks = [ours + b"\r\n", ours + b"a: Jetstream-Key: 1\r\n\r\n", None]
    found = parsed_headers(pa.array(blocks, pa.binary())).to_pylist()
    assert found == [None, [{"key": "a", "value": b"Jetstream-Key: 1"}], None]


def test_a_header_name_that_is_no_text_does_not_reach_the_jvm_as_it_is() -> None:
    column = parsed_headers(pa.array([b"NATS/1.0\r\n\xff: \xfe\r\n\r\n"], pa.binary()))
    assert column.to_pylist() == [[{"key": "\ufffd", "value": b"\xfe"}]]


def test_subject_patterns_match_as_nats_matches() -> None:
    batch = pa.record_batch({"subject": ["a", "a.b", "a.b.c", "ab", "a.xb", "ä.b"]})

    def matching(*patterns: str) -> list[str]:
        found: list[str] = batch.filter(SubjectMatches(patterns).mask(batch))["subject"].to_pylist()
        return found

    assert matching("a.*") == ["a.b", "a.xb"]
    assert matching("a.>", "ab") == ["a.b", "a.b.c", "ab", "a.xb"]
    assert matching("ä.*") == ["ä.b"]
    assert matching("a") == ["a"]


def test_rows_are_parted_by_subject_in_their_order() -> None:
    batch = pa.record_batch({"value": ["1", "2", "3"], "subject": ["b", "a", "b"]})
    assert [(rows.subject, rows.values) for rows in by_subject(batch, "")] == [
        ("b", [b"1", b"3"]),
        ("a", [b"2"]),
    ]


def test_a_second_attempt_has_the_producers_of_the_first_and_nobody_elses() -> None:
    found = {
        Identity(run, partition).producer_id(subject, number, content)
        for content in (b"a", b"b")
        for run in ("q/0", "q/1")
        for partition in (0, 1)
        for subject in ("a", "b")
        for number in (0, 1)
    }
    assert len(found) == 32
    assert all(0 <= each < 1 << 63 for each in found)
    assert Identity("q/0", 1).producer_id("a", 0, b"a") in found


def test_a_row_without_value_and_key_is_refused() -> None:
    columns = {"value": pa.array([None], pa.binary()), "key": pa.array([None], pa.binary())}
    with pytest.raises(OptionError, match="is a tombstone and needs a key"):
        list(by_subject(pa.record_batch(columns), "s"))


PAIRS = st.lists(st.tuples(st.none() | names, st.none() | texts | st.just(" x")), max_size=4)


@given(st.lists(st.none() | PAIRS, min_size=1, max_size=5), st.integers(0, 2))
def test_headers_of_rows_are_those_that_the_sdk_writes_or_refuses(
    rows: list[list[tuple[str | None, str | None]] | None], start: int
) -> None:
    """Row by row, whatever the column beside them is like."""
    cells = [
        None if row is None else [{"key": name, "value": text} for name, text in row]
        for row in rows
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    batch = pa.record_batch(
        {"value": pa.array([b"v"] * len(rows)), "headers": pa.array(cells, kind)}
    )
    batch = batch.slice(min(start, len(rows) - 1))
    try:
        wanted: list[bytes] = []
        for row in rows[-len(batch) :]:
            by_name: dict[str, list[str]] = {}
            for name, text in row or ():
                by_name.setdefault(name or "", []).append(text or "")
            wanted.append(block_of(by_name))
    except InvalidRequestError:
        with pytest.raises(OptionError, match="cannot be published"):
            by_subject(batch, "s")
    else:
        assert by_subject(batch, "s")[0].blocks == wanted


def test_a_null_among_the_headers_of_a_row_is_refused_with_advice() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for headers in ([None], [{"key": "a", "value": b"1"}, None]):
        columns = {"value": pa.array([b"v"]), "headers": pa.array([headers], kind)}
        with pytest.raises(OptionError, match="h IS NOT NULL"):
            by_subject(pa.record_batch(columns), "s")
