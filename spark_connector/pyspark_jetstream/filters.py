"""Conditions on rows, evaluated on whole columns before rows reach the JVM.

They come from the option `subject` and, where push-down is asked for, from the query. A condition
taken from the query is not evaluated again by Spark: it must mean exactly what Spark means.

`pyarrow.compute` is imported where it is used: a driver that only plans would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from jetstream_protocol.subjects import to_regex
from pyspark_jetstream.ranges import Range

OFFSET_MAX = 2**63 - 1

_OPERATIONS = {
    "EqualTo": "equal",
    "EqualNullSafe": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "In": "is_in",
}
"""Spark's filters, by the names of their classes: PySpark 4.0 does not have them."""

_TYPES: dict[str, type] = {"offset": int, "timestamp": datetime, "subject": str, "stream": str}
"""The columns that are never null, with what they are compared with."""


class Condition(Protocol):
    """Picklable."""

    def mask(self, batch: pa.RecordBatch) -> Any:
        """A boolean for every row."""


@dataclass(frozen=True)
class SubjectMatches:
    """One of some NATS patterns fits the subject."""

    patterns: tuple[str, ...]

    def mask(self, batch: pa.RecordBatch) -> Any:
        import pyarrow.compute as pc

        either = "|".join(to_regex(pattern).decode() for pattern in self.patterns)
        return pc.match_substring_regex(batch.column("subject"), f"^(?:{either})$")


@dataclass(frozen=True)
class Comparison:
    """`column operation value`, of a column that is never null with a value that is not."""

    column: str
    operation: str
    value: int | str | datetime | tuple[int | str | datetime, ...]

    def mask(self, batch: pa.RecordBatch) -> Any:
        import pyarrow.compute as pc

        column = batch.column(self.column)
        if self.operation == "is_in":
            return pc.is_in(column, pa.array(self.value, column.type))
        return getattr(pc, self.operation)(column, pa.scalar(self.value, column.type))


def clipped(part: Range, comparisons: Sequence[Comparison]) -> Range:
    """The part of the range that conditions on the offset leave."""
    start, stop = part.start, part.stop
    for comparison in comparisons:
        if comparison.column == "offset":
            first, last = _bounds(comparison)
            start, stop = max(start, first), min(stop, last + 1)
    return part if (start, stop) == (part.start, part.stop) else _cut(part, start, stop)


def _cut(part: Range, start: int, stop: int) -> Range:
    return replace(part, start=start, stop=max(start, stop), last_epoch=-1, stop_epoch=-1)


def _bounds(comparison: Comparison) -> tuple[int, int]:
    """The first and the last offset that may fulfil it."""
    value = comparison.value
    if isinstance(value, tuple):
        offsets = [each for each in value if isinstance(each, int)]
        return min(offsets), max(offsets)
    assert isinstance(value, int)
    return {
        "equal": (value, value),
        "less": (0, value - 1),
        "less_equal": (0, value),
        "greater": (value + 1, OFFSET_MAX),
        "greater_equal": (value, OFFSET_MAX),
    }[comparison.operation]


def taken(filters: Iterable[Any]) -> tuple[list[Comparison], list[Any]]:
    """The filters of a query that we evaluate, and those left to Spark."""
    comparisons: list[Comparison] = []
    left = []
    for each in filters:
        comparison = _comparison(each)
        if comparison is not None:
            comparisons.append(comparison)
        elif not _always_holds(each):
            left.append(each)
    return comparisons, left


def _column(given: Any) -> str | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 and path[0] in _TYPES else None


def _always_holds(given: Any) -> bool:
    return type(given).__name__ == "IsNotNull" and _column(given) is not None


def _comparison(given: Any) -> Comparison | None:
    operation, column = _OPERATIONS.get(type(given).__name__), _column(given)
    if operation is None or column is None:
        return None
    kind = _TYPES[column]
    if kind is str and operation not in ("equal", "is_in"):
        return None
    values = tuple(given.value) if operation == "is_in" else (given.value,)
    if not values or not all(type(value) is kind for value in values):
        return None
    return Comparison(column, operation, values if operation == "is_in" else given.value)
