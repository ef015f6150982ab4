"""Copies of mutable objects with slots, and values that are equal when the objects are alike."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.replication.core.follower import FollowerState
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.pending_isr import InSyncReplicas
from jetstream_server.replication.core.progress import FollowerProgress
from jetstream_server.replication.replica import Replica
from tests.model.log import ModelLog

DEEP: dict[type, tuple[str, ...]] = {
    FollowerProgress: (),
    FollowerState: ("_log",),
    InSyncReplicas: (),
    LeaderEpochCache: ("_entries",),
    LeaderState: ("_followers", "_in_sync", "_log"),
    ModelLog: ("epochs",),
    Replica: ("following", "leadership", "log"),
}
"""The mutable types, and their slots that hold something mutable."""
FOUND_ELSEWHERE = {FollowerState: ("_log",), LeaderState: ("_log", "_nodes")}
"""Slots that are looked at in another way: the log is the replica's."""
INSIGNIFICANT = (
    "_asks_flush_since", "_confirmable", "_mark_at_us", "_mark_offset", "_waiters",
    "_services", "caught_up_at_us", "closeness", "counters", "leader_log_start_offset",
    "on_commit",
)  # fmt: skip
"""Slots that no decision depends on while time stands still and no setting changes."""


def _significant(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    left_out = {*INSIGNIFICANT, *DEEP[kind], *FOUND_ELSEWHERE.get(kind, ())}
    slots = [slot for slot in kind.__slots__ if slot not in left_out]  # type: ignore[attr-defined]
    # Two at least, so that a tuple comes of it.
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*slots, "__class__", "__class__")
    return get


_PLAIN = {kind: _significant(kind) for kind in DEEP}
_SLOTS = {
    kind: tuple(slot for slot in kind.__slots__ if slot not in deep)  # type: ignore[attr-defined]
    for kind, deep in DEEP.items()
}


def copy(value: Any, known: dict[int, Any]) -> Any:
    """A copy that shares nothing mutable; `known` keeps what is shared within it shared."""
    kind = type(value)
    if kind in DEEP:
        twin = known.get(id(value))
        if twin is None:
            twin = known[id(value)] = object.__new__(kind)
            for slot in _SLOTS[kind]:
                setattr(twin, slot, getattr(value, slot))
            for slot in DEEP[kind]:
                setattr(twin, slot, copy(getattr(value, slot), known))
        return twin
    if kind is list:
        return list(value)
    if kind is dict:
        return {key: copy(item, known) for key, item in value.items()}
    assert value is None, f"{kind.__name__} was to be mutable"
    return value


def freeze(value: Any) -> Any:
    """What the object holds, hashable."""
    if value is None:
        return None
    kind = type(value)
    plain = _PLAIN[kind](value)
    if kind is Replica:
        return plain, freeze(value.log), freeze(value.following), freeze(value.leadership)
    if kind is LeaderState:
        followers = [(node_id, freeze(item)) for node_id, item in value._followers.items()]
        return plain, tuple(value._nodes.values()), freeze(value._in_sync), tuple(followers)
    if kind is ModelLog:
        return plain, value.epochs.entries
    return plain


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
