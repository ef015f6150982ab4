"""How far the next micro-batch goes: what there is, less what the limits hold back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of offsets in a micro-batch over all streams; 0: none. max_delay: seconds that a batch
    waits for `offsets_min` at most."""

    offsets_max: int
    offsets_min: int
    max_delay: float


def admitted(
    starts: Mapping[int, int], latest: Mapping[int, int], offsets_max: int
) -> dict[int, int]:
    """The end of each stream: a share in proportion to what waits there, as in Kafka's source.

    Whoever waits gets one record at least, so that small streams do not starve beside large ones.
    """
    sizes = {number: max(0, end - starts.get(number, end)) for number, end in latest.items()}
    total = sum(sizes.values())
    if not offsets_max or total <= offsets_max:
        return dict(latest)
    return {
        number: starts[number] + max(1, sizes[number] * offsets_max // total)
        if sizes[number]
        else end
        for number, end in latest.items()
    }


def is_delayed(
    starts: Mapping[int, int], latest: Mapping[int, int], limits: Limits, waited: float
) -> bool:
    """Whether to wait for more. waited: seconds since the last batch."""
    waiting = sum(max(0, end - starts.get(number, end)) for number, end in latest.items())
    return waiting < limits.offsets_min and waited < limits.max_delay
