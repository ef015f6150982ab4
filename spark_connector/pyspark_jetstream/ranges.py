"""Ranges of offsets, split into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

PACKED_RECORDS = 10_000
"""Offsets up to which small ranges share a task: a task costs more than reading so few."""


@dataclass(frozen=True)
class Range:
    """Offsets [start, stop) of one stream.

    last_epoch: leader epoch of the record before `start`, as the previous reader saw it; -1:
    unknown. stop_epoch: the same for the record before `stop`. If the log has another epoch there,
    it is another history.
    """

    stream_id: int
    name: str
    start: int
    stop: int
    last_epoch: int = -1
    stop_epoch: int = -1

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


def tasks(
    ranges: Iterable[Range], min_partitions: int, records_max: int
) -> list[tuple[Range, ...]]:
    """The ranges of each task. Every range is cut into even parts of at most `records_max`.

    min_partitions: cut into about so many, by size, as Spark's Kafka source does; 0: as few as
    `records_max` allows, with small ranges in one task.
    """
    ranges = [part for part in ranges if len(part)]
    total = sum(map(len, ranges))
    parts: list[Range] = []
    for part in ranges:
        wanted = max(round(len(part) / total * min_partitions), -(-len(part) // records_max), 1)
        parts.extend(_cut(part, min(wanted, len(part))))
    if min_partitions:
        return [(part,) for part in parts]
    return _packed(parts, min(PACKED_RECORDS, records_max))


def _cut(whole: Range, count: int) -> list[Range]:
    """Even parts. The epochs stay with the first and the last part."""
    bounds = [whole.start + len(whole) * number // count for number in range(count + 1)]
    parts = [
        replace(whole, start=start, stop=stop, last_epoch=-1, stop_epoch=-1)
        for start, stop in pairwise(bounds)
    ]
    parts[0] = replace(parts[0], last_epoch=whole.last_epoch)
    parts[-1] = replace(parts[-1], stop_epoch=whole.stop_epoch)
    return parts


def _packed(parts: Sequence[Range], records_max: int) -> list[tuple[Range, ...]]:
    found: list[tuple[Range, ...]] = []
    pack: list[Range] = []
    for part in parts:
        if pack and sum(map(len, pack)) + len(part) > records_max:
            found.append(tuple(pack))
            pack = []
        pack.append(part)
    return [*found, tuple(pack)] if pack else found
