"""Decisions on commands about nodes and the cluster: register, fence, drain, claim, settings.

Each takes (tables, fields, revision), looks but does not touch, and returns a Decision or raises
the JetstreamError that the proposer gets. A node's session ending and its leaderships passing on
are one entry: nobody ever sees the one without the other (docs/replication.md, "Fencing").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
)
from jetstream_protocol.subjects import check_pattern
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.changes import (
    Change,
    ControllerChanged,
    LeaderReported,
    NodeChanged,
    SettingsChanged,
    StreamChanged,
)
from jetstream_server.metadata.controller import Election
from jetstream_server.metadata.decision import Decision
from jetstream_server.metadata.elections import begun_anew, with_node, without_node
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.streams import (
    Addresses,
    ClusterSettings,
    ControllerClaim,
    NodeMetadata,
)
from jetstream_server.metadata.tables import Tables

FEATURE_LEVEL_MAX = 1
"""The newest feature level this software understands. A new operation comes with a new level."""

EPOCHS_PER_RECOVERY = 1_000
"""More than there can have been elections that the lost voters knew of and this group does not."""


def register_node(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id, session, addresses, [replaces, rack, trusted, distrusted, feature_level_max].

    A process says once per run that it is there; `session` is its random token, and repeating
    one changes nothing. The revision becomes the incarnation. Whatever the node led ends here, it
    leaves every ISR, and it is alive. replaces: the session the process has seen registered for
    its node, "" for none; if it is another by now, the command is a late copy of a run that is
    over, and refused. trusted: the node's logs are known to hold all they held; distrusted: ids
    of streams whose replica it does not believe all the same.
    """
    node_id, session = fields.node("node_id"), fields.text("session")
    addresses, rack = _addresses(fields.object("addresses")), fields.text("rack", "")
    trusted = fields.flag("trusted", True)
    distrusted = fields.integers("distrusted", [])
    level = fields.integer("feature_level_max", 1, minimum=1)
    replaces = fields.text("replaces") if fields.has("replaces") else None
    fields.finish()
    if not session:
        raise InvalidRequestError("register_node needs a session token")
    if level < tables.settings.feature_level:
        raise PreconditionFailedError(
            f"node {node_id} understands feature level {level}, the cluster is at "
            f"{tables.settings.feature_level}: its software is too old"
        )
    known = tables.nodes.get(node_id)
    if known is not None and known.session == session:
        return Decision({"incarnation": known.incarnation})
    if replaces not in (None, known.session if known else ""):
        raise PreconditionFailedError(
            f"another process has registered as node {node_id} meanwhile: "
            "this one must look again, or stop"
        )
    node = NodeMetadata(
        node_id=node_id,
        incarnation=revision,
        fenced=False,
        draining=False,
        rack=rack,
        addresses=addresses,
        session=session,
        feature_level_max=level,
        relieved=known is not None and known.relieved,
    )
    streams = _session_ended(tables, node, trusted=trusted, distrusted=distrusted)
    return Decision({"incarnation": revision}, (NodeChanged(known, node), *streams))


def fence_node(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id, [node_incarnation]: its session lapsed. It leaves every ISR and leads nothing."""
    node = _node(tables, fields)
    fields.finish()
    if node.fenced:
        return Decision()
    fenced = replace(node, fenced=True)
    streams = _session_ended(tables, fenced, trusted=True, distrusted=())
    return Decision({}, (NodeChanged(node, fenced), *streams))


def unfence_node(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id, [node_incarnation]: it is heard again, and elected where nobody leads and it may."""
    node = _node(tables, fields)
    fields.finish()
    if not node.fenced:
        return Decision()
    alive = replace(node, fenced=False)
    election = Election({**tables.nodes, node.node_id: alive}, tables.leaderships)
    changes: list[Change] = [NodeChanged(node, alive)]
    for stream in tables.streams_of(node.node_id):
        after = with_node(stream, election)
        if after is not stream:
            changes.append(StreamChanged(stream, after))
    return Decision({}, tuple(changes))


def drain_node(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id, [node_incarnation], [draining, until_undone]: others are to lead in its place.

    A node that stops says so of its run, and its next one begins without. until_undone: an
    operator's mark, which stays. What the node leads is handed over by commands of their own
    (`transfer_leader`).
    """
    node = _node(tables, fields)
    draining, until_undone = fields.flag("draining", True), fields.flag("until_undone", False)
    fields.finish()
    marked = replace(node, relieved=draining) if until_undone else replace(node, draining=draining)
    if marked == node:
        return Decision()
    return Decision({}, (NodeChanged(node, marked),))


def remove_node(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id: forget a fenced node that holds no replicas."""
    node = _node(tables, fields)
    fields.finish()
    if not node.fenced or tables.replica_count(node.node_id):
        raise PreconditionFailedError(
            f"node {node.node_id} is alive or holds {tables.replica_count(node.node_id)} replicas"
        )
    return Decision({}, (NodeChanged(node, None),))


def claim_controller(tables: Tables, fields: Fields, revision: int) -> Decision:
    """node_id: it is the metadata leader and decides from now on, under the epoch returned."""
    node_id = fields.node("node_id")
    fields.finish()
    claim = ControllerClaim(node_id, revision)
    return Decision({"epoch": revision}, (ControllerChanged(tables.controller, claim),))


def set_cluster(tables: Tables, fields: Fields, revision: int) -> Decision:
    """[cluster_id], [ack_subjects], [feature_level], [recoveries].

    A recovery (unsafe_recovery.py) ends every session, and begins new epochs far beyond any that
    the lost voters may have begun: what they hold is never taken for what this group decided.
    """
    before = after = tables.settings
    if fields.has("cluster_id"):
        cluster_id = fields.text("cluster_id")
        if not cluster_id or before.cluster_id not in ("", cluster_id):
            raise PreconditionFailedError(
                f"the cluster's id is {before.cluster_id!r} and cannot become {cluster_id!r}"
            )
        after = replace(after, cluster_id=cluster_id)
    if fields.has("ack_subjects"):
        patterns = fields.texts("ack_subjects")
        for pattern in patterns:
            check_pattern(pattern)
        after = replace(after, ack_subjects=patterns)
    if fields.has("feature_level"):
        level = fields.integer("feature_level", minimum=1)
        _check_feature_level(tables, level)
        after = replace(after, feature_level=level)
    others: tuple[Change, ...] = ()
    if fields.has("recoveries"):
        after = replace(after, recoveries=_checked_recoveries(before, fields.texts("recoveries")))
        if after.recoveries != before.recoveries:
            others = _recovered(tables)
    fields.finish()
    if after == before:
        return Decision()
    return Decision({}, (SettingsChanged(before, after), *others))


def _checked_recoveries(before: ClusterSettings, recoveries: tuple[str, ...]) -> tuple[str, ...]:
    if recoveries[: len(before.recoveries)] != before.recoveries:
        raise PreconditionFailedError("the metadata group has gone through other recoveries")
    return recoveries


def _recovered(tables: Tables) -> tuple[Change, ...]:
    """Every session ends; whoever was eligible still is, and leads again once it registers."""
    nodes = [node for _, node in sorted(tables.nodes.items()) if not node.fenced]
    return (
        *(NodeChanged(node, replace(node, fenced=True)) for node in nodes),
        *(LeaderReported(stream_id, ()) for stream_id in sorted(tables.reports)),
        *(
            StreamChanged(stream, begun_anew(stream, EPOCHS_PER_RECOVERY))
            for stream in tables.streams.values()
        ),
    )


def barrier(tables: Tables, fields: Fields, revision: int) -> Decision:
    """Nothing; but once it has applied, everything committed before it has."""
    fields.finish()
    return Decision()


def _session_ended(
    tables: Tables, node: NodeMetadata, *, trusted: bool, distrusted: Sequence[int]
) -> list[Change]:
    """The node leaves every ISR; `node` is what it will be, so it is elected only if alive."""
    election = Election({**tables.nodes, node.node_id: node}, tables.leaderships)
    suspects = dict.fromkeys(distrusted)
    changes: list[Change] = []
    for stream in tables.streams_of(node.node_id):
        believed = (trusted or stream.flushes_before_ack) and stream.id not in suspects
        after = without_node(stream, node.node_id, election, trusted=believed)
        if after is stream:
            continue
        if stream.id in tables.reports and after.leader_epoch != stream.leader_epoch:
            changes.append(LeaderReported(stream.id, ()))
        changes.append(StreamChanged(stream, after))
    return changes


def _node(tables: Tables, fields: Fields) -> NodeMetadata:
    """The node meant, in the incarnation meant."""
    node_id: NodeId = fields.node("node_id")
    node = tables.nodes.get(node_id)
    if node is None:
        raise NotFoundError(f"node {node_id} is not part of this cluster")
    if fields.has("node_incarnation"):
        incarnation = fields.integer("node_incarnation")
        if incarnation != node.incarnation:
            raise FencedEpochError(
                f"node {node_id} is in incarnation {node.incarnation}, not {incarnation}"
            )
    return node


def _addresses(fields: Fields) -> Addresses:
    addresses = Addresses(
        grpc=fields.text("grpc"),
        data=fields.text("data"),
        raft=fields.text("raft"),
        http=fields.text("http"),
    )
    fields.finish()
    return addresses


def _check_feature_level(tables: Tables, level: int) -> None:
    if level < tables.settings.feature_level:
        raise PreconditionFailedError(
            f"the feature level is {tables.settings.feature_level} and cannot go back to {level}"
        )
    behind = [
        node_id for node_id, node in sorted(tables.nodes.items()) if node.feature_level_max < level
    ]
    if behind:
        raise PreconditionFailedError(f"nodes {behind} do not understand feature level {level} yet")
