"""A query over streams, each a table under its name, and so is a keyed group.

Only the streams a query names are read, from their start to what was committed when it began; a
stream that it names twice is read twice. A query cannot change anything: it must be one SELECT (or
EXPLAIN, or what DuckDB treats as one, such as DESCRIBE), in a database in memory without access to
files, network and extensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from json import loads
from typing import TYPE_CHECKING, Any, Protocol

from jetstream_client.publishing.keyed_group import check_group, streams_of
from jetstream_client.reading.schema_sources import no_schema
from jetstream_client.sql import QueryError
from jetstream_client.sql.misused_bytes import misused_bytes, nodes_of
from jetstream_client.values.checks import check_text
from jetstream_client.values.durations import Seconds
from jetstream_client.values.positions import Position
from jetstream_client.values.types import ReadFrom, Stream, StreamLike, StreamSchema
from jetstream_protocol.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from jetstream_protocol.extras import needed_by
from jetstream_protocol.record_json import header_values
from jetstream_protocol.schema import ERROR, Schema, parse
from jetstream_protocol.stream_names import did_you_mean, no_stream

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from jetstream_client.reading.scan import Scan
    from jetstream_client.sql.stream_tables import StreamTable

Parameters = Sequence[object] | Mapping[str, object]
"""For `?` or `$1`, or for `$name`."""

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
_UNKNOWN_COLUMN = ("not found in FROM clause", "does not have a column named")
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_BARE_OFFSET = re.compile(r'(?<!["\w])offset(?!["\w])', re.IGNORECASE)


class Streams(Protocol):
    """What a query asks a `Client` for. Methods block."""

    def list_streams(self, *, internal: bool = False) -> Sequence[Stream]: ...

    def describe_schema(self, stream: StreamLike) -> StreamSchema: ...

    def scan(
        self,
        stream: StreamLike,
        start: Position,
        stop: Position,
        *,
        read_from: ReadFrom,
        patience: Seconds | None,
    ) -> Scan: ...


class Query:
    """One query in its own database. Belongs to one thread, but for `interrupt`."""

    def __init__(
        self,
        streams: Streams,
        text: str,
        start: Position = "earliest",
        stop: Position = "latest",
        *,
        parameters: Parameters | None = None,
        read_from: ReadFrom = "leader",
        patience: Seconds | None = None,
    ) -> None:
        """Raises InvalidRequestError if DuckDB is missing, or the text is no text."""
        check_text("the query", text)
        self._duckdb = import_duckdb()
        self._streams = streams
        self._text = text
        self._parameters = parameters
        self._range = start, stop
        self._read_from: ReadFrom = read_from
        self._patience = patience
        self._tables: list[StreamTable] = []
        self._unknown: set[str] = set()
        self._why_untyped: list[str] = []
        self._connection = self._duckdb.connect(":memory:", config=_SETTINGS)

    def interrupt(self) -> None:
        """Have a query that runs in another thread end. Idempotent."""
        with suppress(self._duckdb.ConnectionException):  # It has ended.
            self._connection.interrupt()

    @contextmanager
    def answer(self) -> Iterator[pyarrow.RecordBatchReader]:
        """The answer, once, as it comes. Raises InvalidRequestError for a query that is wrong, and
        what reading the streams raises, here or where the answer is read."""
        import pyarrow

        with self._connection as connection:
            try:
                yield pyarrow.RecordBatchReader.from_stream(self._relation(connection))
            except self._duckdb.Error as error:
                for table in self._tables:
                    if table.error is not None:
                        raise table.error from error
                if self._unknown and isinstance(error, self._duckdb.CatalogException):
                    name = min(self._unknown)
                    why = no_stream(name) + did_you_mean(name, self._names())
                    raise StreamNotFoundError(why) from error
                raise QueryError(f"the query fails: {error}{self._advice(error)}") from error

    def _relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        if _SHOW_TABLES.fullmatch(self._text):
            return connection.sql("SELECT unnest(?) AS name", params=[self._names()])
        tree = self._check(connection)
        self._register(connection, _tables_of(self._duckdb, connection, self._text, tree))
        connection.execute("SET TimeZone = 'UTC'")
        # DuckDB draws it on standard output where it takes Python for interactive.
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET lock_configuration = true")
        return connection.sql(self._text, params=self._parameters)

    def _advice(self, error: Exception) -> str:
        """About the one column whose name is a word of SQL, at which the parser stops, or after it;
        and about columns that a schema would give."""
        is_bound = not isinstance(error, self._duckdb.BinderException)
        if not is_bound and any(words in str(error) for words in _UNKNOWN_COLUMN):
            return "".join(f"\n{why}" for why in self._why_untyped)
        is_parsed = not isinstance(error, self._duckdb.ParserException)
        if is_parsed or not _BARE_OFFSET.search(self._text):
            return ""
        return '\noffset is a word of SQL: if you mean the column, write "offset" in double quotes'

    def _check(self, connection: duckdb.DuckDBPyConnection) -> Any:
        """Returns the query as DuckDB has parsed it."""
        statements = connection.extract_statements(self._text)
        kinds = self._duckdb.StatementType
        if len(statements) != 1 or statements[0].type not in (kinds.SELECT, kinds.EXPLAIN):
            raise InvalidRequestError("say one SELECT: streams can be queried, not changed")
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [self._text]).fetchall()[0]
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
        streams = self._streams.list_streams(internal=True) if named else []
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
            self._add(
                connection, name, [self._scan(each) for each in read], self._schema(name, read)
            )

    def _schema(self, name: str, read: Sequence[StreamLike]) -> Schema | None:
        """The schema of the streams, if all have the same. A server of an earlier version knows
        none."""
        texts: dict[str, str] = {}
        for stream in read:
            called = stream.full_name if isinstance(stream, Stream) else str(stream)
            try:
                texts[called] = self._streams.describe_schema(stream).text
            except (InvalidRequestError, PermissionDeniedError):
                texts[called] = ""
        lacking = [called for called, text in texts.items() if not text]
        if not lacking and len({*texts.values()}) == 1:
            return parse(next(iter(texts.values())))
        self._why_untyped.append(
            no_schema(lacking[0])
            if lacking
            else f"the streams of {name} have different schemas: query each on its own"
        )
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
        from jetstream_client.sql.stream_tables import StreamTable

        table = StreamTable(scans, schema)
        self._tables.append(table)
        records = f"records of {name}"
        connection.register(records, table)
        fields = () if schema is None else (*map(_quoted, schema.names), ERROR)
        query = f"SELECT {', '.join((*_COLUMNS, *fields))} FROM {_quoted(records)}"
        connection.execute(f"CREATE VIEW {_quoted(name)} AS {query}")

    def _names(self) -> list[str]:
        """The tables, as a query writes them."""
        streams = self._streams.list_streams()
        names = [stream.name for stream in streams]
        found = {each.name if names.count(each.name) == 1 else each.full_name for each in streams}
        return sorted(found | {each.group for each in streams if each.partition is not None})

    def _partitions(self, group: str, streams: Sequence[Stream]) -> list[Stream]:
        found = streams_of(group, streams)
        check_group(group, found, *self._range)
        return found

    def _scan(self, stream: StreamLike) -> Scan:
        return self._streams.scan(
            stream, *self._range, read_from=self._read_from, patience=self._patience
        )


def import_duckdb() -> Any:
    """Raises MissingExtraError."""
    with needed_by("sql", "sql"):
        import duckdb
        import numpy  # noqa: F401  DuckDB calls no function of Python without it.
        import pyarrow  # noqa: F401
    return duckdb


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
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
