"""The rows of a write: which columns are allowed, and how they are published.

    value    binary or string; null is a tombstone, which needs a key
    key      binary or string, optional
    headers  array<struct<key: string, value: binary or string>>, optional
    subject  string, optional if the option `subject` names one for all rows

Text is published as UTF-8. Record batches are processed column by column; only the steps that
build a batch of the log are done per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from jetstream_client import InvalidRequestError
from jetstream_client.values.records import block_of
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import check_subject
from pyspark_jetstream.windows import sizes_of

ROW_BYTES = 32
"""Bytes counted for a row in addition: more than the SDK counts, so that it cuts no batch."""

COLUMNS = ("value", "key", "headers", "subject")


@dataclass(frozen=True)
class Rows:
    """Rows of one subject, in order. keys, blocks: None if there is no such column.

    blocks: the headers of each row as NATS writes them; b"": it has none. ends: for each row the
    bytes of all rows up to it, with a generous estimate.
    """

    subject: str
    values: list[bytes | None]
    keys: list[bytes | None] | None
    blocks: list[bytes] | None
    ends: list[int]

    def __len__(self) -> int:
        return len(self.values)


def check_columns(schema: StructType, subject: str) -> None:
    """Raise OptionError unless rows of `schema` can be published."""
    kinds = {field.name: field.dataType for field in schema.fields}
    strangers = [name for name in kinds if name not in COLUMNS]
    if strangers:
        raise OptionError(
            f"a write has no use for column {', '.join(strangers)}: select value and, where "
            "wanted, key, headers, subject; for a whole row use to_json(struct(*)) AS value"
        )
    if "value" not in kinds:
        raise OptionError("a write needs a column value: for example to_json(struct(*)) AS value")
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], BinaryType | StringType):
            raise OptionError(
                f"column {name} is {kinds[name].simpleString()}: make it binary or string, for "
                f"example by CAST({name} AS STRING) or to_json({name})"
            )
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        raise OptionError(
            f"column headers is {kinds['headers'].simpleString()}: it must be "
            "array<struct<key:string,value:binary>>"
        )
    if "subject" in kinds and not isinstance(kinds["subject"], StringType):
        raise OptionError("column subject must be a string: CAST it")
    if "subject" not in kinds and not subject:
        raise OptionError("publish where? add option subject, or a column subject")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType | StringType)
    )


def by_subject(batch: pa.RecordBatch, subject: str) -> list[Rows]:
    """The rows of each subject, in order of appearance. subject: used if there is no such column.

    All rows are checked first: raises OptionError for one that cannot be published.
    """
    if batch.num_rows == 0:
        return []
    rows = _rows(batch, subject)
    if "subject" not in batch.schema.names:
        return [rows]
    subjects = batch.column("subject")
    if subjects.null_count:
        raise OptionError(
            "a row has no subject: fill the column, for example by coalesce(subject, 'orders.x')"
        )
    places: dict[str, list[int]] = {}
    for place, each in enumerate(subjects.to_pylist()):
        places.setdefault(each, []).append(place)
    for each in places:
        check_subject("column subject", each)
    if len(places) == 1:
        return [replace(rows, subject=each) for each in places]
    return [_taken(rows, each, of_subject) for each, of_subject in places.items()]


def _taken(rows: Rows, subject: str, places: list[int]) -> Rows:
    ends = rows.ends
    sizes = (ends[place] - (ends[place - 1] if place else 0) for place in places)
    return Rows(
        subject,
        [rows.values[place] for place in places],
        None if rows.keys is None else [rows.keys[place] for place in places],
        None if rows.blocks is None else [rows.blocks[place] for place in places],
        list(accumulate(sizes)),
    )


def _rows(batch: pa.RecordBatch, subject: str) -> Rows:
    keys = _binary(batch, "key")
    values = _binary(batch, "value")
    assert values is not None
    if batch.column("value").null_count and (
        keys is None or any(v is None and k is None for v, k in zip(values, keys, strict=True))
    ):
        raise OptionError(
            "a row has neither value nor key: a null value is a tombstone and needs a key; filter "
            "such rows out, or use coalesce(value, '')"
        )
    blocks = _blocks(batch)
    sizes = sizes_of(batch)
    if blocks is not None:
        sizes = pc.add(sizes, pa.array(map(len, blocks), pa.int64()))
    return Rows(subject, values, keys, blocks, pc.cumulative_sum(sizes).to_pylist())


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    if name not in batch.schema.names:
        return None
    found: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
    return found


def _blocks(batch: pa.RecordBatch) -> list[bytes] | None:
    """The header block of each row; None: there is no column of headers. Raises OptionError for
    headers that cannot be in a batch."""
    if "headers" not in batch.schema.names:
        return None
    column = batch.column("headers")
    lengths = pc.list_value_length(column).fill_null(0).to_pylist()
    entries = column.flatten()
    has_null = entries.null_count > 0
    names, values = (entries.field(place).to_pylist() for place in (0, 1))
    blocks: list[bytes] = []
    start = 0
    for length in lengths:
        stop = start + length
        if has_null and not all(entries.slice(start, length).is_valid().to_pylist()):
            raise OptionError(
                "a row has a null among its headers: leave it out, for example by "
                "filter(headers, h -> h IS NOT NULL) AS headers"
            )
        blocks.append(block_of_row(names[start:stop], values[start:stop]) if length else b"")
        start = stop
    return blocks


def block_of_row(names: list[str | None], values: list[str | bytes | None]) -> bytes:
    """The headers of a row as NATS writes them. Raises OptionError."""
    plain = _plain_block(names, values)
    if plain is not None:
        return plain
    found: dict[str, list[str]] = {}
    for name, value in zip(names, values, strict=True):
        found.setdefault(name or "", []).append(_text(value))
    try:
        return block_of(found)
    except InvalidRequestError as error:
        listed = ", ".join(repr(name) for name in found)
        raise OptionError(
            f"a row with headers {listed} cannot be published: {error}; a key or a tombstone is "
            "given by the columns key and value, and other headers can be left out, for example by "
            "filter(headers, h -> NOT h.key LIKE 'Nats-%') AS headers"
        ) from error


def _plain_block(names: list[str | None], values: list[str | bytes | None]) -> bytes | None:
    """The same in a tenth of the time, for headers that need no care; None: these do."""
    if len(names) > len(set(names)):
        return None  # Values of one name stand together in a block.
    block = "NATS/1.0\r\n"
    for name, value in zip(names, values, strict=True):
        text = _text(value)
        is_plain = text.isprintable() and text[:1] != " " and text[-1:] != " "
        if not is_plain or not _is_allowed(name or ""):
            return None
        block += f"{name}: {text}\r\n"
    return f"{block}\r\n".encode()


@lru_cache(1024)
def _is_allowed(name: str) -> bool:
    try:
        return bool(block_of({name: ""}))
    except InvalidRequestError:
        return False


def _text(value: str | bytes | None) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else value.decode("utf-8", "surrogateescape")
