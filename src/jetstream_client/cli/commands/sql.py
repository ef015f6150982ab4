"""`jetstream sql`: DuckDB over streams, each a table under its name, and so is a keyed group.

Only the streams a query names are read, from their start to what was committed when it began; a
stream that it names twice is read twice. A query cannot change anything: it must be one SELECT (or
EXPLAIN, or what DuckDB treats as one, such as DESCRIBE), in a database in memory without access to
files, network and extensions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetstream_client.cli import interrupts, options, positions, sql_prompt
from jetstream_client.cli.bytes_in_sql import misused_bytes, nodes_of
from jetstream_client.cli.exits import QueryError, UsageError, complain
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.lines import is_given, standard_input
from jetstream_client.cli.output import json_line, print_table, shown
from jetstream_client.cli.stream_or_group import check_group
from jetstream_client.clients.blocking_client import Client
from jetstream_client.publishing.keyed_group import streams_of
from jetstream_client.reading.scan import Scan
from jetstream_client.reading.schema_sources import HOW_TO_SET
from jetstream_client.values.positions import Position
from jetstream_client.values.text import check_text
from jetstream_client.values.types import ReadFrom, Stream, StreamLike
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from jetstream_protocol.extras import install_command
from jetstream_protocol.record_json import encoded, header_values
from jetstream_protocol.schema import ERROR, Schema, parse
from jetstream_protocol.subjects import no_stream
from jetstream_protocol.times import timestamp_text

if TYPE_CHECKING:
    import duckdb

    from jetstream_client.cli.stream_tables import StreamTable

_COLUMNS = (
    *("stream", "subject", '"offset"', "timestamp", "key", "value"),
    "header_map(headers) AS headers",
)
_SETTINGS = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Of a database that touches neither files nor the network."""
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_BARE_OFFSET = re.compile(r'(?<!["\w])offset(?!["\w])', re.IGNORECASE)


@common_options(patience=True)
def sql(
    cli: Invocation,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY|-]",
            help="One SELECT. Each stream is a table under its name. - reads standard input, with "
            "semicolons between several. Without it a pipe or a file is read, and on a terminal "
            "there is a prompt.",
        ),
    ] = None,
    from_: positions.From = "earliest",
    to: positions.To = "latest",
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    """Query streams in SQL (DuckDB). Needs the extra sql.

    Columns: stream, subject, "offset", timestamp, key, value, headers. key and value are BLOBs:
    decode(value) is text, decode(value)->>'$.price' is a field of JSON. headers is a MAP of text:
    headers['source']; several values of one name are joined by ", ". A stream with a schema has its
    fields as columns, too (jetstream schema set --help). If a stream's name is
    ambiguous, write "name@subject", in double quotes. A keyed group is a
    table of the records of all its streams, under the group's name, and "cust-*" is one of all
    streams whose names begin so. show tables lists the streams.

    Examples:

      jetstream sql 'select subject, count(*) from orders group by 1'

      jetstream sql --from 2026-01-31 'select max("offset") from orders' --json

      jetstream sql < report.sql
    """
    start, stop = positions.parse_position(from_), positions.parse_position(to)
    if query is None and sys.stdin is not None and sys.stdin.isatty():
        _prompt(cli, start, stop, read_from.value)
        return
    text = _given(query, cli)
    interrupts.end_in_foreign_code()
    queries = [text] if query not in (None, "-") else _statements(text)
    with cli.client() as client:
        for number, each in enumerate(queries):
            if number and not cli.json:
                print()
            asked = _Query(client, each, start, stop, read_from.value)
            asked.run(as_json=cli.json)
            sys.stdout.flush()


def _prompt(cli: Invocation, start: Position, stop: Position, read_from: ReadFrom) -> None:
    """Query after query; an error is told, and the next one may be right."""
    _duckdb()
    with cli.client() as client:
        for each in sql_prompt.statements():
            try:
                _Query(client, each, start, stop, read_from).run(as_json=cli.json)
            except JetstreamError as error:
                complain(error.message, keep_lines=True)


def _given(query: str | None, cli: Invocation) -> str:
    """The argument, or standard input."""
    if query is None and not is_given():
        raise UsageError("say the query, or - to read standard input", cli.context)
    if query is not None and query != "-":
        check_text("the query", query)
        return query
    try:
        text = standard_input().read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the query is not valid UTF-8") from error
    if not text.strip():
        raise UsageError("standard input was empty: it has no query", cli.context)
    return text


def _statements(text: str) -> list[str]:
    duckdb = _duckdb()
    try:
        return [each.query for each in duckdb.extract_statements(text)]
    except duckdb.Error as error:
        raise QueryError(f"the query fails: {error}") from error


class _Query:
    """One query in its own database."""

    def __init__(
        self, client: Client, query: str, start: Position, stop: Position, read_from: ReadFrom
    ) -> None:
        self._client = client
        self._query = query
        self._range = start, stop
        self._read_from: ReadFrom = read_from
        self._tables: list[StreamTable] = []
        self._unknown: set[str] = set()
        self._without_schema: list[str] = []

    def run(self, as_json: bool) -> None:
        """Print the answer. Raises InvalidRequestError for a query that is wrong."""
        duckdb = _duckdb()
        with duckdb.connect(":memory:", config=_SETTINGS) as connection:
            try:
                if _SHOW_TABLES.fullmatch(self._query):
                    found = connection.sql("SELECT unnest(?) AS name", params=[self._names()])
                    _print(found, as_json)
                    return
                tree = self._check(duckdb, connection)
                self._register(connection, _tables_of(duckdb, connection, self._query, tree))
                connection.execute("SET TimeZone = 'UTC'")
                # DuckDB draws it on standard output where it takes Python for interactive.
                connection.execute("SET enable_progress_bar = false")
                connection.execute("SET lock_configuration = true")
                _print(connection.sql(self._query), as_json)
            except duckdb.Error as error:
                for table in self._tables:
                    if table.error is not None:
                        raise table.error from error
                if self._unknown and isinstance(error, duckdb.CatalogException):
                    raise StreamNotFoundError(no_stream(min(self._unknown))) from error
                raise QueryError(
                    f"the query fails: {error}{self._advice(duckdb, error)}"
                ) from error

    def _advice(self, duckdb: Any, error: Exception) -> str:
        """About the one column whose name is a word of SQL, at which the parser stops, or after it;
        and about columns that a schema would give."""
        if isinstance(error, duckdb.BinderException) and self._without_schema:
            name = self._without_schema[0]
            if "not found in FROM clause" in str(error):
                return f"\n{name} has no schema: {HOW_TO_SET.format(name)}"
        if not (isinstance(error, duckdb.ParserException) and _BARE_OFFSET.search(self._query)):
            return ""
        return '\noffset is a word of SQL: if you mean the column, write "offset" in double quotes'

    def _check(self, duckdb: Any, connection: duckdb.DuckDBPyConnection) -> Any:
        """Returns the query as DuckDB has parsed it."""
        statements = connection.extract_statements(self._query)
        allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(statements) != 1 or statements[0].type not in allowed:
            raise InvalidRequestError("say one SELECT: streams can be queried, not changed")
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [self._query]).fetchall()[0]
        tree = loads(text)
        found = misused_bytes(tree)
        if found is not None:
            why = (
                "in which JSON functions find nothing"
                if found.as_json
                else "whose text has escapes"
            )
            example = f", for example decode({found.column})->>'$.price'" if found.as_json else ""
            raise QueryError(
                f"{found.column} is a BLOB, {why}: write decode({found.column}) in place of "
                f"{found.column}{example}"
            )
        return tree

    def _register(self, connection: duckdb.DuckDBPyConnection, named: set[str]) -> None:
        streams = self._client.list_streams(internal=True) if named else []
        known = {name for stream in streams for name in (stream.name, stream.full_name)}
        groups = {each.group for each in streams if each.partition is not None} - known
        patterns = {name: _matching(name, streams) for name in named - known if "*" in name}
        matched = {name for name, found in patterns.items() if found}
        self._unknown = named - known - groups - matched
        kind: Any = "arrow"
        connection.create_function(
            "header_map", header_maps, ["BLOB"], "MAP(VARCHAR, VARCHAR)", type=kind
        )
        for name in sorted(named - self._unknown):
            read: Sequence[StreamLike] = [name]
            if name in groups:
                read = self._partitions(name, streams)
            elif name in matched:
                read = self._several(name, patterns[name])
            schema = self._schema(name, read)
            self._add(connection, name, [self._scan(each) for each in read], schema)

    def _schema(self, name: str, read: Sequence[StreamLike]) -> Schema | None:
        """The schema of the streams, if all have the same. A server of an earlier version knows
        none."""
        texts = set()
        for stream in read:
            try:
                texts.add(self._client.describe_schema(stream).text)
            except (InvalidRequestError, PermissionDeniedError):
                texts.add("")
        if len(texts) == 1 and (text := texts.pop()):
            return parse(text)
        self._without_schema.append(name)
        return None

    def _several(self, pattern: str, found: Sequence[Stream]) -> Sequence[Stream]:
        if any(isinstance(each, int) for each in self._range):
            raise InvalidRequestError(
                f"{pattern!r} is several streams, and each has offsets of its own: say earliest, "
                "latest, a time, or -10 for the last ten of each"
            )
        return found

    def _add(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        scans: Sequence[Scan],
        schema: Schema | None,
    ) -> None:
        """Headers are parsed, and fields of the schema decoded, only where a query asks for
        them."""
        from jetstream_client.cli.stream_tables import StreamTable

        table = StreamTable(scans, schema)
        self._tables.append(table)
        records = f"records of {name}"
        connection.register(records, table)
        fields = () if schema is None else (*map(_quoted, schema.names), ERROR)
        query = f"SELECT {', '.join((*_COLUMNS, *fields))} FROM {_quoted(records)}"
        connection.execute(f"CREATE VIEW {_quoted(name)} AS {query}")

    def _names(self) -> list[str]:
        """The tables, as a query writes them."""
        streams = self._client.list_streams()
        names = [stream.name for stream in streams]
        found = {each.name if names.count(each.name) == 1 else each.full_name for each in streams}
        return sorted(found | {each.group for each in streams if each.partition is not None})

    def _partitions(self, group: str, streams: Sequence[Stream]) -> list[Stream]:
        found = streams_of(group, streams)
        check_group(group, found, *self._range)
        return found

    def _scan(self, stream: StreamLike) -> Scan:
        return self._client.scan(stream, *self._range, read_from=self._read_from)


def _tables_of(
    duckdb: Any, connection: duckdb.DuckDBPyConnection, query: str, tree: object
) -> set[str]:
    """The names of the tables of a query. DuckDB tells them, unless it has to know the columns, as
    for a join that is `using` some."""
    try:
        return connection.get_table_names(query)
    except duckdb.BinderException:
        tables = (node for node in nodes_of(tree) if node.get("type") == "BASE_TABLE")
        return {str(node["table_name"]) for node in tables}


def _matching(pattern: str, streams: Sequence[Stream]) -> list[Stream]:
    """The streams of a pattern in which * is any text. The server's own are not meant, unless it
    begins as they do."""
    found = [each for each in streams if fnmatchcase(each.name, pattern.replace("[", "[[]"))]
    return [each for each in found if pattern.startswith("_") or not each.name.startswith("__")]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def header_maps(blocks: Any) -> Any:
    """NATS header blocks as maps, as an array of Arrow."""
    import pyarrow

    maps = [None if block is None else list(_header_texts(block)) for block in blocks.to_pylist()]
    return pyarrow.array(maps, pyarrow.map_(pyarrow.string(), pyarrow.string()))


def _header_texts(block: bytes) -> Iterator[tuple[str, str]]:
    """What is not UTF-8 is shown by escapes."""
    for name, values in header_values(block).items():
        yield _utf8(name), ", ".join(map(_utf8, values))


def _utf8(text: str) -> str:
    return shown(text.encode("utf-8", "surrogateescape"))


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidRequestError(f"sql needs DuckDB: {install_command('sql')}") from error
    return duckdb


def _print(relation: duckdb.DuckDBPyRelation, as_json: bool) -> None:
    """JSON line by line as the answer comes; a table when it is complete."""
    import pyarrow

    reader = pyarrow.RecordBatchReader.from_stream(relation)
    if as_json:
        for batch in reader:
            rows = ({name: _json(cell) for name, cell in row.items()} for row in batch.to_pylist())
            sys.stdout.writelines(map(json_line, rows))
        return
    columns = list(reader.schema.names)
    table = reader.read_all()
    cells = [list(map(_text, column.to_pylist())) for column in table.columns]
    print_table(columns, list(zip(*cells, strict=True)))


def _json(cell: object) -> object:
    """Bytes as text (base64 if they are not UTF-8), whole decimals as integers."""
    if isinstance(cell, bytes):
        return encoded(cell)[0]
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else str(cell)
    if isinstance(cell, dict):
        return {str(name): _json(each) for name, each in cell.items()}
    if isinstance(cell, list):
        if cell and all(isinstance(each, tuple) for each in cell):  # A map.
            return {_text(name): _json(each) for name, each in cell}
        return [_json(each) for each in cell]
    if cell is None or isinstance(cell, bool | int | float | str):
        return cell
    return _text(cell)


def _text(cell: object) -> str:
    from datetime import datetime

    if cell is None:
        return "NULL"
    if isinstance(cell, bytes):
        return shown(cell)
    if isinstance(cell, dict | list):
        return dumps(_json(cell), ensure_ascii=False)
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        return timestamp_text(cell)
    return str(cell)
