"""A state of the whole cluster, and what bounds there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.log import Entry


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen."""

    records: int = 2
    crashes: int = 1
    partitions: int = 1
    hand_overs: int = 0
    unknown_outcomes: int = 0
    late_messages: int = 0
    lags: int = 1
    stale: int = 0
    """Nodes that may act on old metadata at a time, beside the one that is cut off."""
    snapshots: bool = False
    min_insync_replicas: int = 2
    flush: str = "none"


class State(NamedTuple):
    """`history` are the metadata states from the oldest that a node acts on; `views` say which each
    node acts on, by its place there."""

    history: tuple[int, ...]
    views: tuple[int, ...]
    nodes: tuple[int, ...]
    late: tuple[tuple[str, int, int], ...]
    """Messages under way: "fetch" or "accept", for which node, and their numbers."""
    proposals: tuple[tuple[int, bool], ...]
    """Their numbers, and whether their proposer still waits for the outcome."""
    results: tuple[tuple[int, int, int], ...]
    """For which node, the proposal's number, and the Outcome's value: still to be heard of."""
    cut: int
    """The node that is cut off."""
    left: tuple[int, ...]
    """Of records, crashes, partitions, hand-overs, unknown outcomes, late messages, lags: how many
    more there may be."""
    was_lossy: bool
    """There was an election that may have lost something that was committed."""
    committed: tuple[Entry, ...]


RECORDS, CRASHES, PARTITIONS, HAND_OVERS, UNKNOWN_OUTCOMES, LATE_MESSAGES, LAGS = range(7)
"""Places in `left`."""


def spent(state: State, what: int) -> State:
    """With one less of that to come."""
    return state._replace(left=with_item(state.left, what, state.left[what] - 1))


def with_node(state: State, node_id: int, node: int) -> State:
    history, views, nodes, *rest = state
    return State(history, views, with_item(nodes, node_id, node), *rest)


def with_item(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
