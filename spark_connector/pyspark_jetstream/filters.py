"""Conditions on rows, evaluated on whole columns before rows reach the JVM.

They come from options, never from a query. PySpark 4.1 to 4.3 keep the filters that one query
pushed down for every other query over the same DataFrame, which would then miss rows
(docs/spark.md#filters).

`pyarrow.compute` is imported where it is used: otherwise a driver that only plans would wait for
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jetstream_protocol.subjects import to_regex


@dataclass(frozen=True)
class SubjectMatches:
    """Whether one of several NATS patterns matches the subject. Picklable."""

    patterns: tuple[str, ...]

    def mask(self, batch: pa.RecordBatch) -> Any:
        """A boolean for every row."""
        import pyarrow.compute as pc

        either = "|".join(to_regex(pattern).decode() for pattern in self.patterns)
        return pc.match_substring_regex(batch.column("subject"), f"^(?:{either})$")
