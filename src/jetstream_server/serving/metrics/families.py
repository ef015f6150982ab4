"""How families of metrics are made.

Names follow Prometheus' conventions: base units (`_seconds`, `_bytes`), `_total` for values that
only grow. Labels have few values, all known beforehand: error codes, nodes of the cluster, phases.
docs/operations/metrics.md, "Metrics", explains each metric; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

T = TypeVar("T")

Row: TypeAlias = tuple[str, str, Callable[[T], float | None]]
"""One number: its name without the prefix, what it means, and its value of a source."""


def numbers(source: T | None, rows: Iterable[Row[T]]) -> Iterator[Metric]:
    """A family for each row. Unknown values are left out, and all of them without a source."""
    for name, meaning, value in rows:
        known = None if source is None else value(source)
        yield _kind(name)(f"jetstream_{name}", meaning, value=known)


def labelled(name: str, meaning: str, label: str, values: Iterable[tuple[object, float]]) -> Metric:
    """A family with a number for each value of the label."""
    family = _kind(name)(f"jetstream_{name}", meaning, labels=[label])
    for each, number in values:
        family.add_metric([str(each)], number)
    return family


def _kind(name: str) -> type[CounterMetricFamily | GaugeMetricFamily]:
    return CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
