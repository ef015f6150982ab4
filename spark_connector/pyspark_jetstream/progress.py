"""How much a streaming query still has to read, under the names of Spark's Kafka source. Spark
accepts no `metrics` from Python sources for a query's progress. But it shows `endOffset` and
`latestOffset`, from which they can be computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetstream_protocol import bounded_json


def offsets_behind_latest(progress: Mapping[str, Any]) -> list[dict[str, float]]:
    """For each source of `query.lastProgress`: minOffsetsBehindLatest, maxOffsetsBehindLatest,
    avgOffsetsBehindLatest over its streams. Empty for a source of another format, and where
    Spark has not asked for the latest offsets yet: it runs an unfinished batch first.

    These are upper bounds for the number of records: compaction leaves gaps between offsets.
    """
    return [_behind(source) for source in progress["sources"]]


def _behind(source: Mapping[str, Any]) -> dict[str, float]:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if not ends or not latest:
        return {}
    behind = [max(0, latest.get(number, end) - end) for number, end in ends.items()]
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _offsets(given: Any) -> dict[str, int]:
    """Offsets by stream id. Spark gives JSON, as text or parsed already."""
    try:
        found = bounded_json.loads(given) if isinstance(given, str) else given
        return {number: mark["offset"] for number, mark in found["streams"].items()}
    except (TypeError, KeyError, ValueError):
        return {}
