"""Scans: a range of a stream as Arrow, for pyarrow, DuckDB and Polars."""

from __future__ import annotations

import asyncio
import gc

import duckdb
import polars
import pyarrow as pa
import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    Last,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_client.reading.arrow import SCHEMA
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

COUNT = 25_000


@pytest.fixture(scope="module")
def filled(server: ServerProcess) -> str:
    """A stream of COUNT numbered records on three subjects, in many batches."""

    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("filled", "filled.*")
            for start in range(0, COUNT, 5000):
                await asyncio.gather(
                    *(
                        client.publish(f"filled.{number % 3}", b"%d" % number)
                        for number in range(start, start + 5000)
                    )
                )

    asyncio.run(fill())
    return "filled"


def test_a_scan_is_every_record_in_batches_of_about_ten_thousand(
    client: Client, filled: str
) -> None:
    batches = list(client.scan(filled))
    assert all(batch.schema == SCHEMA for batch in batches)
    assert all(len(batch) <= 10_000 for batch in batches)
    assert len(batches) < 10
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(COUNT))
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == client.fetch(filled, max_bytes=2**30).values()
    assert sorted(values) == sorted(b"%d" % number for number in range(COUNT))


def test_a_scan_is_bounded_at_both_ends(client: Client, filled: str) -> None:
    scan = client.scan(filled, 100, 12_345, rows=1000)
    assert (scan.start, scan.stop) == (100, 12_345)
    assert max(map(len, scan)) <= 1000
    assert scan.to_table()["offset"].to_pylist() == list(range(100, 12_345))
    last = client.scan(filled, Last(3)).to_table()
    assert last["value"].to_pylist() == client.fetch(filled, COUNT - 3).values()


def test_nothing_between_start_and_stop_is_an_empty_table(client: Client, filled: str) -> None:
    for start, stop in ((5, 5), ("latest", "latest"), ("latest", "earliest")):
        table = client.scan(filled, start, stop).to_table()  # type: ignore[arg-type]
        assert (len(table), table.schema) == (0, SCHEMA)


def test_a_scan_can_be_read_again_and_stays_the_same_range(client: Client) -> None:
    client.create_stream("growing", "growing.>")
    client.publish("growing.x", b"before")
    scan = client.scan("growing")
    client.publish("growing.x", b"after")
    assert scan.to_table()["value"].to_pylist() == [b"before"]
    assert scan.to_table()["value"].to_pylist() == [b"before"]


def test_only_the_columns_asked_for_are_there(client: Client, filled: str) -> None:
    table = client.scan(filled, stop=10, columns=["value", "offset"]).to_table()
    assert table.schema == pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])
    with pytest.raises(InvalidRequestError, match="there are stream, subject, offset"):
        client.scan(filled, columns=["colour"])


def test_a_record_batch_reader_streams_it(client: Client, filled: str) -> None:
    reader = client.scan(filled).reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert sum(len(batch) for batch in reader) == COUNT


def test_duckdb_queries_a_stream_by_the_name_of_the_variable(client: Client, filled: str) -> None:
    scan = client.scan(filled)
    connection = duckdb.connect()
    rows = connection.sql("select subject, count(*) from scan group by 1 order by 1").fetchall()
    assert rows == [("filled.0", 8334), ("filled.1", 8333), ("filled.2", 8333)]
    joined = connection.sql(
        'select count(*) from scan a join scan b using ("offset") where a.value = b.value'
    )
    assert joined.fetchall() == [(COUNT,)]
    assert scan is not None


def test_polars_takes_a_stream(client: Client, filled: str) -> None:
    frame = polars.DataFrame(client.scan(filled))
    assert frame.shape == (COUNT, 7)
    counts = frame.group_by("subject").len().sort("subject")
    assert counts.rows() == [("filled.0", 8334), ("filled.1", 8333), ("filled.2", 8333)]


@on_loop
async def test_the_asynchronous_client_scans_too(server: ServerProcess, filled: str) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        scan = client.scan(filled, Last(15_000))
        assert sum([len(batch) async for batch in scan]) == 15_000
        assert (scan.start, scan.stop) == (COUNT - 15_000, COUNT)
        assert len(await scan.to_table()) == 15_000


def test_a_scan_left_in_the_middle_stops_fetching(client: Client, filled: str) -> None:
    for batch in client.scan(filled, rows=10):
        assert len(batch) == 10
        break
    gc.collect()
    assert len(client.scan(filled).to_table()) == COUNT


def test_a_stop_that_the_log_does_not_reach_is_an_error_not_a_wait(
    client: Client, filled: str
) -> None:
    scan = client.scan(filled, COUNT - 5, COUNT + 5, patience=1.0)
    with pytest.raises(UnavailableError, match="no record"):
        list(scan)
    with pytest.raises(OffsetOutOfRangeError):
        list(client.scan(filled, COUNT + 1_000_000, COUNT + 1_000_005))


def test_a_stream_made_anew_under_the_name_is_not_read(client: Client) -> None:
    client.create_stream("replaced", "replaced.>")
    client.publish("replaced.x", b"mine")
    scan = client.scan("replaced")
    assert len(scan.to_table()) == 1
    client.delete_stream("replaced")
    client.create_stream("replaced", "replaced.>")
    client.publish("replaced.x", b"a stranger's")
    with pytest.raises(StreamNotFoundError):
        scan.to_table()


def test_impossible_scans_are_refused_at_once(client: Client, filled: str) -> None:
    with pytest.raises(InvalidRequestError):
        client.scan(filled, rows=0)
    with pytest.raises(InvalidRequestError):
        client.scan(filled, -1)
    with pytest.raises(StreamNotFoundError):
        client.scan("nowhere")
