"""Columns of a stream's schema, decoded from JSON by DuckDB, only those that are asked for.

A column whose value in a record does not fit is NULL there, as a whole, and `_error` names the
first such column. What fits what is the same wherever columns are decoded, since all of it is here.
The JSON is that of RFC 8259, in UTF-8; a comma before a closing bracket is passed over, NaN and
Infinity fit no type, and of keys that are there twice the first counts.

DuckDB looks for one field without reading the others, so `value` is looked into once for each
column that is asked for. TRY turns a batch with a bad record into one of single rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import ERROR, Field, ListType, Schema, StructType, Type, parse

if TYPE_CHECKING:
    import pyarrow

    from jetstream_client.reading.messages import Messages

_KINDS = {
    "int": "INTEGER",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
    "date": "DATE",
    "binary": "BLOB",
}
_TIME = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
    r"(Z|[+-](0[0-9]|1[0-5]):[0-5][0-9])?"
)
_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
SETTINGS = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Of a database that touches neither files nor the network."""
HOW_TO_SET = "jetstream schema set {} --infer 10000 makes one of its records"
DOCUMENT = "try(json_extract(decode(value), '$'))"


def duckdb_module() -> Any:
    """DuckDB. Raises InvalidRequestError that says how to get it."""
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidRequestError(
            "typed columns need DuckDB: pip install 'jetstream-log[sql]'"
        ) from error
    return duckdb


def select(schema: Schema, source: str, others: Iterable[str]) -> str:
    """A SELECT of the expressions `others`, the schema's columns, and `_error`, of the table
    `source`, whose `value` is a BLOB."""
    parts = _Parts()
    # Each document is looked into once for each column; its expressions share what is found.
    found = [
        f"{_found('decode(value)', field, safe=True)} AS {_held(field)}" for field in schema.fields
    ]
    columns = [
        f'{parts.value(_held(field), field.type)} AS "{field.name}"' for field in schema.fields
    ]
    listed = [*others, *columns, f"{_error(schema, parts)} AS {ERROR}"]
    return f"SELECT {', '.join(listed)} FROM (SELECT *, {', '.join(found)} FROM {source})"


class Decoder:
    """Makes record batches with some columns of records and of a schema. schema: theirs."""

    def __init__(self, schema: Schema, columns: Sequence[str] | None = None) -> None:
        """columns: in this order; None: all, those of every stream first. Raises
        InvalidRequestError for one that is in neither."""
        from jetstream_client.reading.arrow import SCHEMA, schema_of

        duckdb = duckdb_module()
        every = [*SCHEMA.names, *schema.names, ERROR]
        self._wanted = every if columns is None else list(columns)
        for name in self._wanted:
            if name not in every:
                raise InvalidRequestError(f"no column {name!r}: there are {', '.join(every)}")
        own = {name for name in self._wanted if name in SCHEMA.names} | {"value"}
        self._own = [name for name in SCHEMA.names if name in own]
        listed = ", ".join(f'"{name}"' for name in self._wanted)
        inner = select(schema, "records", [f'"{name}"' for name in self._own])
        self._query = f"SELECT {listed} FROM ({inner})"
        # One thread: what takes the batches has its own, and each batch is short.
        self._connection = duckdb.connect(":memory:", config={**SETTINGS, "threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET enable_progress_bar = false")
        self.schema = self.decode(schema_of(self._own).empty_table()).schema

    def decode(self, table: pyarrow.Table) -> pyarrow.Table:
        """table: with the columns of every stream that are wanted, and `value`."""
        cursor = self._connection.cursor()  # Of this thread: readings may be in several.
        with cursor:
            cursor.execute("SET TimeZone = 'UTC'")
            cursor.register("records", table)
            return cursor.sql(self._query).to_arrow_table()

    def batches(self, messages: Messages, rows: int) -> Iterator[pyarrow.RecordBatch]:
        """The records as batches of at most `rows`."""
        import pyarrow

        for batch in messages.iter_batches(rows, self._own):
            table = self.decode(pyarrow.Table.from_batches([batch])).cast(self.schema)
            yield from table.combine_chunks().to_batches()


def decoder_of(text: str, stream: str, columns: Sequence[str] | None = None) -> Decoder:
    """Raises InvalidRequestError, also for a stream without a schema."""
    if not text:
        raise InvalidRequestError(f"stream {stream} has no schema: {HOW_TO_SET.format(stream)}")
    return Decoder(parse(text), columns)


def _held(field: Field) -> str:
    return f'"json: {field.name}"'


def _found(document: str, field: Field, *, safe: bool = False) -> str:
    """The JSON of a field, as text; NULL: it is not there."""
    keys = [f"json_extract({document}, '$.{key}')" for key in field.keys]
    if safe:
        keys = [f"try({key})" for key in keys]
    text = keys[0] if len(keys) == 1 else f"coalesce({', '.join(keys)})"
    return f"{text}::VARCHAR"


def _error(schema: Schema, parts: _Parts) -> str:
    cases = [
        "WHEN value IS NULL THEN NULL",
        f"WHEN {DOCUMENT} IS NULL THEN 'the value is not JSON'",
        f"WHEN json_type({DOCUMENT}) <> 'OBJECT' THEN 'the value is not a JSON object'",
    ]
    for field in schema.fields:
        held = _held(field)
        if field.required:
            cases.append(f"WHEN coalesce({held}, 'null') = 'null' THEN '{field.name} is missing'")
        cases.append(
            f"WHEN {held} <> 'null' AND {parts.value(held, field.type)} IS NULL "
            f"THEN '{field.name} is not {_a(field.type)}'"
        )
    return f"CASE {' '.join(cases)} END"


def _a(kind: Type) -> str:
    """The type in words."""
    word = kind if isinstance(kind, str) else "list" if isinstance(kind, ListType) else "struct"
    return f"an {word}" if word == "int" else f"a {word}"


class _Parts:
    """Writes expressions. Each is NULL if, and only if, its JSON is `null`, is not there, or does
    not fit. The names of what they bind differ from each other."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = count()

    def value(self, text: str, kind: Type) -> str:
        """text: an expression of the JSON's text, which may be written several times."""
        if isinstance(kind, ListType):
            return self._list(text, kind)
        if isinstance(kind, StructType):
            return self._struct(text, kind)
        return _scalar(text, kind)

    def _list(self, text: str, kind: ListType) -> str:
        each, both, pair = (f"x{next(self._numbers)}" for _ in range(3))
        item = f"{each}::VARCHAR"
        made = (
            f"list_transform(json_extract({text}, '$[*]'), lambda {each}: "
            f"{{'v': {self.value(f'({item})', kind.element)}, 'ok': {item} = 'null'}})"
        )
        misfits = f"list_filter({both}, lambda {pair}: {pair}.v IS NULL AND NOT {pair}.ok)"
        return (
            f"CASE WHEN starts_with({text}, '[') THEN list_transform([{made}], lambda {both}: "
            f"CASE WHEN len({misfits}) = 0 THEN list_transform({both}, lambda {pair}: {pair}.v) "
            "END)[1] END"
        )

    def _struct(self, text: str, kind: StructType) -> str:
        texts, values = (f"x{next(self._numbers)}" for _ in range(2))
        found = ", ".join(f"'{each.name}': {_found(text, each)}" for each in kind.fields)
        made, fits = [], []
        for each in kind.fields:
            held, value = f'{texts}."{each.name}"', f'{values}."{each.name}"'
            made.append(f"'{each.name}': {self.value(held, each.type)}")
            absent = "" if each.required else f" OR coalesce({held}, 'null') = 'null'"
            fits.append(f"({value} IS NOT NULL{absent})")
        return (
            f"CASE WHEN starts_with({text}, '{{') THEN list_transform([{{{found}}}], "
            f"lambda {texts}: list_transform([{{{', '.join(made)}}}], lambda {values}: "
            f"CASE WHEN {' AND '.join(fits)} THEN {values} END)[1]"
            ")[1] END"
        )


def _scalar(text: str, kind: str) -> str:
    cast = f"try_cast({text} AS {_KINDS[kind]})"
    if kind in ("int", "bigint"):  # A fraction would be rounded, and an exponent taken.
        return f"CASE WHEN NOT contains({text}, '.') AND NOT contains({text}, 'e') THEN {cast} END"
    if kind == "double":
        return f"CASE WHEN isfinite({cast}) THEN {cast} END"
    if kind == "boolean":
        return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END"
    string = f"json_extract_string({text}, '$')"
    is_string = f"starts_with({text}, '\"')"
    if kind == "string":
        return f"CASE WHEN {is_string} THEN {string} END"
    if kind == "binary":
        is_base64 = f"{is_string} AND regexp_full_match({string}, '{_BASE64}')"
        return f"CASE WHEN {is_base64} THEN from_base64({string}) END"
    form = _TIME if kind == "timestamp" else "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    made = f"try_cast({string} AS {_KINDS[kind]})"
    least, most = "0001-01-02", "9999-12-30"
    return (
        f"CASE WHEN {is_string} AND regexp_full_match({string}, '{form}') AND "
        f"{made} BETWEEN '{least}'::{_KINDS[kind]} AND '{most}'::{_KINDS[kind]} THEN {made} END"
    )
