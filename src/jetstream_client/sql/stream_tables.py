"""Streams as DuckDB reads them: only the columns that a query uses, and only the rows it asks for.

DuckDB asks a dataset of pyarrow for a scanner with the columns of a query and with what its rows
must be, and relies on that. This dataset is scans, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import dataset

from jetstream_client.reading.arrow import SCHEMA
from jetstream_client.reading.typed import Decoder
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.schema import Schema

if TYPE_CHECKING:
    from jetstream_client.reading.scan import Scan


class StreamTable(dataset.Dataset):  # type: ignore[misc]
    """Keeps the SDK's error, which DuckDB would only quote."""

    def __init__(self, scans: Sequence[Scan], schema: Schema | None) -> None:
        """schema: that of the streams' values; None: they have none, or differ."""
        self._scans = scans
        self._values = Schema(()) if schema is None else schema
        self._columns = SCHEMA if schema is None else Decoder(schema).schema
        self.error: JetstreamError | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._columns

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, **_: object
    ) -> _Scanner:
        """columns: None: all. filter: it may be over other columns, too."""
        wanted = self._columns.names if columns is None else columns
        scans = [each.narrowed(wanted, self._values, filter) for each in self._scans]
        return _Scanner(self, scans)


class _Scanner:
    """A reading of a table."""

    def __init__(self, table: StreamTable, scans: Sequence[Scan]) -> None:
        self._table = table
        self._scans = scans

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._scans[0].schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for scan in self._scans:
                yield from scan
        except JetstreamError as error:
            self._table.error = error
            raise
