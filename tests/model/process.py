"""What a state is made of: a node, its proposal, and what the metadata group knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from tests.model.log import ModelLog
from tests.model.values import copy, freeze

NODES = 3


def incarnation_of(node_id: int, run: int) -> int:
    """Unlike those of other nodes, and above those of the node's earlier runs."""
    return run * NODES + node_id


def session_of(node_id: int, run: int) -> str:
    """The token under which that run registers."""
    return f"{node_id}.{run}"


class Proposal(NamedTuple):
    """A change of the ISR on its way; a retry is equal to it."""

    node_id: int
    incarnation: int
    sequence: int
    change: ChangeIsr


class Group(NamedTuple):
    """A state of the metadata group. `results`: incarnation and sequence of the commands that
    carried an id, and the error code they came to."""

    nodes: tuple[NodeMetadata, ...]
    stream: StreamMetadata
    results: tuple[tuple[int, int, str], ...] = ()


@dataclass(slots=True)
class Process:
    """A node, running or not. `replica` is None while it is not."""

    node_id: int
    log: ModelLog = field(default_factory=ModelLog)
    replica: Replica | None = None
    run: int = 0
    incarnation: int = -1
    sequence: int = 0
    proposal: Proposal | None = None
    power_lost: bool = False

    def key(self) -> Any:
        state = freeze(self.log) if self.replica is None else freeze(self.replica)
        return (
            self.node_id, self.replica is None, state, self.run, self.incarnation, self.sequence,
            self.proposal, self.power_lost,
        )  # fmt: skip

    def forget_proposal(self) -> None:
        """Once nothing is under way."""
        leadership = None if self.replica is None else self.replica.leadership
        if leadership is None or leadership._in_sync.pending is None:
            self.proposal = None

    def twin(self) -> Process:
        known: dict[int, Any] = {}
        log, replica = copy(self.log, known), copy(self.replica, known)
        return Process(
            self.node_id, log, replica, self.run, self.incarnation, self.sequence, self.proposal,
            self.power_lost,
        )  # fmt: skip
