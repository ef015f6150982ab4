"""What a manual election may lose: what each replica holds, which replicas are unheard, and the
greatest number of lost records.

An operator elects a replica of a stream without a leader, although the replica may lack committed
records. Every member of ISR and ELR holds all committed records, unless its log has lost some
since. If there is none, those of `last_known` held them, and what they have left may be less than
what any other replica holds. Replicas that are not heard may hold more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables

Standing = Literal["isr", "elr", "last_known", ""]


class LogState(NamedTuple):
    """last_epoch: `last_epoch_begun`. high_watermark: as this replica knows it."""

    log_start_offset: int
    log_end_offset: int
    last_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica as known at the moment. log: None: unknown. problem: "": none is known. can_lead:
    it could lead, although it may lack records."""

    node_id: NodeId
    alive: bool
    standing: Standing
    log: LogState | None = None
    problem: str = ""
    can_lead: bool = True


@dataclass(frozen=True, slots=True)
class UncleanPlan:
    """records_lost_max: records that other heard replicas hold and the chosen one does not.
    unheard: replicas that may hold more committed records."""

    replicas: tuple[ReplicaState, ...]
    records_lost_max: int
    unheard: tuple[NodeId, ...]


def standing_of(stream: StreamMetadata, node_id: NodeId) -> Standing:
    if node_id in stream.isr:
        return "isr"
    if node_id in stream.elr:
        return "elr"
    return "last_known" if node_id in stream.last_known else ""


def check_electable(stream: StreamMetadata, tables: Tables, chosen: NodeId) -> None:
    """Raise PreconditionFailedError, with advice, unless that replica may be elected."""
    name = stream.full_name
    if stream.leader != NO_NODE:
        raise PreconditionFailedError(
            f"node {stream.leader} leads {name}, so nothing need be lost: to move the leadership, "
            f"jetstream stream transfer-leader {name} NODE"
        )
    if chosen not in stream.replicas:
        held_by = ", ".join(map(str, stream.replicas))
        raise PreconditionFailedError(
            f"node {chosen} holds no replica of {name}: choose one of {held_by}"
        )
    if not tables.is_alive(chosen):
        alive = [str(node_id) for node_id in stream.replicas if tables.is_alive(node_id)]
        others = f"choose one of {', '.join(alive)}" if alive else "start a node that holds it"
        raise PreconditionFailedError(f"node {chosen} is not alive: {others}")


def plan_of(replicas: Sequence[ReplicaState], chosen: NodeId) -> UncleanPlan:
    """Plan an election. replicas: all replicas of the stream, including the chosen one.

    Raises PreconditionFailedError if the chosen one cannot lead.
    """
    (own,) = (each for each in replicas if each.node_id == chosen)
    if own.log is None or not own.can_lead:
        raise PreconditionFailedError(f"node {chosen} cannot lead it: {own.problem}")
    lost = max((_lacks(own.log, each.log) for each in replicas if each.log is not None), default=0)
    is_any_eligible = any(each.standing in ("isr", "elr") for each in replicas)
    unheard = tuple(
        each.node_id
        for each in replicas
        if each.log is None and (each.standing or not is_any_eligible)
    )
    return UncleanPlan(tuple(replicas), lost, unheard)


def _lacks(own: LogState, other: LogState) -> int:
    """The number of records of the other log that may be missing in our own."""
    if (own.last_epoch, own.log_end_offset) >= (other.last_epoch, other.log_end_offset):
        return 0
    # Logs that end in the same epoch are equal up to the end of the shorter one, others only up
    # to the committed part.
    known_equal = own.log_end_offset
    if own.last_epoch != other.last_epoch:
        known_equal = min(own.high_watermark, own.log_end_offset)
    return max(0, other.log_end_offset - max(known_equal, other.log_start_offset))
