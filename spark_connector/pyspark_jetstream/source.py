"""`DataSource` of format `jetstream`: makes readers and writers from Spark's options.

Options are checked in `schema`, which runs at `load()`, and again when a reader or writer is made:
with a schema of the user's own, Spark skips the first check. Imports are late on purpose; see the
package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class JetstreamDataSource(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> StructType:
        from pyspark_jetstream.options import NAMES_OF_COLUMNS, check_table, is_table, read_options
        from pyspark_jetstream.schema import read_schema

        if is_table(self.options):
            check_table(self.options)
            return read_schema(NAMES_OF_COLUMNS)
        options = read_options(self.options, "read")
        found = read_schema(options.columns)
        if options.typed:
            from pyspark_jetstream.typed import typed_fields

            for field in typed_fields(options):
                found.add(field)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_jetstream.batch import batch_reader
        from pyspark_jetstream.options import read_options

        return batch_reader(read_options(self.options, "batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_jetstream.errors import OptionError
        from pyspark_jetstream.options import read_options
        from pyspark_jetstream.stream import RefusedStreamReader, stream_reader

        try:
            return stream_reader(read_options(self.options, "stream"), schema)
        except OptionError as error:
            # Raised here, it would be hidden by an error of Spark.
            return RefusedStreamReader(error.message)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_jetstream.options import write_options
        from pyspark_jetstream.writer import batch_writer

        return batch_writer(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_jetstream.options import write_options
        from pyspark_jetstream.writer import stream_writer

        return stream_writer(write_options(self.options), schema)
