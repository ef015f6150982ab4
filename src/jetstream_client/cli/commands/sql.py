"""`jetstream sql`: a query over streams, several of them, or a prompt."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from jetstream_client.cli import interrupts, options, positions, sql_prompt
from jetstream_client.cli.exits import UsageError, complain
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.lines import is_given, standard_input
from jetstream_client.cli.output import json_line, print_table, shown
from jetstream_client.sql import QueryError
from jetstream_client.sql.query import Query, import_duckdb
from jetstream_client.values.checks import check_text
from jetstream_client.values.positions import Position
from jetstream_client.values.types import ReadFrom
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.record_json import encoded
from jetstream_protocol.times import timestamp_text

if TYPE_CHECKING:
    import pyarrow


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
            with Query(client, each, start, stop, read_from=read_from.value).answer() as answer:
                _print(answer, cli.json)
            sys.stdout.flush()


def _prompt(cli: Invocation, start: Position, stop: Position, read_from: ReadFrom) -> None:
    """Query after query; an error is told, and the next one may be right."""
    import_duckdb()
    with cli.client() as client:
        for each in sql_prompt.statements():
            try:
                with Query(client, each, start, stop, read_from=read_from).answer() as answer:
                    _print(answer, cli.json)
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
    duckdb = import_duckdb()
    try:
        return [each.query for each in duckdb.extract_statements(text)]
    except duckdb.Error as error:
        raise QueryError(f"the query fails: {error}") from error


def _print(answer: pyarrow.RecordBatchReader, as_json: bool) -> None:
    """JSON line by line as the answer comes; a table when it is complete."""
    if as_json:
        for batch in answer:
            rows = ({name: _json(cell) for name, cell in row.items()} for row in batch.to_pylist())
            sys.stdout.writelines(map(json_line, rows))
        return
    columns = list(answer.schema.names)
    table = answer.read_all()
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
        return json.dumps(_json(cell), ensure_ascii=False)
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        return timestamp_text(cell)
    return str(cell)
