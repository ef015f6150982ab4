"""`client.sql(…)`: a query over streams, answered as a pyarrow table."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    JetstreamError,
    StreamNotFoundError,
)
from jetstream_client.sql.in_thread import answer
from jetstream_client.sql.query import Query, Streams
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess

ENDLESS = "select count(*) from range(10_000_000) a, range(10_000_000) b where a.range > b.range"
"""Nobody waits for its answer: 10^14 pairs."""


@pytest.fixture(scope="module")
def bought(server: ServerProcess) -> str:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("bought", "bought.>")
        client.set_schema("bought", "id bigint, price double")
        for number in range(10):
            value = f'{{"id": {number}, "price": {number}.5}}'
            client.publish("bought.eu" if number % 2 else "bought.us", value, headers={"n": "1"})
    return "bought"


def test_fields_of_the_schema_are_columns(client: Client, bought: str) -> None:
    table = client.sql("select subject, sum(price) as total from bought group by 1 order by 1")
    assert table.to_pylist() == [
        {"subject": "bought.eu", "total": 27.5},
        {"subject": "bought.us", "total": 22.5},
    ]
    assert client.sql("select headers['n'] as n from bought limit 1")["n"].to_pylist() == ["1"]


def test_a_range_is_queried(client: Client, bought: str) -> None:
    found = client.sql('select id, "offset" from bought order by id', 3, 5).to_pylist()
    assert found == [{"id": 3, "offset": 3}, {"id": 4, "offset": 4}]


@pytest.mark.parametrize(
    ("condition", "parameters"),
    [("id = ?", [7]), ("id = $1", (7,)), ("id = $wanted", {"wanted": 7})],
)
def test_parameters_are_given_beside_the_query(
    client: Client, bought: str, condition: str, parameters: object
) -> None:
    query = f"select price from bought where {condition}"
    table = client.sql(query, parameters=parameters)  # type: ignore[arg-type]
    assert table.to_pylist() == [{"price": 7.5}]


def test_parameters_in_the_place_of_the_start_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="parameters="):
        client.sql("select ?", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("parameters", [None, [], [1, 2], {"other": 1}])
def test_parameters_that_do_not_fit_the_query_are_an_error_of_it(
    client: Client, bought: str, parameters: object
) -> None:
    with pytest.raises(InvalidRequestError, match="the query fails: "):
        client.sql("select id from bought where id = ?", parameters=parameters)  # type: ignore[arg-type]


def test_it_changes_nothing_and_opens_no_file(client: Client, bought: str, tmp_path: Path) -> None:
    for query in ("drop view bought", "select 1; select 2", f"copy (select 1) to '{tmp_path}/a'"):
        with pytest.raises(InvalidRequestError, match="say one SELECT"):
            client.sql(query)
    with pytest.raises(InvalidRequestError, match="file system operations are disabled"):
        client.sql(f"select * from read_csv('{tmp_path}/a.csv')")


def test_what_is_wrong_is_said(client: Client, bought: str) -> None:
    with pytest.raises(StreamNotFoundError, match="'nowhere'"):
        client.sql("select * from nowhere")
    with pytest.raises(StreamNotFoundError, match="'bougth'; did you mean 'bought'"):
        client.sql("select * from bougth")
    with pytest.raises(InvalidRequestError, match='"colour" not found'):
        client.sql("select colour from bought")
    with pytest.raises(InvalidRequestError, match=r"write decode\(value\)"):
        client.sql("select value->>'$.price' from bought")
    with pytest.raises(TypeError, match="the query must be one str"):
        client.sql(b"select 1")  # type: ignore[arg-type]


def test_tables_are_listed(client: Client, bought: str) -> None:
    assert "bought" in client.sql("show tables")["name"].to_pylist()


@on_loop
async def test_many_at_a_time(server: ServerProcess, bought: str) -> None:
    """More than the loop has threads of its own."""
    async with AsyncClient(server.grpc, timeout=60) as client:
        queries = (client.sql(f"select id from bought where id = {n % 10}") for n in range(20))
        found = await asyncio.gather(*queries)
    assert [table["id"].to_pylist() for table in found] == [[n % 10] for n in range(20)]


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("jetstream-sql")]


@on_loop
async def test_one_that_is_cancelled_ends(server: ServerProcess, bought: str) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        task = asyncio.create_task(client.sql(ENDLESS))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not threads())
        assert len(await client.sql("from bought")) == 10


@on_loop
async def test_one_that_is_cancelled_before_it_has_begun_ends(
    server: ServerProcess, bought: str
) -> None:
    is_asked, may_begin = threading.Event(), threading.Event()

    def late(streams: Streams) -> Query:
        is_asked.set()
        may_begin.wait(60)
        return Query(streams, ENDLESS)

    async with AsyncClient(server.grpc, timeout=60) as client:
        task = asyncio.create_task(answer(client, late))
        await asyncio.to_thread(is_asked.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_begin.set()
        await eventually(lambda: not threads())


def test_closing_the_client_ends_it(server: ServerProcess, bought: str) -> None:
    client = Client(server.grpc, timeout=60)
    closing = threading.Timer(0.3, client.close)
    closing.start()
    with pytest.raises(JetstreamError, match="closed"):
        client.sql(ENDLESS)
    closing.join()
    for thread in threads():
        thread.join(60)
    assert threads() == []
