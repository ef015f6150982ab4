"""Changes one stream's ISR, ELR and leader together (docs/replication.md, "Metadata").

Pure functions from a StreamMetadata to its successor. The rules are those of KIP-966: members that
leave the ISR stay eligible (ELR) while the ISR is below its minimum, because nothing can be
committed without them then. A leader comes from the ISR, or from the ELR if the ISR is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.streams import StreamMetadata


class _ElectionState(NamedTuple):
    """The part of a stream that elections change."""

    isr: tuple[NodeId, ...]
    elr: tuple[NodeId, ...]
    leader: NodeId
    last_known: tuple[NodeId, ...]
    lossy_elections: int


def next_elr(
    stream: StreamMetadata, isr: Sequence[NodeId], distrusted: Sequence[NodeId] = ()
) -> tuple[NodeId, ...]:
    """The ELR that belongs to `isr`: empty if `isr` reaches the minimum, otherwise every former
    member of ISR or ELR that is not in `isr`."""
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
    """The stream with another ISR under the same leader, one stream epoch later."""
    ordered = tuple(node_id for node_id in stream.replicas if node_id in isr)
    elr = next_elr(stream, ordered)
    return replace(
        stream,
        isr=ordered,
        elr=elr,
        last_known=_last_known(stream, ordered, elr),
        stream_epoch=stream.stream_epoch + 1,
    )


def under_new_minimum(stream: StreamMetadata) -> StreamMetadata:
    """The stream after its minimum was changed; its stream epoch is not changed yet.

    **safety** If the ISR reaches the new minimum, the leader may commit without those who were
    eligible. Otherwise nothing can be committed, neither under the old minimum nor under the new
    one, and above all not while nobody leads: they hold everything, and stay eligible.
    """
    elr = next_elr(stream, stream.isr)
    return replace(stream, elr=elr, last_known=_last_known(stream, stream.isr, elr))


def without_elr(stream: StreamMetadata) -> StreamMetadata:
    """As `under_new_minimum` below NEW_MINIMUM_LEVEL: the stream without an ELR."""
    if stream.leader != NO_NODE:
        return replace(stream, elr=(), last_known=())
    return replace(stream, elr=(), last_known=_replicas_to_ask(stream, stream.isr, ()))


def without_node(
    stream: StreamMetadata, node_id: NodeId, election: Election, *, trusted: bool
) -> StreamMetadata:
    """The stream after a node's session ended; the same object if that changes nothing.

    trusted: the node's log is still trusted, so it may stay eligible. The election knows whether
    the node is alive again in a new incarnation and may be elected. **safety** An observer's node
    changes nothing.
    """
    if node_id not in stream.replicas:
        return stream
    isr = tuple(member for member in stream.isr if member != node_id)
    elr = next_elr(stream, isr, () if trusted else (node_id,))
    last_known = _last_known(stream, isr, elr)
    if stream.leader not in (node_id, NO_NODE):
        state = _election_state(stream)._replace(isr=isr, elr=elr, last_known=last_known)
        return _successor(stream, state)
    led = stream.leader == node_id
    if led:
        election.remove(node_id)
    leaderless = _ElectionState(isr, elr, NO_NODE, last_known, stream.lossy_elections)
    return _successor(stream, _election_of(stream, leaderless, election), leadership_ended=led)


def with_node(stream: StreamMetadata, election: Election) -> StreamMetadata:
    """The stream after a node became alive: it is elected if there is no leader and it may lead."""
    if stream.leader != NO_NODE:
        return stream
    return _successor(stream, _election_of(stream, _election_state(stream), election))


def with_another_leader(
    stream: StreamMetadata, election: Election, chosen: NodeId = NO_NODE
) -> StreamMetadata:
    """The stream with another leader: `chosen`, or the one that the election prefers.

    Unchanged if the ISR has no other candidate.
    """
    others = [member for member in stream.isr if member != stream.leader]
    leader = election.choose(others if chosen == NO_NODE else [chosen])
    if leader == NO_NODE:
        return stream
    if stream.leader != NO_NODE:
        election.remove(stream.leader)
    return _successor(stream, _election_state(stream)._replace(leader=leader))


def depose_unreachable(stream: StreamMetadata, election: Election) -> StreamMetadata:
    """The stream after its followers reported its leader; the same object if no other can lead.

    The old leader leaves the ISR unless the rest is below its minimum: it can probably not reach
    its followers either, and every commit would wait until it counts as lagging.
    """
    successor = with_another_leader(stream, election)
    isr = tuple(member for member in stream.isr if member != stream.leader)
    if successor is stream or len(isr) < stream.config.min_insync_replicas:
        return successor
    return replace(successor, isr=isr)


def elected_uncleanly(stream: StreamMetadata, leader: NodeId) -> StreamMetadata:
    """The stream led by a replica that may lack committed records; counts as possibly lossy."""
    return _successor(stream, _unclean(stream, leader))


def asked_in_election(stream: StreamMetadata, leader: NodeId) -> tuple[NodeId, ...]:
    """The replicas whose reports an unclean election of that leader needs, in the order of its
    incarnations: all of `last_known`, and the leader."""
    known = stream.last_known
    return known if leader in known else (*known, leader)


def begun_anew(stream: StreamMetadata, epochs: int) -> StreamMetadata:
    """The stream after every session ended at once, `epochs` later: there is no leader, and
    eligible replicas stay eligible."""
    eligible = (*stream.isr, *stream.elr)
    return replace(
        stream,
        isr=(),
        elr=tuple(node_id for node_id in stream.replicas if node_id in eligible),
        leader=NO_NODE,
        leader_epoch=LeaderEpoch(stream.leader_epoch + epochs),
        stream_epoch=stream.stream_epoch + epochs,
    )


def _election_state(stream: StreamMetadata) -> _ElectionState:
    return _ElectionState(
        stream.isr, stream.elr, stream.leader, stream.last_known, stream.lossy_elections
    )


def _election_of(
    stream: StreamMetadata, leaderless: _ElectionState, election: Election
) -> _ElectionState:
    """Elect a leader if one can be elected without a loss."""
    isr, elr = leaderless.isr, leaderless.elr
    leader = election.choose(isr or elr)
    if leader != NO_NODE:
        isr = isr or (leader,)
        enough = len(isr) >= stream.config.min_insync_replicas
        rest = () if enough else tuple(member for member in elr if member not in isr)
        known = () if enough else leaderless.last_known
        return leaderless._replace(isr=isr, elr=rest, leader=leader, last_known=known)
    if isr or elr or len(stream.replicas) > 1:
        return leaderless
    # The stream has only this replica: there is no other one to wait for.
    leader = election.choose(stream.replicas)
    return leaderless if leader == NO_NODE else _unclean(stream, leader)


def _unclean(stream: StreamMetadata, leader: NodeId) -> _ElectionState:
    """The other replicas stay recorded while nothing can be committed without them: the chosen one
    may fail before it leads."""
    isr = (leader,)
    return _ElectionState(isr, (), leader, _last_known(stream, isr, ()), stream.lossy_elections + 1)


def _last_known(
    stream: StreamMetadata, isr: tuple[NodeId, ...], elr: tuple[NodeId, ...]
) -> tuple[NodeId, ...]:
    """The untrusted replicas that may hold everything committed. None once the ISR has reached its
    minimum, because more can be committed without them then."""
    if len(isr) >= stream.config.min_insync_replicas:
        return ()
    return _replicas_to_ask(stream, isr, elr)


def _replicas_to_ask(
    stream: StreamMetadata, isr: tuple[NodeId, ...], elr: tuple[NodeId, ...]
) -> tuple[NodeId, ...]:
    """Replicas that are not eligible any more. An election without an eligible replica must wait
    for all of them."""
    if not (stream.last_known or stream.elr) and stream.isr == isr:
        return ()
    known = (*stream.isr, *stream.elr, *stream.last_known)
    return tuple(
        node_id
        for node_id in stream.replicas
        if node_id in known and node_id not in isr and node_id not in elr
    )


def _successor(
    stream: StreamMetadata, state: _ElectionState, *, leadership_ended: bool = False
) -> StreamMetadata:
    """The stream one stream epoch later; the same object when nothing has changed.

    After a leadership has ended, a new leader epoch begins, even if the same node leads again.
    """
    if state == _election_state(stream) and not leadership_ended:
        return stream
    other_leadership = leadership_ended or state.leader != stream.leader
    return replace(
        stream,
        isr=state.isr,
        elr=state.elr,
        leader=state.leader,
        last_known=state.last_known,
        lossy_elections=state.lossy_elections,
        stream_epoch=stream.stream_epoch + 1,
        leader_epoch=LeaderEpoch(stream.leader_epoch + other_leadership),
    )
