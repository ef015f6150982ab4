"""Old records leave a real server's disk for a folder, and readers get them from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import StaticTable

from jetstream_client import (
    At,
    Client,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_client.cli.exits import Exit
from jetstream_protocol.batch import iterate
from tests.support.command import jetstream
from tests.support.lake_streams import (
    COUNT,
    VALUE,
    batches,
    fill,
    is_copied,
    local_start,
    only_in_lake,
    until,
)
from tests.support.s3 import SECRET, s3_server
from tests.support.server import ServerProcess


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (folder := tmp_path / "lake").mkdir()
    return folder


@pytest.fixture
def server(tmp_path: Path, lake: Path) -> Iterator[ServerProcess]:
    environment = {"JETSTREAM_LAKE__URL": lake.as_uri()}
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as client:
        yield client


@pytest.fixture
def bucket() -> Iterator[str]:
    with s3_server("lake") as address:
        yield address


@pytest.fixture(autouse=True)
def polars_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Else it warns.


def test_old_records_are_read_from_the_lake_byte_for_byte(
    server: ServerProcess, client: Client, lake: Path
) -> None:
    stream_id = fill(client, "old")
    before = batches(client, "old")
    until(lambda: is_copied(lake, stream_id))
    client.alter_stream("old", local_max_bytes=64 * 1024)
    until(lambda: local_start(server, stream_id) > COUNT // 2)
    assert client.offset_at("old", "earliest") == 0
    assert batches(client, "old") == before
    assert client.describe_stream("old").log_start_offset == 0

    def appended(offset: int) -> int:
        return next(iterate(client.fetch_batches("old", offset).data)).header.append_timestamp

    found = client.offset_at("old", At(appended(300)))
    assert 0 < found <= 300
    assert appended(found - 1) < appended(found) == appended(300)
    expected = [b"%d " % each + VALUE for each in range(COUNT)]
    with client.consume("old", stop="latest") as consumer:
        assert [each.value for each in consumer] == expected
    engines_agree(server, client, stream_id)
    the_command_tells(server)
    typed_columns_agree(server, client)
    again_after_a_restart(server, before)


def engines_agree(server: ServerProcess, client: Client, stream_id: int) -> None:
    """Each of them reads as many records of the table as the log has, with the same values."""
    found = client.describe_lake("old")
    assert (found.start_offset, found.problem) == (0, "")
    assert COUNT // 2 < found.end_offset <= found.committed_offset
    wanted = (found.end_offset, digest((at, b"%d " % at + VALUE) for at in range(found.end_offset)))
    url = found.table_url
    assert f"/{stream_id}-" in url
    static = StaticTable.from_metadata(url)
    rest = load_catalog("lake", type="rest", uri=f"{server.http}/iceberg")
    assert rest.list_namespaces() == [("jetstream",)]
    assert rest.list_tables("jetstream") == [("jetstream", "old")]
    cataloged = rest.load_table("jetstream.old")
    assert cataloged.metadata_location >= url
    for table in (static, cataloged):
        rows = table.scan(row_filter=f"offset < {found.end_offset}").to_arrow()
        assert in_arrow(rows) == wanted
    with pytest.raises(NoSuchTableError):
        rest.load_table("jetstream.none")
    with pytest.raises(NoSuchNamespaceError):
        rest.list_tables("other")
    polars = pytest.importorskip("polars")
    assert in_arrow(polars.scan_iceberg(url).collect().to_arrow()) == wanted
    duckdb = pytest.importorskip("duckdb")
    files = [each.file.file_path for each in static.scan().plan_files()]
    by_file = duckdb.sql('select "offset", value from read_parquet($1)', params=[files])
    assert in_arrow(by_file.to_arrow_table()) == wanted


def typed_columns_agree(server: ServerProcess, client: Client) -> None:
    """The table has what the SDK decodes, also of what was copied by an earlier schema."""
    client.create_stream(
        "typed", "typed", replicas=1, lake=True, segment_bytes=64 * 1024, duplicate_window=0
    )
    for first, schema in (
        (0, "id int, word string, tags list<string>"),
        (200, "number bigint alias id, word string, tags list<string>, more double"),
    ):
        client.set_schema("typed", schema)
        with client.publisher("typed", linger=0) as publisher:
            for at in range(first, first + 200, 10):
                publisher.publish_many([typed_value(each) for each in range(at, at + 10)])
                publisher.flush()
        until(lambda: client.describe_lake("typed").end_offset > first + 100)  # noqa: B023
    found = client.describe_lake("typed")
    names = ["offset", "number", "word", "tags", "more", "_error"]
    scan = client.scan("typed", stop=found.end_offset, columns=names, typed=True)
    wanted = scan.to_table().to_pylist()
    table = StaticTable.from_metadata(found.table_url)
    rows = table.scan(selected_fields=tuple(names)).to_arrow().sort_by("offset").to_pylist()
    assert rows == wanted
    assert {row["_error"] for row in rows} == {None, "word is not a string"}
    stale = table.scan(row_filter="number >= 290 and more < 300").to_arrow()
    assert min(stale["number"].to_pylist()) == 290, "its columns can be filtered by"


def typed_value(at: int) -> bytes:
    row: dict[str, Any] = {"id": at, "word": "w" if at % 7 else 7, "tags": ["x"] * (at % 3)}
    if at >= 200:
        row |= {"number": row.pop("id"), "more": at}
    return json.dumps({**row, "padding": VALUE.decode()}).encode()


def the_command_tells(server: ServerProcess) -> None:
    def run(*arguments: str) -> str:
        ended = jetstream("lake", *arguments, "--server", server.grpc)
        assert not ended.returncode, ended.stderr
        return ended.stdout

    assert "STREAM" in run("status")
    status = json.loads(run("status", "old", "--json"))
    assert status["end_offset"] + status["waiting"] == COUNT
    assert f'scan_iceberg("{status["table_url"]}")' in run("url", "old")
    swept = [json.loads(line) for line in run("sweep", "--dry-run", "--json").splitlines()]
    assert all(each["stream"].startswith("old") and not each["deleted"] for each in swept)
    assert "DELETED" in run("sweep", "old")
    listed = jetstream("stream", "list", "--server", server.grpc).stdout
    (end,) = re.findall(r"to (\d+)$", listed, re.MULTILINE)
    verified = json.loads(run("verify", "old", "--json"))
    assert not verified["problem"]
    # More may have been copied meanwhile.
    last = json.loads(run("status", "old", "--json"))["end_offset"]
    assert status["end_offset"] <= int(end) <= verified["records"] <= last
    jetstream("stream", "create", "plain", "--subject", "plain", "--server", server.grpc)
    for command in ("status", "sweep", "verify", "url"):
        refused = jetstream("lake", command, "plain", "--server", server.grpc)
        assert refused.returncode == Exit.NOT_FOUND, refused.stdout
        assert "has no lake" in refused.stderr or "nothing of stream" in refused.stderr


def in_arrow(table: Any) -> tuple[int, str]:
    pairs = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return len(table), digest(sorted(pairs))


def digest(pairs: Iterable[tuple[int, bytes]]) -> str:
    found = blake2b(digest_size=16)
    for offset, value in pairs:
        found.update(b"%d %d " % (offset, len(value)) + value)
    return found.hexdigest()


def test_a_store_that_is_away_costs_space_and_nothing_else(
    server: ServerProcess, client: Client, lake: Path
) -> None:
    lake.rmdir()
    stream_id = fill(client, "away")
    client.alter_stream("away", local_max_bytes=64 * 1024)
    until(lambda: "lake_copy_failed" in server.log_text)
    assert local_start(server, stream_id) == 0
    before = batches(client, "away")
    lake.mkdir()
    until(lambda: local_start(server, stream_id) > COUNT // 2)
    lake.rename(aside := lake.with_name("aside"))
    with (
        Client(server.grpc, timeout=6) as hasty,
        pytest.raises(UnavailableError, match=r"read: the folder of the lake is not there: /"),
    ):
        hasty.fetch("away", 0)
    end = client.offset_at("away", "latest")
    assert client.fetch("away", end - 10).offsets() == list(range(end - 10, end))
    aside.rename(lake)
    assert batches(client, "away") == before
    purged_in_the_lake(client)


def test_a_bucket_holds_old_records_and_nobody_sees_its_credentials(
    tmp_path: Path, bucket: str
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {SECRET}\n"
    )
    environment = {
        "JETSTREAM_LAKE__URL": "s3://lake/some/prefix",
        "JETSTREAM_LAKE__ENDPOINT": bucket,
        "JETSTREAM_LAKE__CREDENTIALS_FILE": str(credentials),
    }
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            in_a_bucket(server, client)
        assert SECRET not in server.log_text
    finally:
        server.kill()


def in_a_bucket(server: ServerProcess, client: Client) -> None:
    stream_id = fill(client, "far")
    before = batches(client, "far")
    client.alter_stream("far", local_max_bytes=64 * 1024)
    until(lambda: local_start(server, stream_id) > COUNT // 2)
    assert batches(client, "far") == before
    found = client.describe_lake("far")
    assert found.table_url.startswith("s3://lake/some/prefix/")
    assert found.problem == ""
    told = (
        jetstream("stream", "describe", "far", "--json", "--server", server.grpc).stdout,
        repr(client.debug_node(0)),
        urlopen(f"{server.http}/metrics").read().decode(),
    )
    assert all(told)
    assert not any(SECRET in each for each in told)


def purged_in_the_lake(client: Client) -> None:
    assert client.purge_stream("away", 200) == 200
    assert client.offset_at("away", "earliest") == 200
    assert client.fetch("away", 200).offsets()[0] == 200
    with pytest.raises(OffsetOutOfRangeError):
        client.fetch("away", 199)
    with pytest.raises(InvalidRequestError, match="lake cannot be set"):
        client.create_stream("compacted", "compacted", compact=True, lake=True)


def again_after_a_restart(server: ServerProcess, before: bytes) -> None:
    server.kill()
    server.start()
    with Client(server.grpc, timeout=60) as client:
        assert client.offset_at("old", "earliest") == 0
        assert batches(client, "old") == before
        fill(client, "old", COUNT)
        assert client.offset_at("old", "latest") == 2 * COUNT
        assert batches(client, "old").startswith(before)


def test_a_table_of_a_lost_cluster_is_taken_over(
    server: ServerProcess, client: Client, tmp_path: Path, lake: Path
) -> None:
    stream_id = only_in_lake(server, client, "lost", 200)
    copied = client.describe_lake("lost").end_offset
    expected = [each.value for each in client.fetch("lost", 0, max_messages=200)]
    server.kill()  # More may have been copied until here.
    (folder,) = lake.glob(f"*/{stream_id}-*")
    environment = {"JETSTREAM_LAKE__URL": lake.as_uri()}
    new = ServerProcess(tmp_path / "new", environment=environment)
    new.start()
    try:
        arguments = ("adopt", folder.as_uri(), "found", "--subject", "found", "--json")
        reach = ("--server", new.grpc, "--timeout", "120s")
        ended = jetstream("lake", *arguments, *reach)
        assert not ended.returncode, ended.stderr
        told = json.loads(ended.stdout)
        end = told["end_offset"]
        assert told["start_offset"] == 0
        assert copied <= end <= 200
        with Client(new.grpc, timeout=60) as again:
            with again.publisher("found") as publisher:
                publisher.publish_many([b"%d" % each for each in range(100)])
            with again.consume("found", stop="latest") as consumer:
                records = list(consumer)
            assert [each.offset for each in records] == list(range(end + 100))
            assert [each.value for each in records][:end] == expected[:end]
            refused = jetstream("lake", *arguments, *reach)
            assert "exists" in refused.stderr
    finally:
        new.kill()


KEYS = {"JETSTREAM_ENCRYPTION__KEYS": "5e" * 32}


def test_a_node_that_encrypts_refuses_streams_with_a_lake(tmp_path: Path, lake: Path) -> None:
    """It would copy nothing, and its disk would fill."""
    environment = KEYS | {"JETSTREAM_LAKE__URL": lake.as_uri()}
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            why = "encrypts what it stores, and the lake would hold it plain"
            with pytest.raises(PreconditionFailedError, match=why):
                client.create_stream("refused", "refused", lake=True)
            client.create_stream("plain", "plain")
            with pytest.raises(PreconditionFailedError, match=why):
                client.alter_stream("plain", lake=True)
    finally:
        server.stop()


def test_a_node_with_keys_that_encrypts_only_what_asks_for_it_copies_the_rest(
    tmp_path: Path, lake: Path
) -> None:
    environment = {"JETSTREAM_LAKE__URL": lake.as_uri(), "JETSTREAM_ENCRYPTION__ENABLED": "false"}
    server = ServerProcess(tmp_path / "data", environment=KEYS | environment)
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            stream_id = fill(client, "old")
            until(lambda: is_copied(lake, stream_id))
            assert client.describe_lake("old").problem == ""
    finally:
        server.stop()
