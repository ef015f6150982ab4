"""The columns, in the SDK's order. The timestamp is the producer's where it gave one, else the
moment of the append."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_jetstream.errors import OptionError

_COLUMNS = [
    StructField("stream", StringType()),
    StructField("subject", StringType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
]
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def read_schema(include_headers: bool) -> StructType:
    headers = [StructField("headers", ArrayType(_HEADER))] if include_headers else []
    return StructType([*_COLUMNS, *headers])


def check_schema(given: StructType, include_headers: bool) -> None:
    """A schema of the user's own must be ours. Raises OptionError."""
    ours = read_schema(include_headers)
    if given.simpleString() != ours.simpleString():
        raise OptionError(
            f"the columns of format jetstream are fixed, {ours.simpleString()}: leave .schema() "
            "out and select what you need"
        )
