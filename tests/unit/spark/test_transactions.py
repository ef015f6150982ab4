"""What is kept of transactions, and what is said if rows may be stored twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import PermissionDeniedError
from pyspark_jetstream.transactions import (
    METADATA_BYTES,
    Reached,
    Record,
    Target,
    Transaction,
    begin,
    complete,
)
from tests.support.spark_logs import connector_messages

STREAM = SimpleNamespace(id=7, full_name="orders@orders.>", subject="orders.>")
WRITE = Transaction("nightly", 5, "orders.x")


class Cluster:
    """One stream and the cursors in it."""

    def __init__(self) -> None:
        self.end = 0
        self.cursors: dict[str, str] = {}
        self.refuses = False

    async def list_cursors(self, name: str) -> list[Any]:
        found = self.cursors.get(name)
        return [] if found is None else [SimpleNamespace(stream_id=STREAM.id, metadata=found)]

    async def offset_at(self, stream: int, position: str) -> int:
        assert (stream, position) == (STREAM.id, "latest")
        return self.end

    async def commit_cursor(self, name: str, stream: int, offset: int, *, metadata: str) -> None:
        if self.refuses:
            raise PermissionDeniedError("no right to commit")
        assert (stream, offset) == (STREAM.id, self.end)
        self.cursors[name] = metadata

    def begin(self, write: Transaction = WRITE) -> tuple[Target, ...]:
        client: Any = self
        streams: Any = [STREAM]
        return asyncio.run(begin(client, write, streams))

    def complete(self, targets: tuple[Target, ...], rows: int, write: Transaction = WRITE) -> None:
        client: Any = self
        asyncio.run(complete(client, write, targets, rows))


@given(st.lists(st.integers(0, 10**19), max_size=200) | st.lists(st.integers(0, 50), max_size=200))
def test_complete_versions_are_kept_and_no_other_one(versions: list[int]) -> None:
    record = Record()
    for version in versions:
        record.add(version)
    read = Record.of(str(record))
    assert read == record
    assert len(str(record)) <= METADATA_BYTES
    known = [each for each in range(52) if read.has(each)]
    assert set(known) <= set(versions)
    if len(str(record)) < METADATA_BYTES - 50:
        assert all(read.has(each) for each in versions)


def test_metadata_of_somebody_else_counts_as_nothing() -> None:
    for said in ("", "spark", "[]", "{}", '{"complete":1,"begun":null}', '{"complete":[[1]]}'):
        assert Record.of(said) == Record()


def test_a_complete_transaction_is_left_out_where_all_streams_have_it() -> None:
    cluster = Cluster()
    targets = cluster.begin()
    reached = Reached(targets)
    assert not reached.has_all("orders.x")
    assert reached.ids == {STREAM.id}
    cluster.complete(targets, 0)
    again = cluster.begin()
    assert Reached(again).has_all("orders.x")
    assert not Reached(again).has_all("clicks.x")
    assert not Reached((*again, Target(8, "all@>", ">"))).has_all("orders.x")
    for other in (Transaction("nightly", 4, "orders.x"), Transaction("nightly", 5, "orders.y")):
        assert not Reached(cluster.begin(other)).has_all("orders.x")


@pytest.mark.parametrize(("stored_before", "doubled"), [(60, 0), (60, 60)])
def test_a_repeated_write_of_which_rows_may_be_stored_twice_says_so(
    stored_before: int, doubled: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    cluster.end = 1_000
    cluster.begin()
    cluster.end += stored_before  # Then the write was interrupted.
    targets = cluster.begin()
    cluster.end += 100 - stored_before + doubled
    cluster.complete(targets, 100)
    said = [each for each in connector_messages(caplog) if "stored twice" in each]
    assert ["60 records more" in each for each in said] == [True] * (doubled > 0)


def test_a_right_that_is_missing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.refuses = True
    cluster.complete(cluster.begin(), 1)
    assert [
        "`commit` for cursor spark-transaction-nightly" in each
        for each in connector_messages(caplog)
    ] == [True, True]


def test_any_application_has_a_cursor() -> None:
    names = {Transaction(name, 1, "").cursor for name in ("a", "a b", "ü" * 300, "a" * 201)}
    assert len(names) == 4
    assert all(len(name) < 256 and name.isascii() and " " not in name for name in names)
