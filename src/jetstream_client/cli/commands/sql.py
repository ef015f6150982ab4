"""`jetstream sql`: DuckDB over streams, each a table under its name, and so is a keyed group.

Only the streams a query names are read, from their start to what was committed when it began; a
stream that it names twice is read twice. A query cannot change anything: it must be one SELECT (or
EXPLAIN, or what DuckDB treats as one, such as DESCRIBE), in a database in memory without access to
files, network and extensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetstream_client.cli import interrupts, options, positions
from jetstream_client.cli.exits import QueryError
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import json_line, print_table, shown
from jetstream_client.cli.stream_or_group import check_group
from jetstream_client.clients.blocking_client import Client
from jetstream_client.publishing.keyed_group import streams_of
from jetstream_client.reading.scan import Scan
from jetstream_client.values.positions import Position
from jetstream_client.values.text import check_text
from jetstream_client.values.types import ReadFrom, Stream, StreamLike
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, StreamNotFoundError
from jetstream_protocol.record_json import encoded
from jetstream_protocol.subjects import no_stream
from jetstream_protocol.times import timestamp_text

if TYPE_CHECKING:
    import duckdb
    import pyarrow

_SETTINGS = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_BLOBS = ("value", "key", "headers")
_OF_JSON = ("->", "->>", "from_json", "from_json_strict", "to_json")
_BARE_OFFSET = re.compile(r'(?<!["\w])offset(?!["\w])', re.IGNORECASE)


@common_options(patience=True)
def sql(
    cli: Invocation,
    query: Annotated[
        str, typer.Argument(help="One SELECT. Each stream is a table under its name.")
    ],
    from_: positions.From = "earliest",
    to: positions.To = "latest",
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    """Query streams in SQL (DuckDB). Needs: pip install 'jetstream-log[sql]'

    Columns: stream, subject, "offset", timestamp, key, value, headers. key, value and headers are
    BLOBs: decode(value) is text, decode(value)->>'$.price' is a field of JSON. If a stream's name
    is ambiguous, write "name@subject", in double quotes. A keyed group is a table of the records of
    all its streams, under the group's name.

    Examples:

      jetstream sql 'select subject, count(*) from orders group by 1'

      jetstream sql --from 2026-01-31 'select max("offset") from orders' --json
    """
    check_text("the query", query)
    start, stop = positions.parse_position(from_), positions.parse_position(to)
    interrupts.end_in_foreign_code()
    with cli.client() as client:
        asked = _Query(client, query, start, stop, read_from.value)
        asked.run(as_json=cli.json)


class _Table:
    """Scans, one after the other, as DuckDB reads them. Keeps the SDK's error, which DuckDB would
    only quote."""

    def __init__(self, scans: Sequence[Scan]) -> None:
        self._scans = scans
        self.error: JetstreamError | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self._scans[0].schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        try:
            for scan in self._scans:
                yield from scan
        except JetstreamError as error:
            self.error = error
            raise


class _Query:
    """One query in its own database."""

    def __init__(
        self, client: Client, query: str, start: Position, stop: Position, read_from: ReadFrom
    ) -> None:
        self._client = client
        self._query = query
        self._range = start, stop
        self._read_from: ReadFrom = read_from
        self._tables: list[_Table] = []
        self._unknown: set[str] = set()

    def run(self, as_json: bool) -> None:
        """Print the answer. Raises InvalidRequestError for a query that is wrong."""
        duckdb = _duckdb()
        with duckdb.connect(":memory:", config=_SETTINGS) as connection:
            try:
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
        """About the one column whose name is a word of SQL. The parser stops at it, or after it."""
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
        blob = _blob_as_json(tree)
        if blob is not None:
            raise QueryError(
                f"{blob} is a BLOB, in which JSON functions find nothing: write decode({blob}) in "
                f"place of {blob}, for example decode({blob})->>'$.price'"
            )
        return tree

    def _register(self, connection: duckdb.DuckDBPyConnection, named: set[str]) -> None:
        streams = self._client.list_streams(internal=True) if named else []
        known = {name for stream in streams for name in (stream.name, stream.full_name)}
        groups = {each.group for each in streams if each.partition is not None} - known
        self._unknown = named - known - groups
        for name in sorted(named - self._unknown):
            read = self._partitions(name, streams) if name in groups else [name]
            table = _Table([self._scan(each) for each in read])
            self._tables.append(table)
            connection.register(name, table)

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
        tables = (node for node in _nodes_of(tree) if node.get("type") == "BASE_TABLE")
        return {str(node["table_name"]) for node in tables}


def _blob_as_json(tree: object) -> str | None:
    """The column of bytes that a parsed query gives to a function of JSON as it is. DuckDB makes
    text with escapes of it, so that the answer would be NULL. Names that the query gives to
    something else are not looked at."""
    nodes = list(_nodes_of(tree))
    blobs, others = set(_BLOBS), set[str]()
    for node in nodes:
        if alias := str(node.get("alias") or "").lower():
            (blobs if _column_of(node) in blobs else others).add(alias)
    for node in nodes:
        if _takes_json(node):
            for given in _given_to(node):
                column = _column_of(given)
                if column in blobs - others:
                    return column
    return None


def _takes_json(node: dict[str, Any]) -> bool:
    """Whether it is a function of JSON, or a cast to it."""
    if node.get("class") == "CAST":
        kinds = _nodes_of([node.get("cast_type"), node.get("type_expr")])
        return any(str(value).upper() == "JSON" for kind in kinds for value in kind.values())
    if node.get("class") == "LAMBDA":  # For the parser `a -> 'b'` is one.
        return bool((node.get("expr") or {}).get("class") == "CONSTANT")
    name = str(node.get("function_name"))
    return name in _OF_JSON or name.startswith("json")


def _given_to(node: dict[str, Any]) -> list[Any]:
    """What a function or a cast is given, as releases of DuckDB say it."""
    given = [*node.get("children", ()), node.get("child"), node.get("lhs")]
    return given + [each.get("expression") for each in node.get("arguments", ())]


def _nodes_of(tree: object) -> Iterator[dict[str, Any]]:
    """Every object in it, in order."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes_of(each)


def _column_of(node: object) -> str | None:
    if not isinstance(node, dict) or node.get("class") != "COLUMN_REF":
        return None
    return str(node["column_names"][-1]).lower()


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidRequestError("sql needs DuckDB: pip install 'jetstream-log[sql]'") from error
    return duckdb


def _print(relation: duckdb.DuckDBPyRelation, as_json: bool) -> None:
    """JSON line by line as the answer comes; a table when it is complete."""
    import sys

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
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        return timestamp_text(cell)
    return str(cell)
