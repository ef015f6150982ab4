"""Copies of mutable objects with slots, and values that are equal when the objects are alike."""

from __future__ import annotations

from typing import Any

from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.replication.follower import FollowerState
from jetstream_server.replication.isr import InSyncReplicas
from jetstream_server.replication.leader import LeaderState
from jetstream_server.replication.progress import FollowerProgress
from jetstream_server.replication.replica import Replica
from tests.model.log import ModelLog

MUTABLE = (
    FollowerProgress, FollowerState, InSyncReplicas, LeaderEpochCache, LeaderState, ModelLog,
    Replica,
)  # fmt: skip
INSIGNIFICANT = (
    "_asks_flush_since", "_confirmable", "_mark_at_us", "_mark_offset", "_waiters",
    "caught_up_at_us", "counters", "on_commit", "on_log_start",
)  # fmt: skip
"""Slots that no decision depends on while time stands still and no setting changes."""


def copy(value: Any, known: dict[int, Any]) -> Any:
    """A copy that shares nothing mutable; `known` keeps what is shared within it shared."""
    if isinstance(value, MUTABLE):
        twin = known.get(id(value))
        if twin is None:
            twin = known[id(value)] = object.__new__(type(value))
            for slot in type(value).__slots__:
                setattr(twin, slot, copy(getattr(value, slot), known))
        return twin
    if isinstance(value, list):
        return [copy(item, known) for item in value]
    if isinstance(value, dict) and any(isinstance(item, MUTABLE) for item in value.values()):
        return {key: copy(item, known) for key, item in value.items()}
    return value


def freeze(value: Any) -> Any:
    """What the object holds, hashable."""
    if isinstance(value, MUTABLE):
        return tuple(
            freeze(getattr(value, slot))
            for slot in type(value).__slots__
            if slot not in INSIGNIFICANT
        )
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, freeze(item)) for key, item in value.items())
    return value


class Interned:
    """Small numbers for values, so that states are tuples of numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []

    def number(self, key: Any, value: Any) -> int:
        """The number of `key`; `value` is what it stands for."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._values)
            self._values.append(value)
        return found

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)
