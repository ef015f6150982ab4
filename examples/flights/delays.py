"""What is asked in SQL: DuckDB reads the stream as Arrow, and its table in the lake, and nothing is
exported first."""

from __future__ import annotations

import duckdb
from pyiceberg.table import StaticTable

from examples.flights.replay import STREAM
from jetstream_client import Client

QUERY = f"""
SELECT (decode(value)->>'$.hour')::int AS hour, avg((decode(value)->>'$.dep_delay')::int) AS minutes
FROM {STREAM} GROUP BY hour HAVING count(*) > 100 ORDER BY hour
"""


def by_hour(servers: str) -> list[tuple[int, float]]:
    """How late flights leave on average, by the hour they should leave in."""
    with Client(servers) as client, duckdb.connect(":memory:") as connection:
        connection.register(STREAM, client.scan(STREAM, "earliest", "latest"))
        return connection.sql(QUERY).fetchall()


def by_hour_in_lake(table_url: str) -> list[tuple[int, float]]:
    """The same, of the stream's table, without the server."""
    table = StaticTable.from_metadata(table_url)
    with duckdb.connect(":memory:") as connection:
        connection.register(STREAM, table.scan(selected_fields=("value",)).to_arrow_batch_reader())
        return connection.sql(QUERY).fetchall()
