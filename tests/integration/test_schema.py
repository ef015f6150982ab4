"""Schemas of streams: set, kept, and their fields as columns in SQL and scans."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    PreconditionFailedError,
    SchemaMismatchError,
)
from jetstream_client.cli import interrupts
from jetstream_client.cli.main import run as run_command
from jetstream_client.reading.arrow import SCHEMA
from jetstream_client.reading.schema_sources import from_json_schema
from jetstream_client.values.types import Via
from jetstream_protocol.typed_json import compiled
from tests.support.server import ServerProcess

Run = Callable[..., str]
VALUES: list[bytes | None] = [
    b'{"id":1,"price":2.5,"items":[{"sku":"a","count":1}],"at":"2026-01-31T10:00:00Z"}',
    b'{"id":2.5,"price":7}',
    b"\xff",
    b'{"id":3}',
]
ORDERS = "id bigint, price double, items list<struct<sku string, count int>>, at timestamp"


@pytest.fixture(scope="module", autouse=True)
def filled(server: ServerProcess) -> None:
    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            for name in ("orders", "plain", "changing"):
                await client.create_stream(name, f"{name}.>")
            for value in VALUES:
                await client.publish("orders.eu", value)
                await client.publish("plain.eu", value)
            await client.set_schema("orders", ORDERS)

    asyncio.run(fill())


@pytest.fixture
def jetstream(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """In this process, which signals do not end."""
    monkeypatch.setattr(interrupts, "end_in_foreign_code", lambda: None)

    def run(*arguments: str, code: int = 0) -> str:
        found = run_command([*arguments, "--server", server.grpc])
        sys.stdout.flush()
        out, error = capfd.readouterr()
        assert found == code, error
        return error if code else out

    return run


def test_sql_has_the_fields_as_columns(jetstream: Run) -> None:
    query = 'select "offset" o, id, price, items[1].sku sku, year("at") y, _error e from orders'
    assert [json.loads(line) for line in jetstream("sql", query, "--json").splitlines()] == [
        {"o": 0, "id": 1, "price": 2.5, "sku": "a", "y": 2026, "e": None},
        {"o": 1, "id": None, "price": 7.0, "sku": None, "y": None, "e": "id is not a bigint"},
        {"o": 2, "id": None, "price": None, "sku": None, "y": None, "e": "the value is not JSON"},
        {"o": 3, "id": 3, "price": None, "sku": None, "y": None, "e": None},
    ]
    assert json.loads(jetstream("sql", "select avg(price) p from orders", "--json")) == {"p": 4.75}


def test_an_unknown_column_says_how_to_set_a_schema(jetstream: Run) -> None:
    said = jetstream("sql", "select price from plain", code=2)
    assert "plain has no schema: jetstream schema set plain --infer 10000" in said
    assert "plain has no schema" in jetstream("sql", "select p.price from plain p", code=2)
    assert "no schema" not in jetstream("sql", "select prize from orders", code=2)


def test_an_unknown_column_of_several_streams_says_what_they_lack(
    jetstream: Run, client: Client
) -> None:
    for name in ("many-a", "many-b"):
        client.create_stream(name, f"{name}.>")
    client.set_schema("many-a", "x int")
    query = ("sql", 'select x from "many-*"')
    said = jetstream(*query, code=2)
    assert "many-b@many-b.> has no schema: jetstream schema set 'many-b@many-b.>' --infer" in said
    client.set_schema("many-b", "x bigint")
    assert "the streams of many-* have different schemas" in jetstream(*query, code=2)


def test_without_a_schema_a_table_is_as_before(jetstream: Run) -> None:
    (found, *_) = jetstream("sql", "select * from plain", "--json").splitlines()
    assert list(json.loads(found)) == SCHEMA.names


def test_a_scan_has_the_fields_as_columns(client: Client) -> None:
    table = client.scan("orders", columns=["price", "subject", "_error"], typed=True).to_table()
    assert table.column_names == ["price", "subject", "_error"]
    assert table["price"].to_pylist() == [2.5, 7.0, None, None]
    assert table["subject"].to_pylist() == ["orders.eu"] * 4
    whole = client.scan("orders", rows=2, typed=True)
    assert whole.schema.names == [*SCHEMA.names, "id", "price", "items", "at", "_error"]
    assert [len(batch) for batch in whole] == [2, 2]
    assert whole.to_table()["value"].to_pylist() == VALUES
    with pytest.raises(InvalidRequestError, match="no column 'prize': there are stream,"):
        client.scan("orders", columns=["prize"], typed=True)
    with pytest.raises(InvalidRequestError, match="stream plain has no schema"):
        client.scan("plain", typed=True)
    with pytest.raises(TypeError, match=r"client\.describe_schema\(\) returns"):
        client.fetch("orders").to_arrow(typed=True)  # type: ignore[arg-type]


def test_a_schema_may_have_500_fields(client: Client) -> None:
    client.create_stream("wide", "wide")
    client.set_schema("wide", ", ".join(f"a_longer_name_{number} int" for number in range(500)))
    client.publish("wide", b'{"a_longer_name_499":7}')
    (row,) = client.sql("select a_longer_name_0, a_longer_name_499 from wide").to_pylist()
    assert row == {"a_longer_name_0": None, "a_longer_name_499": 7}


@pytest.mark.parametrize("via", ["nats", "direct"])
def test_a_stream_can_refuse_what_does_not_fit(client: Client, via: Via) -> None:
    name = f"strict-{via}"
    client.create_stream(name, f"strict.{via}.>", on_mismatch="refuse")
    client.set_schema(name, "id int not null")
    client.publish(f"strict.{via}.a", b'{"id":0}', via=via)
    with pytest.raises(SchemaMismatchError, match="id is not an int"):
        client.publish(f"strict.{via}.a", b'{"id":"0"}', via=via)
    with client.publisher(f"strict.{via}.a", via=via) as publisher:
        refused = publisher.publish_many([b'{"id":1}', b"{}", b'{"id":2}'])
        with pytest.raises(SchemaMismatchError, match="record 2 of 3"):
            refused.result(60)
        publisher.publish_many([b'{"id":3}', b'{"id":4}']).result(60)
    stored = client.scan(name, columns=["id", "_error"], typed=True).to_table()
    assert stored["id"].to_pylist() == [0, 3, 4]
    assert stored["_error"].null_count == len(stored)


def test_messages_have_the_fields_as_columns_and_as_rows(client: Client) -> None:
    schema, messages = client.describe_schema("orders"), client.fetch("orders", max_messages=4)
    scanned = client.scan("orders", typed=True).to_table()
    assert messages.to_arrow(typed=schema).to_pylist() == scanned.to_pylist()
    few = messages.to_arrow(["price", "offset"], typed=schema)
    assert few.to_pydict() == {"price": [2.5, 7.0, None, None], "offset": [0, 1, 2, 3]}
    assert list(messages.to_polars(["_error"], typed=schema)["_error"])[1] == "id is not a bigint"
    fields = ["id", "price", "items", "at", "_error"]
    assert [message.row(schema) for message in messages] == scanned.select(fields).to_pylist()
    with pytest.raises(InvalidRequestError, match="the stream has no schema"):
        messages[0].row(client.describe_schema("plain"))
    with (
        client.consume("orders", "earliest", value_deserializer=json.loads) as consumer,
        pytest.raises(InvalidRequestError, match="as bytes, not dict: read it without"),
    ):
        next(iter(consumer)).row(schema)


def test_a_schema_goes_on_from_its_last_version(client: Client, jetstream: Run) -> None:
    assert client.describe_schema("changing").version == 0
    first = client.set_schema("changing", "n int", version=0)
    assert (first.version, first.versions) == (1, ("n int",))
    assert client.set_schema("changing", "n  INT", version=0) == first
    with pytest.raises(PreconditionFailedError, match="at version 1, not 0"):
        client.set_schema("changing", "n bigint", version=0)
    with pytest.raises(InvalidRequestError, match="n cannot change from int to string"):
        client.set_schema("changing", "n string")
    second = client.set_schema("changing", "total bigint alias n, note string")
    assert (second.version, second.text) == (2, "total bigint alias n, note string")
    assert "~ " not in jetstream("schema", "diff", "changing", second.text)
    assert "it cannot be set: total is gone" in jetstream("schema", "diff", "changing", "n bigint")
    assert jetstream("schema", "history", "changing").count("bigint") == 1
    jetstream("schema", "set", "changing", "--drop")
    assert client.set_schema("changing", "n string").version == 4
    assert "n string" in jetstream("schema", "show", "changing")


def test_a_schema_is_made_of_records_or_of_json_schema(jetstream: Run, tmp_path: Path) -> None:
    found = json.loads(jetstream("schema", "diff", "plain", "--infer", "10", "--json"))
    assert found["changes"] == [
        "+ id double",
        "+ price double",
        "+ items list<struct<sku string, count bigint>>",
        "+ at timestamp",
    ]
    file = tmp_path / "orders.schema.json"
    properties = {"id": {"type": "integer"}, "at": {"type": ["string", "null"], "format": "date"}}
    file.write_text(json.dumps({"type": "object", "properties": properties, "required": ["id"]}))
    found = json.loads(jetstream("schema", "diff", "plain", "--from", str(file), "--json"))
    assert found["changes"] == ["+ id bigint not null", "+ at date"]


@pytest.mark.parametrize(
    "text",
    [
        '{"type": 5}', '{"type": [5]}', "[]", "null", "nonsense",
        '{"type": "object", "properties": []}',
        '{"type": "object", "properties": {"a": {"type": 5}}}',
        '{"type": "object", "properties": {"a": true}, "required": 5}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_json_schema_of_an_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        from_json_schema(text)


def test_check_counts_what_fits(jetstream: Run) -> None:
    found = json.loads(jetstream("schema", "check", "orders", "--json"))
    assert found == {
        "stream": "orders",
        "fitting": 2,
        "not_fitting": [
            {"error": "id is not a bigint", "records": 1, "first_offset": 1},
            {"error": "the value is not JSON", "records": 1, "first_offset": 2},
        ],
    }
    assert "2 records fit" in jetstream("schema", "check", "orders")


def test_a_backup_keeps_the_schema(jetstream: Run, client: Client, tmp_path: Path) -> None:
    for target in (tmp_path / "folder", tmp_path / "backup.parquet"):
        jetstream("stream", "backup", "orders", str(target))
        name = f"again-{target.stem}"
        jetstream("stream", "restore", str(target), name, "--subject", f"{name}.>")
        assert client.describe_schema(name).text == ORDERS


def test_a_cluster_that_knows_no_schemas_refuses_a_restore_before_it_copies(
    jetstream: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PreconditionFailedError("set_schema needs feature level 6: the cluster is at 5")

    for target in (tmp_path / "folder", tmp_path / "backup.parquet"):
        jetstream("stream", "backup", "orders", str(target))
        name = f"later-{target.stem}"
        restore = ("stream", "restore", str(target), name, "--subject", f"{name}.>")
        with monkeypatch.context() as patched:
            patched.setattr(Client, "set_schema", refused)
            said = jetstream(*restore, code=1)
        assert "needs feature level 6" in said
        left = client.describe_stream(name)
        assert (left.restoring, left.high_watermark) == (True, 0)
        jetstream(*restore)  # The level was raised meanwhile.
        assert client.describe_schema(name).text == ORDERS
        assert client.fetch(name, max_messages=9).values() == VALUES


PAGE = Path(__file__).parents[2] / "docs" / "typed_streams.md"


def blocks_of(section: str) -> dict[str, str]:
    """The examples of the page, by language."""
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))


def all_readers_have(
    wanted: dict[str, list[dict[str, Any]]], jetstream: Run, client: Client
) -> None:
    """The rows of each stream, which then refuses JSON."""
    for name, rows in wanted.items():
        whole = [{**row, "_error": None} for row in rows]
        columns = [*rows[0], "_error"]
        schema, messages = client.describe_schema(name), client.fetch(name)
        assert client.scan(name, columns=columns, typed=True).to_table().to_pylist() == whole
        assert messages.to_arrow(columns, typed=schema).to_pylist() == whole
        assert [message.row(schema) for message in messages] == whole
        found = jetstream("sql", f"select id, price, _error from {name}", "--json").splitlines()
        few = [{key: row[key] for key in ("id", "price", "_error")} for row in whole]
        assert [json.loads(line) for line in found] == few
        said = jetstream("schema", "diff", name, "--infer", "10", code=2)
        assert "--infer reads JSON" in said
        client.alter_stream(name, on_mismatch="refuse")
        with pytest.raises(SchemaMismatchError, match="does not fit the schema"):
            client.publish(f"{name}.eu", b'{"id":1}')
        fitting = "1 record fits" if len(rows) == 1 else f"{len(rows)} records fit"
        assert fitting in jetstream("schema", "check", name)


@pytest.mark.skipif(compiled is None, reason="nothing is compiled here")
def test_the_example_of_avro_and_protobuf_runs(
    jetstream: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each reader has the same columns."""
    blocks = blocks_of("Avro and Protobuf")
    (tmp_path / "order.avsc").write_text(blocks["json"])
    (tmp_path / "orders.proto").write_text(blocks["protobuf"])
    monkeypatch.chdir(tmp_path)
    lines = blocks["sh"].splitlines()
    shown = [jetstream(*shlex.split(line)[1:]) for line in lines][-1]
    assert shown == "version 1, protobuf 0\nid bigint\nprice double\ntags list<string>\n"
    exec(blocks["python"], {"client": client})
    wanted = {
        "bought": [{"id": 1, "price": 2.5, "placed": datetime(2026, 1, 31, 10, tzinfo=UTC)}],
        "sold": [
            {"id": 1, "price": 2.5, "tags": ["pear"]},
            {"id": 2, "price": None, "tags": []},
        ],
    }
    all_readers_have(wanted, jetstream, client)
    assert "format cannot change" in jetstream("schema", "diff", "sold", "id bigint")


@pytest.mark.skipif(compiled is None, reason="nothing is compiled here")
def test_the_example_of_arrow_runs(jetstream: Run, client: Client, tmp_path: Path) -> None:
    blocks = blocks_of("Rows of Arrow")
    for line in blocks["sh"].splitlines():
        jetstream(*shlex.split(line)[1:])
    exec(blocks["python"], {"client": client})
    rows = [{"id": 1, "price": 2.5, "note": None}, {"id": 2, "price": 0.5, "note": "wet"}]
    all_readers_have({"measured": rows}, jetstream, client)
    file = tmp_path / "rows.arrow"
    kinds = {"id": pa.int64(), "price": pa.float64(), "note": pa.string(), "more": pa.date32()}
    file.write_bytes(pa.schema(kinds).serialize())
    said = jetstream("schema", "set", "measured", "--from", str(file))
    assert "price double, note string, more date using arrow" in said
    assert "--format is about a SCHEMA" in jetstream(
        "schema", "diff", "measured", "--format", "arrow", "--from", str(file), code=2
    )


@pytest.mark.skipif(compiled is None, reason="nothing is compiled here")
def test_a_schema_of_avro_goes_on_with_its_next_id(
    jetstream: Run, client: Client, tmp_path: Path
) -> None:
    client.create_stream("moving", "moving.>")
    file = tmp_path / "r.avsc"
    for number, fields in enumerate((["a"], ["a", "b"]), 7):
        given = [{"name": name, "type": "int", "default": 9} for name in fields]
        file.write_text(json.dumps({"type": "record", "name": "R", "fields": given}))
        jetstream("schema", "set", "moving", "--from", str(file), "--id", str(number))
    for value in (b"\0\0\0\0\7\2", b"\0\0\0\0\x08\2\4", b"\0\0\0\0\x09\2", b"\2"):
        client.publish("moving.x", value)
    found = client.scan("moving", columns=["a", "b", "_error"], typed=True).to_table()
    unknown = "the value begins with no schema id known"
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (1, 9, None),
        (1, 2, None),
        (None, None, unknown),
        (None, None, unknown),
    ]
    assert "using avro 7, 8" in jetstream("schema", "history", "moving")
