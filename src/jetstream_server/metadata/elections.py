"""How one stream's ISR, ELR and leader change together (docs/replication.md, "Metadata").

Pure functions from a StreamMetadata to its successor. The rules are those of KIP-966: members
that leave the ISR stay eligible (ELR) while the ISR is below its minimum, because nothing can be
committed without them then; a leader comes from the ISR, or from the ELR when the ISR is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId
from jetstream_server.metadata.controller import Election
from jetstream_server.metadata.streams import StreamMetadata


def next_elr(
    stream: StreamMetadata, isr: Sequence[NodeId], distrusted: Sequence[NodeId] = ()
) -> tuple[NodeId, ...]:
    """The ELR once the ISR is `isr`: empty from the minimum on, else whoever was in ISR or ELR."""
    if len(isr) >= stream.config.min_insync_replicas:
        return ()
    return tuple(
        node_id
        for node_id in stream.replicas
        if (node_id in stream.isr or node_id in stream.elr)
        and node_id not in isr
        and node_id not in distrusted
    )


def with_isr(stream: StreamMetadata, isr: Sequence[NodeId]) -> StreamMetadata:
    """The stream with another ISR under the same leader; one stream epoch later."""
    ordered = tuple(node_id for node_id in stream.replicas if node_id in isr)
    return replace(
        stream, isr=ordered, elr=next_elr(stream, ordered), stream_epoch=stream.stream_epoch + 1
    )


def without_node(
    stream: StreamMetadata, node_id: NodeId, election: Election, *, trusted: bool
) -> StreamMetadata:
    """The stream after a node's session ended; the same object when that changes nothing.

    trusted: the node's log can still be believed, so it may stay eligible. The election knows
    whether the node is alive again in a new incarnation and may be elected afresh.
    """
    isr = tuple(member for member in stream.isr if member != node_id)
    elr = next_elr(stream, isr, () if trusted else (node_id,))
    led = stream.leader == node_id
    if led:
        election.remove(node_id)
    after = replace(stream, isr=isr, elr=elr, leader=NO_NODE if led else stream.leader)
    if after.leader == NO_NODE:
        after = _with_last_known(stream, after)
        after = _elected(after, election)
    return _next(stream, after, leadership_ended=led)


def without_elr(stream: StreamMetadata) -> StreamMetadata:
    """The stream with nobody eligible beside its ISR; not yet a stream epoch later."""
    after = replace(stream, elr=())
    return after if after.leader != NO_NODE else _with_last_known(stream, after)


def with_node(stream: StreamMetadata, election: Election) -> StreamMetadata:
    """The stream after a node became alive: elected, if it has no leader and now can."""
    if stream.leader != NO_NODE:
        return stream
    return _next(stream, _elected(stream, election))


def deposed(stream: StreamMetadata, election: Election, chosen: NodeId = NO_NODE) -> StreamMetadata:
    """The stream with another leader than now: `chosen`, or whoever the election prefers.

    Without another candidate in the ISR the stream stays as it is.
    """
    others = [member for member in stream.isr if member != stream.leader]
    candidates = others if chosen == NO_NODE else [chosen]
    leader = election.choose(candidates)
    if leader == NO_NODE:
        return stream
    if stream.leader != NO_NODE:
        election.remove(stream.leader)
    return _next(stream, _led_by(stream, leader))


def elected_uncleanly(stream: StreamMetadata, leader: NodeId) -> StreamMetadata:
    """The stream led by a replica that may lack committed records; counted as possibly lossy."""
    after = _led_by(replace(stream, isr=(leader,), elr=()), leader)
    return _next(stream, replace(after, lossy_elections=stream.lossy_elections + 1))


def _elected(stream: StreamMetadata, election: Election) -> StreamMetadata:
    """A leaderless stream with a leader, if one can be had without losing anything."""
    eligible = stream.isr or stream.elr
    leader = election.choose(eligible)
    if leader != NO_NODE:
        isr = stream.isr or (leader,)
        return _led_by(replace(stream, isr=isr, elr=next_elr(stream, isr)), leader)
    if eligible or len(stream.replicas) > 1:
        return stream
    # The only replica there is: waiting for another one would wait for ever.
    leader = election.choose(stream.replicas)
    return stream if leader == NO_NODE else elected_uncleanly(stream, leader)


def _led_by(stream: StreamMetadata, leader: NodeId) -> StreamMetadata:
    return replace(stream, leader=leader, last_known=())


def _with_last_known(before: StreamMetadata, after: StreamMetadata) -> StreamMetadata:
    """Remember who was eligible and is no more: an election without any must wait for them all."""
    known = (*before.isr, *before.elr, *before.last_known)
    eligible = (*after.isr, *after.elr)
    last_known = tuple(
        node_id for node_id in after.replicas if node_id in known and node_id not in eligible
    )
    return replace(after, last_known=last_known)


def _next(
    before: StreamMetadata, after: StreamMetadata, *, leadership_ended: bool = False
) -> StreamMetadata:
    """One stream epoch later, however many steps led there; unchanged when nothing changed.

    A leadership that ended begins a new leader epoch even when the same node leads again.
    """
    if after == before and not leadership_ended:
        return before
    other_leadership = leadership_ended or after.leader != before.leader
    return replace(
        after,
        stream_epoch=before.stream_epoch + 1,
        leader_epoch=LeaderEpoch(before.leader_epoch + other_leadership),
    )
