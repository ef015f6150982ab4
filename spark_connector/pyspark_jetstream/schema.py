"""The columns, in the SDK's order. The timestamp is the producer's if it gave one, else the time of
the append."""

from __future__ import annotations

from collections.abc import Sequence

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

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES = {
    "stream": StringType(),
    "subject": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": ArrayType(_HEADER),
}


def read_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def check_schema(given: StructType, columns: Sequence[str], typed: bool) -> None:
    """Raise OptionError unless a schema given by the user is the source's own. typed: it may go
    on with fields of the streams' schema."""
    ours = read_schema(columns)
    if typed:
        given = StructType(given.fields[: len(columns)])
    if given.simpleString() != ours.simpleString():
        raise OptionError(
            f"the columns of format jetstream are fixed, {ours.simpleString()}: leave .schema() "
            "out and select what you need"
        )
