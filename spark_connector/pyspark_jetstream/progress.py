"""How much a streaming query still has to read, with the names of Spark's Kafka source. Spark takes
no `metrics` from Python sources for a query's progress, but `endOffset` and `latestOffset`, which
it shows, are enough to compute them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def offsets_behind_latest(progress: Mapping[str, Any]) -> list[dict[str, float]]:
    """Of each source of `query.lastProgress`: minOffsetsBehindLatest, maxOffsetsBehindLatest,
    avgOffsetsBehindLatest over its streams. Empty for a source of another format.

    Compaction makes holes: there are at most so many records.
    """
    return [_behind(source) for source in progress["sources"]]


def _behind(source: Mapping[str, Any]) -> dict[str, float]:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    behind = [max(0, latest.get(number, end) - end) for number, end in ends.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _offsets(given: Any) -> dict[str, int]:
    """By stream id. Spark gives JSON, as text or taken apart already."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return {number: mark["offset"] for number, mark in found["streams"].items()}
    except (TypeError, KeyError, ValueError):
        return {}
