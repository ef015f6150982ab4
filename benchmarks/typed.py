"""Typed columns against what a user writes without a schema, in SQL.

One node holds records of eight fields, in JSON. Each query is asked by columns and by hand, in
turn, of the table that `jetstream sql` makes. What counts is the processor time of this process,
from the fetch to the answer. By hand, each query is written as most write it, with `->>` for each
field, and in other ways, of which the quickest counts. The same columns in a file of Parquet are
what an export, made beforehand, would give.

The same records are then published to a stream that refuses what does not fit its schema, and to
one that does not, in turn: as plain messages without acks, and in batches. What counts is the
processor time of the node.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import this_server
from benchmarks.nats_socket import NatsSocket
from benchmarks.pairs import Progress
from benchmarks.report import Column, Report, environment, times
from benchmarks.this_server import Addresses
from benchmarks.typed_formats import FORMATS, SCHEMA
from benchmarks.usage import exact_processor_seconds
from jetstream_client import Client
from jetstream_client.reading.typed import Decoder
from jetstream_client.sql.stream_tables import StreamTable
from jetstream_client.values.settings import OnMismatchOption
from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.schema import parse
from jetstream_protocol.types import WallUs

BATCH = 1_000
COUNTRIES = ("AT", "CH", "DE", "FR", "IT")

INGEST_TITLE = "nanoseconds of the node's processor to store a record"
INGEST_COLUMNS = (
    Column("published", lambda r: r["published"]),
    Column("on_mismatch: keep", lambda r: f"{r['keep_ns']:,.0f}"),
    Column("refuse", lambda r: f"{r['refuse_ns']:,.0f}"),
    Column("the check", lambda r: f"{r['refuse_ns'] - r['keep_ns']:,.0f}"),
)

DECODE_TITLE = "nanoseconds of the processor to decode a record"
DECODE_COLUMNS = (
    Column("format", lambda r: r["format"]),
    Column("bytes", lambda r: f"{r['bytes']:,.0f}"),
    Column("one field", lambda r: f"{r['one_ns']:,.0f}"),
    Column("three fields", lambda r: f"{r['three_ns']:,.0f}"),
    Column("all eight", lambda r: f"{r['eight_ns']:,.0f}"),
    Column("whether it fits", lambda r: f"{r['check_ns']:,.0f}"),
)

TITLE = "nanoseconds of the processor for a record, from the fetch to the answer"
COLUMNS = (
    Column("query", lambda r: r["query"]),
    Column("by columns", lambda r: f"{r['typed_ns']:,.0f}"),
    Column("with ->>", lambda r: f"{r['arrow_ns']:,.0f}"),
    Column("faster", lambda r: times(r["arrow_ns"] / r["typed_ns"])),
    Column("the quickest by hand", lambda r: f"{r['by_hand_ns']:,.0f}"),
    Column("faster", lambda r: times(r["by_hand_ns"] / r["typed_ns"])),
    Column("Parquet", lambda r: f"{r['parquet_ns']:,.0f}"),
    Column("faster", lambda r: times(r["parquet_ns"] / r["typed_ns"])),
)


class Query(NamedTuple):
    """The same question, by columns and by hand: with `->>` first, then in other ways."""

    name: str
    typed: str
    by_hand: tuple[str, ...]

    @property
    def of_parquet(self) -> str:
        return self.typed.replace("from orders", "from parquet")


_PRICE = "(decode(value)->>'$.price')::double"
_COUNTRY = "decode(value)->>'$.country'"
_THREE = "json_extract_string(decode(value), ['$.country', '$.price', '$.count'])"
_TYPES = """'{"country": "VARCHAR", "price": "DOUBLE", "count": "INTEGER"}'"""
QUERIES = (
    Query(
        "one field",
        "select avg(price) from orders",
        (
            f"select avg({_PRICE}) from orders",
            'select avg(from_json(decode(value), \'{"price": "DOUBLE"}\').price) from orders',
        ),
    ),
    Query(
        "three fields",
        "select country, avg(price), sum(count) from orders group by 1",
        (
            f"select {_COUNTRY}, avg({_PRICE}), sum((decode(value)->>'$.count')::int) from orders "
            "group by 1",
            f"select x[1], avg(x[2]::double), sum(x[3]::int) from (select {_THREE} x from orders) "
            "group by 1",
            f"select x.country, avg(x.price), sum(x.count) from (select from_json(decode(value), "
            f"{_TYPES}) x from orders) group by 1",
        ),
    ),
    Query(
        "one field, where another is",
        "select avg(price) from orders where country = 'CH'",
        (f"select avg({_PRICE}) from orders where {_COUNTRY} = 'CH'",),
    ),
)


def run(records: int, runs: int, progress: Progress) -> Report:
    """runs: of each query in each form."""
    with this_server.nodes(1) as addresses, Client(addresses.grpc, timeout=60) as client:
        size = fill(client, records)
        connection = duckdb.connect()
        connection.register("orders", StreamTable([client.scan("orders")], parse(SCHEMA)))
        connection.read_parquet(export(client, addresses.folder)).create_view("parquet")
        results = []
        for query in QUERIES:
            taken = _measured(connection, query, runs)
            each = {form: seconds * 1e9 / records for form, seconds in taken.items()}
            typed, parquet = each.pop(query.typed), each.pop(query.of_parquet)
            by_hand = min(each, key=each.__getitem__)
            results.append(
                {
                    "query": query.name,
                    "typed_ns": typed,
                    "arrow_ns": each[query.by_hand[0]],
                    "by_hand_ns": each[by_hand],
                    "by_hand": by_hand,
                    "parquet_ns": parquet,
                    "every_ns": each,
                }
            )
            progress(f"{query.name}: {typed:,.0f} ns")
    about = f"by columns, {records:,} records of {size / records:,.0f} bytes"
    return Report("typed", about, "by hand", results, environment())


def decode(records: int, runs: int, progress: Progress) -> Report:
    """runs: of each format, in turn. No server: the values lie in memory, as Arrow has them, and in
    batches of 1,000, whose check is what `on_mismatch: refuse` adds to ingest."""
    orders = [json.loads(value) for value in _values(records)]
    tables = {
        name: (schema, pa.table({"value": pa.array(map(write, orders), pa.binary())}))
        for name, (schema, write) in FORMATS.items()
    }
    wanted = {"one_ns": ["price"], "three_ns": ["country", "price", "count"], "eight_ns": None}
    batches = {name: _in_batches(table) for name, (_, table) in tables.items()}
    taken: dict[str, dict[str, list[float]]] = {
        name: {count: [] for count in (*wanted, "check_ns")} for name in tables
    }
    for _ in range(runs):
        for name, (schema, table) in tables.items():
            for count, columns in wanted.items():
                decoder = Decoder(schema, columns or schema.names)
                begun = time.process_time()
                decoder.decode(table)
                seconds = time.process_time() - begun
                taken[name][count].append(seconds * 1e9 / records)
            fitting = Fitting(str(schema))
            begun = time.process_time()
            for batch in batches[name]:
                fitting.check(batch)
            taken[name]["check_ns"].append((time.process_time() - begun) * 1e9 / records)
    results = []
    for name, (_, table) in tables.items():
        found = {count: median(each) for count, each in taken[name].items()}
        size = table["value"].nbytes / records - 4  # Without the offsets.
        results.append({"format": name, "bytes": size, **found, "every_ns": taken[name]})
        progress(f"{name}: {found}")
    return Report("typed: decode", f"{records:,} records", "JSON", results, environment())


def _in_batches(table: pa.Table) -> list[Batch]:
    values = table["value"].to_pylist()
    parts = (values[at : at + BATCH] for at in range(0, len(values), BATCH))
    made = [encode(part, b"orders") for part in parts]
    for batch in made:
        batch.stamp(0, 1, WallUs(1))
    return [Batch.decode(batch.to_bytes()) for batch in made]


def _measured(connection: Any, query: Query, runs: int) -> dict[str, float]:
    """Processor seconds of each form: the median."""
    forms = (query.typed, *query.by_hand, query.of_parquet)
    taken: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(runs):
        for form in forms if number % 2 == 0 else forms[::-1]:
            begun = time.process_time()
            connection.sql(form).fetchall()
            taken[form].append(time.process_time() - begun)
    return {form: median(seconds) for form, seconds in taken.items()}


def ingest(records: int, runs: int, progress: Progress) -> Report:
    """runs: of each way to publish, with each setting."""
    values = list(_values(records))
    with this_server.nodes(1) as addresses, Client(addresses.grpc, timeout=60) as client:
        ways = {"plain messages": _publish_plain, "batches": _publish_batches}
        results = []
        for way, publish in ways.items():
            taken: dict[OnMismatchOption, list[float]] = {"keep": [], "refuse": []}
            for number in range(runs):
                for setting in taken if number % 2 == 0 else reversed(taken):
                    client.create_stream("orders", "orders", flush="none", on_mismatch=setting)
                    client.set_schema("orders", SCHEMA)
                    before = exact_processor_seconds(addresses.pids[0])
                    publish(addresses, client, values)
                    _await_end(client, records)
                    seconds = exact_processor_seconds(addresses.pids[0]) - before
                    taken[setting].append(seconds * 1e9 / records)
                    client.delete_stream("orders")
            found = {f"{setting}_ns": median(each) for setting, each in taken.items()}
            results.append({"published": way, **found, "every_ns": dict(taken)})
            progress(f"{way}: {found}")
    about = f"{records:,} records of {sum(map(len, values)) / records:,.0f} bytes"
    return Report("typed: ingest", about, "the same without a check", results, environment())


def _publish_plain(addresses: Addresses, _: Client, values: list[bytes]) -> None:
    with NatsSocket("127.0.0.1", addresses.nats_port) as nats:
        for first in range(0, len(values), BATCH):
            lines = [
                b"PUB orders %d\r\n%b\r\n" % (len(each), each)
                for each in values[first : first + BATCH]
            ]
            nats.socket.sendall(b"".join(lines))
        nats.socket.sendall(b"PING\r\n")
        while b"PONG" not in nats.socket.recv(1 << 16):
            pass


def _publish_batches(_: Addresses, client: Client, values: list[bytes]) -> None:
    with client.publisher("orders", via="nats") as publisher:
        for first in range(0, len(values), BATCH):
            publisher.publish_many(values[first : first + BATCH])
        publisher.flush()


def _await_end(client: Client, records: int) -> None:
    deadline = time.monotonic() + 60
    while client.describe_stream("orders").high_watermark != records:
        if time.monotonic() > deadline:
            raise TimeoutError("not all records were stored: NATS has dropped some")
        time.sleep(0.05)


def fill(client: Client, records: int) -> int:
    """Publish the records to a new stream, `orders`, with their schema; returns their bytes."""
    client.create_stream("orders", "orders", flush="none")
    client.set_schema("orders", SCHEMA)
    values, size = _values(records), 0
    with client.publisher("orders") as publisher:
        while batch := list(islice(values, BATCH)):
            size += sum(map(len, batch))
            publisher.publish_many(batch)
        publisher.flush()
    return size


def export(client: Client, folder: Path) -> str:
    """The fields of all records, as columns of a file of Parquet in the folder."""
    path = str(folder / "orders.parquet")
    scan = client.scan("orders", columns=parse(SCHEMA).names, typed=True)
    with pq.ParquetWriter(path, scan.schema, compression="zstd") as writer:
        for batch in scan:
            writer.write_batch(batch)
    return path


def _values(records: int) -> Iterator[bytes]:
    chance = random.Random(7)
    return (_value(chance, number) for number in range(records))


def _value(chance: random.Random, number: int) -> bytes:
    order: dict[str, Any] = {
        "id": number,
        "customer": f"customer-{chance.randrange(10_000)}",
        "price": round(chance.random() * 100, 2),
        "count": chance.randrange(100),
        "country": chance.choice(COUNTRIES),
        "at": f"2026-01-31T10:{number // 60 % 60:02}:{number % 60:02}Z",
        "paid": chance.random() < 0.5,
        "note": "left at the door " + "x" * chance.randrange(30),
    }
    return json.dumps(order, separators=(",", ":")).encode()
