"""`jetstream sql` and `jetstream export`: streams as tables and as files."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest

from jetstream_client import AsyncClient, Client, Message
from jetstream_client.cli import interrupts
from jetstream_client.cli.main import run as run_command
from jetstream_client.sql.query import header_maps
from jetstream_protocol.extras import install_command
from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-m", "jetstream_client"]
COUNT = 600


@pytest.fixture(scope="module", autouse=True)
def filled(server: ServerProcess) -> None:
    """`trades` has JSON, `odd` every kind of record; `unread` is never to be touched."""

    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            for name in ("trades", "odd", "unread"):
                await client.create_stream(name, f"{name}.>")
            for name in ("cust-1", "cust-2"):
                await client.create_stream(name, name)
            for subject in ("cust-1", "cust-2", "cust-2"):
                await client.publish(subject, b"")
            await client.create_group("jobs", "jobs.>", streams=2)
            for number in range(COUNT):
                value = json.dumps({"price": number})
                await client.publish(f"trades.{number % 3}", value, key=str(number % 5))
            await client.publish(
                "odd.a", b"\xff\x00\n", key="k", headers={"b": "1", "A": ["x", "y"]}
            )
            await client.publish("odd.b", None, key="k")
            await client.publish("odd.c", b"")
            await client.publish("odd.d", 'größe\n"x"')

    asyncio.run(fill())


@pytest.fixture
def environment(server: ServerProcess) -> dict[str, str]:
    return {**os.environ, "JETSTREAM_SERVERS": server.grpc}


@pytest.fixture
def process(environment: dict[str, str]) -> Run:
    """The command as a process of its own."""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = ended(environment, *arguments)
        assert done.returncode == code, done
        assert done.stderr.count(b"\n") == (1 if code else 0), done.stderr
        return done

    return run


def ended(
    environment: dict[str, str], *arguments: str, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    return fork_server.run(
        [*COMMAND, *arguments], environment=environment, given=given, text=False, timeout=60
    )


@pytest.fixture
def jetstream(
    server: ServerProcess,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """The command within this process, which is many times quicker. It leaves no thread behind that
    waits for a signal: `test_interrupts` has those of real processes."""
    monkeypatch.setattr(interrupts, "end_in_foreign_code", lambda: None)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        found = run_command([*arguments, "--server", server.grpc])
        sys.stdout.flush()
        out, error = capfdbinary.readouterr()
        assert found == code, error
        if arguments[0] != "sql" or not code:  # DuckDB's errors have lines of their own.
            assert error.count(b"\n") == (1 if code else 0), error
        return subprocess.CompletedProcess(arguments, found, out, error)

    return run


@pytest.fixture
def odd(server: ServerProcess) -> Iterator[list[Message]]:
    with Client(server.grpc, timeout=60) as client:
        yield list(client.fetch("odd"))


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError as error:
        raise AssertionError(f"not JSON lines: {done.stdout!r}") from error


def test_a_query_draws_no_bar_in_its_answer_also_where_python_seems_interactive(
    server: ServerProcess,
) -> None:
    """A program without a file is interactive to DuckDB, which draws a bar after two seconds."""
    query = "select current_setting('enable_progress_bar') as draws_a_bar"
    program = "import sys; from jetstream_client.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "sql", query, "--json", "--server", server.grpc]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert rows(done) == [{"draws_a_bar": False}]


def test_a_query_counts_by_subject(jetstream: Run, process: Run) -> None:
    query = "select subject, count(*) as n from trades group by 1 order by 1"
    assert rows(jetstream("sql", query, "--json")) == [
        {"subject": f"trades.{k}", "n": COUNT // 3} for k in range(3)
    ]
    lines = process("sql", query).stdout.decode().splitlines()
    assert [line.split() for line in lines] == [
        ["subject", "n"],
        *([f"trades.{k}", str(COUNT // 3)] for k in range(3)),
    ]


def test_a_query_reaches_into_json_values(jetstream: Run) -> None:
    query = "select sum((decode(value)->>'$.price')::bigint) as total from trades"
    assert rows(jetstream("sql", query, "--json")) == [{"total": sum(range(COUNT))}]


def test_a_query_is_bounded_like_a_scan(jetstream: Run) -> None:
    query = 'select min("offset") as a, max("offset") as b from trades'
    bounds = ["--from", "last:100", "--to", str(COUNT - 10), "--json"]
    assert rows(jetstream("sql", query, *bounds)) == [{"a": COUNT - 100, "b": COUNT - 11}]


def test_streams_can_be_joined_and_named_in_full(jetstream: Run) -> None:
    query = 'select count(*) as n from "trades@trades.>" t join odd o on t.offset = o.offset'
    assert rows(jetstream("sql", query, "--json")) == [{"n": 4}]


def test_only_the_streams_of_the_query_are_read(
    jetstream: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[Any] = []
    scan = Client.scan

    def noted(client: Client, stream: Any, *arguments: Any, **options: Any) -> object:
        scanned.append(stream)
        return scan(client, stream, *arguments, **options)

    monkeypatch.setattr(Client, "scan", noted)
    jetstream("sql", "with odd as (select 1) select count(*) from trades, odd")
    assert scanned == ["trades"]
    error = jetstream("sql", "select count(*) from nowhere", code=3).stderr
    assert error == b"error: there is no stream 'nowhere'\n"
    assert scanned == ["trades"]
    jetstream("sql", "select count(*) from jobs")
    assert [each.name for each in scanned[1:]] == ["jobs-0", "jobs-1"]


def test_values_that_are_no_text_and_nulls_have_a_form(jetstream: Run) -> None:
    query = 'select value, timestamp from odd order by "offset"'
    found = rows(jetstream("sql", query, "--json"))
    assert [row["value"] for row in found] == ["/wAK", None, "", 'größe\n"x"']
    assert found[0]["timestamp"].endswith("Z")
    shown = jetstream("sql", query).stdout.decode()
    assert "NULL" in shown
    assert r"\xff\x00\n" in shown


@pytest.mark.parametrize(
    "query",
    [
        "create table x (a int)",
        "select 1; select 2",
        "",
        "copy (select 1) to '/tmp/jetstream-sql-test'",
        "attach '/tmp/jetstream-sql-test'",
        "select * from read_text('/etc/hostname')",
        "set enable_external_access = true",
        "install httpfs",
        "selekt",
    ],
)
def test_a_query_changes_nothing_and_opens_no_file(jetstream: Run, query: str) -> None:
    jetstream("sql", query, code=2)
    assert not Path("/tmp/jetstream-sql-test").exists()


def test_a_wrong_query_is_shown_with_the_place_and_what_to_write(jetstream: Run) -> None:
    advice = 'write "offset" in double quotes'
    shown = jetstream("sql", "select offset from trades", code=2).stderr.decode()
    head, line, caret, last = shown.splitlines()
    assert head == 'error: the query fails: Parser Error: syntax error at or near "from"'
    assert line[caret.index("^") :] == "from trades"
    assert last.endswith(advice)
    assert advice in jetstream("sql", "select max(Offset) from trades", code=2).stderr.decode()
    assert advice not in jetstream("sql", 'selct "offset" from trades', code=2).stderr.decode()
    escape = jetstream("sql", "select '\x1b[2J'::int", code=2).stderr
    assert b"\x1b" not in escape


def test_a_file_is_no_stream(jetstream: Run) -> None:
    error = jetstream("sql", "select * from '/etc/hostname'", code=3).stderr
    assert error == b"error: there is no stream '/etc/hostname'\n"


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("duckdb", "sql", ["sql", "select 1"]),
        ("numpy", "sql", ["sql", "select 1"]),
        ("pyarrow", "arrow", ["export", "trades", "--format", "parquet"]),
        ("pyarrow", "arrow", ["schema", "check", "trades"]),
        ("pyarrow", "arrow", ["schema", "set", "trades", "--infer", "10"]),
        ("obstore", "lake", ["stream", "backup", "trades", "s3://bucket/folder"]),
        ("kafka", "kafka", ["import", "new", "--subject", "new.>", "--from-kafka", "127.0.0.1:1"]),
    ],
)
def test_without_its_extra_a_command_names_what_installs_it(
    jetstream: Run,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    extra: str,
    arguments: list[str],
) -> None:
    for name in ("reading.arrow", "reading.typed", "sql.query", "sql.stream_tables"):
        monkeypatch.delitem(sys.modules, f"jetstream_client.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    (error,) = jetstream(*arguments, code=2).stderr.decode().splitlines()
    assert error.endswith(f" needs {package}: {install_command(extra)}")


def test_lines_of_json_hold_every_byte(jetstream: Run, odd: list[Message]) -> None:
    def original(row: dict[str, Any], name: str) -> bytes | None:
        text, encoding = row[name], row[f"{name}_encoding"]
        if text is None:
            return None
        return base64.b64decode(text) if encoding == "base64" else text.encode()

    found = rows(jetstream("export", "odd"))
    for row, message in zip(found, odd, strict=True):
        assert (row["offset"], row["subject"]) == (message.offset, message.subject)
        assert original(row, "key") == message.key
        assert original(row, "value") == message.value
        assert (original(row, "header_block") or b"") == message.header_block
    assert found[0]["headers"]["A"] == ["x", "y"]


def test_parquet_holds_the_columns_of_a_scan(
    jetstream: Run, process: Run, odd: list[Message], tmp_path: Path
) -> None:
    path = tmp_path / "odd.parquet"
    jetstream("export", "odd", "--format", "parquet", "--output", str(path))
    table = pq.read_table(path)
    assert table["value"].to_pylist() == [message.value for message in odd]
    assert table["headers"].to_pylist() == [message.header_block or None for message in odd]
    assert [path.name for path in tmp_path.iterdir()] == ["odd.parquet"]
    piped = process("export", "odd", "--format", "parquet").stdout
    assert pq.read_table(io.BytesIO(piped)).equals(table)


@pytest.mark.parametrize(
    ("name", "options", "is_parquet"),
    [
        ("odd.parquet", (), True),
        ("odd.PARQUET", (), True),
        ("odd.jsonl", (), False),
        ("odd", (), False),
        ("odd.parquet", ("--format", "jsonl"), False),
        ("odd.csv", ("--format", "parquet"), True),
    ],
)
def test_the_file_s_name_says_what_is_written_unless_a_format_is_given(
    jetstream: Run, odd: list[Message], tmp_path: Path, name: str, options: tuple[str, ...],
    is_parquet: bool,
) -> None:  # fmt: skip
    path = tmp_path / name
    jetstream("export", "odd", "-o", str(path), *options)
    if is_parquet:
        found = pq.read_table(path)["offset"].to_pylist()
    else:
        found = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    assert found == [message.offset for message in odd]


def test_an_export_that_would_not_be_what_its_name_says_is_refused(
    jetstream: Run, tmp_path: Path
) -> None:
    path = tmp_path / "trades.csv"
    jetstream("export", "trades", "-o", str(path), code=2)
    assert not path.exists()


def test_an_export_is_bounded(jetstream: Run, tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    bounds = ["--from", "100", "--to", "last:50"]
    jetstream("export", "trades", "--format", "parquet", "-o", str(path), *bounds)
    assert pq.read_table(path)["offset"].to_pylist() == list(range(100, COUNT - 50))
    found = rows(jetstream("export", "trades", *bounds))
    assert [row["offset"] for row in found] == list(range(100, COUNT - 50))


def test_an_export_that_fails_leaves_no_file(jetstream: Run, tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    jetstream(
        "export", "trades", "-o", str(path), "--to", str(COUNT + 5), "--timeout", "0.5", code=4
    )
    assert list(tmp_path.iterdir()) == []
    jetstream("export", "nowhere", "-o", str(path), code=3)


def test_progress_is_shown_to_a_person_on_standard_error(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    arguments = [*COMMAND, "export", "trades", "-o", str(tmp_path / "trades.jsonl")]
    with fork_server.start(
        arguments, environment=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # Linux says so where others say the end.
            pass
        assert process.wait(60) == 0
    os.close(ours)
    assert f"{COUNT}/{COUNT}".encode() in shown


def test_a_message_is_stored_once_and_only_where_it_is_expected(jetstream: Run) -> None:
    jetstream("stream", "create", "ids", "--subject", "ids.>")
    publish = ["publish", "ids.x", "1", "--json", "--msg-id", "a"]
    assert rows(jetstream(*publish)) == [{"stream": "ids", "offset": 0, "duplicate": False}]
    assert rows(jetstream(*publish)) == [{"stream": "ids", "offset": 0, "duplicate": True}]
    refused = jetstream("publish", "ids.x", "2", "--expected-offset", "0", code=1).stderr
    assert b"'ids' is 1, not the expected one" in refused
    jetstream("publish", "ids.x", "2", "--expected-offset", "1")


@pytest.mark.parametrize("via", ["direct", "auto"])
def test_messages_and_lines_go_straight_where_there_is_no_nats(
    environment: dict[str, str], jetstream: Run, via: str
) -> None:
    name = f"straight_{via}"
    jetstream("stream", "create", name, "--subject", f"{name}.>")
    publish = ["publish", f"{name}.x", "--nats", "nats://127.0.0.1:1", "--via", via]
    for more in (["1", "--msg-id", "a"], ["1", "--msg-id", "a"], ["2", "--key", "k"]):
        jetstream(*publish, *more)
    assert ended(environment, *publish, "-", given=b"3\n4\n").returncode == 0
    assert [row["value"] for row in rows(jetstream("fetch", name, "--json"))] == [
        "1",
        "2",
        "3",
        "4",
    ]


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("select value->>'$.a' from trades", "value"),
        ("select t.value -> '$.a' from trades t", "value"),
        ("select 1 from trades where json_extract(key, '$.a') = 1", "key"),
        ("select v->>'a' from (select value as v from trades)", "v"),
        ("select value::json from trades", "value"),
        ("select try_cast(key as json) from trades", "key"),
        ("select value->>'$.a' as value from trades", "value"),
        ("select max(value)->>'$.a' from trades", "value"),
    ],
)
def test_json_of_bytes_is_refused_and_not_null(jetstream: Run, query: str, column: str) -> None:
    said = jetstream("sql", query, code=2).stderr.decode()
    assert (
        f"{column} is a BLOB, in which JSON functions find nothing: write decode({column})" in said
    )


@pytest.mark.parametrize(
    "query",
    [
        "select decode(value)->>'$.a' from trades limit 1",
        "with t as (select decode(value) as value from trades) select value->>'a' from t limit 1",
        "select x.value->>'k' from (select {'value': '1'} as x) limit 1",
        "select stream->>'x', value from (select '{}' as stream, value from trades) limit 1",
    ],
)
def test_json_of_text_is_not_refused(jetstream: Run, query: str) -> None:
    assert len(rows(jetstream("sql", query, "--json"))) == 1


def test_bytes_are_not_made_text_with_escapes(jetstream: Run) -> None:
    said = jetstream("sql", "select 1 from trades where value::text = '{}'", code=2).stderr.decode()
    assert "value is a BLOB, whose text has escapes: write decode(value)" in said


def test_headers_are_a_map(jetstream: Run) -> None:
    query = """select headers['b'] as b, headers['A'] as a, headers from odd order by "offset\""""
    first, *others = rows(jetstream("sql", query, "--json"))
    sent = {"b": "1", "A": "x, y"}
    assert first == {"b": "1", "a": "x, y", "headers": {**sent, "Jetstream-Key": "k"}}
    assert [row["headers"] for row in others[1:]] == [None] * 2
    assert """{"b": "1", "A": "x, y", """ in jetstream("sql", query).stdout.decode()


def test_headers_that_are_not_utf8_are_shown_with_escapes() -> None:
    block = b"NATS/1.0\r\na: \xff\r\na: b\r\n\r\n"
    assert header_maps(pyarrow.array([block, None])).to_pylist() == [[("a", r"\xff, b")], None]


def test_tables_are_listed(jetstream: Run) -> None:
    names = [row["name"] for row in rows(jetstream("sql", "SHOW TABLES;", "--json"))]
    assert {"trades", "odd", "unread", "jobs", "jobs-0", "jobs-1"} <= set(names)
    assert not any(name.startswith("__") for name in names)


def test_a_pattern_is_all_streams_that_it_matches(jetstream: Run) -> None:
    query = """select stream, count(*) as n from "cust-*" group by 1 order by 1"""
    assert rows(jetstream("sql", query, "--json")) == [
        {"stream": "cust-1", "n": 1},
        {"stream": "cust-2", "n": 2},
    ]
    error = jetstream("sql", """select 1 from "zz*\"""", code=3).stderr
    assert error == b"error: there is no stream 'zz*'\n"
    error = jetstream("sql", query, "--from", "3", code=2).stderr
    assert b"each has offsets of its own" in error


def test_queries_come_from_standard_input(environment: dict[str, str]) -> None:
    def ask(text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return ended(environment, "sql", *arguments, "--json", given=text)

    two = b'select count(*) as n from odd; -- and\nselect max("offset") as m from odd'
    assert rows(ask(two)) == rows(ask(two, "-")) == [{"n": 4}, {"m": 3}]
    assert (empty := ask(b" \n")).returncode == 2
    assert b"standard input was empty" in empty.stderr


def test_an_error_of_a_query_shows_no_escapes_for_tabs(jetstream: Run) -> None:
    said = jetstream("sql", "select\t1 frm\ttrades where", code=2).stderr.decode()
    assert "\\t" not in said
    assert "\t" not in said
    place, pointer = said.splitlines()[-2:]
    assert "select 1 frm trades" in place
    assert pointer.strip(" ^") == ""
    listed = jetstream("sql", "select value like 'x' from trades", code=2).stderr.decode()
    assert "    Candidate functions:" in listed
