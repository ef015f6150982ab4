"""The rows of a write: which columns are allowed, and how they are published.

    value    binary or string; null is a tombstone, which needs a key
    key      binary or string, optional
    headers  array<struct<key: string, value: binary or string>>, optional
    subject  string, optional if the option `subject` names one for all rows

Text is published as UTF-8. Record batches are processed column by column; only the steps that
build a batch of the log are done per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from jetstream_client import InvalidRequestError
from jetstream_client.values.records import record_of
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import check_subject

ROW_BYTES = 32
"""Bytes counted for a row in addition: more than the SDK counts, so that it cuts no batch."""

COLUMNS = ("value", "key", "headers", "subject")
HeadersByName = dict[str, list[str]]


@dataclass(frozen=True)
class Rows:
    """Rows of one subject, in order. keys, headers: None if there is no such column.

    ends: for each row the bytes of all rows up to it, with a generous estimate.
    """

    subject: str
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[HeadersByName | None] | None
    ends: list[int]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> Rows:
        return Rows(
            self.subject,
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.headers is None else self.headers[start:stop],
            self.ends[start:stop],
        )


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
    if "subject" not in batch.schema.names:
        return [_rows(batch, subject)]
    subjects = batch.column("subject")
    if subjects.null_count:
        raise OptionError(
            "a row has no subject: fill the column, for example by coalesce(subject, 'orders.x')"
        )
    found = pc.unique(subjects).to_pylist()
    for each in found:
        check_subject("column subject", each)
    return [_rows(batch.filter(pc.equal(subjects, each)), each) for each in found]


def _rows(batch: pa.RecordBatch, subject: str) -> Rows:
    keys = _binary(batch, "key")
    values = _binary(batch, "value")
    assert values is not None
    if batch.column("value").null_count and (
        keys is None or any(v is None and k is None for k, v in zip(keys, values, strict=True))
    ):
        raise OptionError(
            "a row has neither value nor key: a null value is a tombstone and needs a key; filter "
            "such rows out, or use coalesce(value, '')"
        )
    headers = _headers(batch)
    return Rows(subject, values, keys, headers, _ends(batch, headers))


def _ends(batch: pa.RecordBatch, headers: list[HeadersByName | None] | None) -> list[int]:
    sizes = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), len(batch))
    for name in ("value", "key"):
        if name in batch.schema.names:
            sizes = pc.add(sizes, pc.binary_length(batch.column(name)).fill_null(0))
    if headers is not None:
        # Names and values, at most four bytes a letter, and the bytes that NATS adds.
        written = [
            16
            + sum(
                4 + 4 * (len(name) + len(value))
                for name, values in (by_name or {}).items()
                for value in values
            )
            for by_name in headers
        ]
        sizes = pc.add(sizes, pa.array(written, pa.int64()))
    found: list[int] = pc.cumulative_sum(sizes).to_pylist()
    return found


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    if name not in batch.schema.names:
        return None
    found: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
    return found


def _headers(batch: pa.RecordBatch) -> list[HeadersByName | None] | None:
    if "headers" not in batch.schema.names or batch.column("headers").null_count == len(batch):
        return None
    return [_by_name(row) for row in batch.column("headers").to_pylist()]


def _by_name(row: list[Any] | None) -> HeadersByName | None:
    """The headers of a row. Raises OptionError for headers that cannot be in a batch."""
    if not row:
        return None
    found: HeadersByName = {}
    if None in row:
        raise OptionError(
            "a row has a null among its headers: leave it out, for example by "
            "filter(headers, h -> h IS NOT NULL) AS headers"
        )
    for each in row:
        found.setdefault(each["key"] or "", []).append(_text(each["value"]))
    try:
        record_of(None, None, found)
    except InvalidRequestError as error:
        names = ", ".join(repr(name) for name in found)
        raise OptionError(
            f"a row with headers {names} cannot be published: {error}; a key or a tombstone is "
            "given by the columns key and value, and other headers can be left out, for example by "
            "filter(headers, h -> NOT h.key LIKE 'Nats-%') AS headers"
        ) from error
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return b"".decode() if value is None else bytes(value).decode("utf-8", "surrogateescape")
