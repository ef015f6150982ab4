"""How families of metrics are made.

Names follow Prometheus' conventions: base units (`_seconds`, `_bytes`), `_total` for values that
only grow. Labels have few values, all known beforehand: error codes, nodes of the cluster, phases.
docs/operations/metrics.md, "Metrics", explains each metric; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


def series(
    prefix: str,
    labels: Sequence[str],
    rows: Iterable[Row[T]],
    found: Sequence[tuple[Sequence[str], T]],
) -> Iterator[Metric]:
    """A family for each row, with a number for each source. found: the sources after the values of
    their labels. Unknown values are left out."""
    for name, meaning, value in rows:
        family = _kind(name)(f"jetstream_{prefix}_{name}", meaning, labels=labels)
        for values, source in found:
            if (number := value(source)) is not None:
                family.add_metric(values, number)
        yield family


def left_out(kind: str, count: int) -> Metric:
    meaning = f"{kind.capitalize()} that match beyond the limit"
    return GaugeMetricFamily(f"jetstream_{kind}_left_out", meaning, value=count)


def labelled(name: str, meaning: str, label: str, values: Iterable[tuple[object, float]]) -> Metric:
    """A family with a number for each value of the label."""
    family = _kind(name)(f"jetstream_{name}", meaning, labels=[label])
    for each, number in values:
        family.add_metric([str(each)], number)
    return family


def _kind(name: str) -> type[CounterMetricFamily | GaugeMetricFamily]:
    return CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
