"""Decides commands about nodes and the cluster: register, fence, drain, disks, claim, settings.

The class of each command (commands.py) says what it means. A decision changes nothing: it returns a
Decision, or raises the JetstreamError that the proposer gets. One entry ends a node's session and
passes its leaderships on, so that no reader ever sees the one without the other
(docs/replication.md, "Fencing").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
)
from jetstream_protocol.settings import CLUSTER_SETTINGS
from jetstream_protocol.subjects import check_pattern
from jetstream_protocol.types import StreamId
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.changes import (
    ActivityChanged,
    Change,
    ControllerChanged,
    LeaderReported,
    NodeChanged,
    SecurityChanged,
    SettingsChanged,
    StreamChanged,
)
from jetstream_server.metadata.state.cluster import ClusterSettings, ControllerClaim
from jetstream_server.metadata.state.commands import (
    COMMIT_LEVEL,
    RECOVERY_LEVEL,
    Barrier,
    ClaimController,
    DrainNode,
    FenceNode,
    NoteDisk,
    RegisterNode,
    RemoveNode,
    SetCluster,
    UnfenceNode,
)
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.elections import begun_anew, with_node, without_node
from jetstream_server.metadata.state.nodes import FeatureLevel, NodeMetadata
from jetstream_server.metadata.state.placement import Election
from jetstream_server.metadata.state.setting_checks import check_range
from jetstream_server.metadata.state.tables import Tables

EPOCHS_PER_RECOVERY = 1_000_000
"""More than the number of elections of one stream that the lost voters can know and this group does
not: one a second for eleven days."""
EPOCHS_PER_EARLIER_RECOVERY = 1_000
"""Below RECOVERY_LEVEL."""
EVENTS_PER_RECOVERY = 1_000_000_000
"""More than the number of events that the lost voters can have noted without this group."""


def register_node(tables: Tables, command: RegisterNode) -> Decision:
    node_id, level = command.node_id, command.feature_level_max
    if not command.session:
        raise InvalidRequestError("register_node needs a session token")
    if level < tables.settings.feature_level:
        raise PreconditionFailedError(
            f"node {node_id} understands feature level {level}, the cluster is at "
            f"{tables.settings.feature_level}: its software is too old"
        )
    known = tables.nodes.get(node_id)
    if known is not None and known.session == command.session:
        return Decision({"incarnation": known.incarnation})
    if command.replaces not in (None, known.session if known else ""):
        raise PreconditionFailedError(
            f"another process has registered as node {node_id} meanwhile: "
            "this one must look again, or stop"
        )
    node = NodeMetadata(
        node_id=node_id,
        incarnation=tables.revision,
        fenced=False,
        draining=False,
        rack=command.rack,
        addresses=command.addresses,
        session=command.session,
        feature_level_max=level,
        relieved=known is not None and known.relieved,
        disk_full=known is not None and known.disk_full,
    )
    streams = _session_ended(tables, node, trusted=command.trusted, distrusted=command.distrusted)
    return Decision({"incarnation": node.incarnation}, (NodeChanged(known, node), *streams))


def fence_node(tables: Tables, command: FenceNode) -> Decision:
    node = _node(tables, command)
    if node.fenced:
        return Decision()
    fenced = replace(node, fenced=True)
    streams = _session_ended(tables, fenced, trusted=True, distrusted=())
    return Decision({}, (NodeChanged(node, fenced), *streams))


def unfence_node(tables: Tables, command: UnfenceNode) -> Decision:
    node = _node(tables, command)
    if not node.fenced:
        return Decision()
    alive = replace(node, fenced=False)
    election = Election({**tables.nodes, node.node_id: alive}, tables.leaderships)
    changes: list[Change] = [NodeChanged(node, alive)]
    for stream in tables.streams_of(node.node_id):
        after = with_node(stream, election) if node.node_id in stream.replicas else stream
        if after is not stream:
            changes.append(StreamChanged(stream, after))
    return Decision({}, tuple(changes))


def drain_node(tables: Tables, command: DrainNode) -> Decision:
    node = _node(tables, command)
    draining = command.draining is not False
    if command.until_undone:
        marked = replace(node, relieved=draining)
    else:
        marked = replace(node, draining=draining)
    if marked == node:
        return Decision()
    return Decision({}, (NodeChanged(node, marked),))


def note_disk(tables: Tables, command: NoteDisk) -> Decision:
    node = _node(tables, command)
    if node.disk_full == command.full:
        return Decision()
    return Decision({}, (NodeChanged(node, replace(node, disk_full=command.full)),))


def remove_node(tables: Tables, command: RemoveNode) -> Decision:
    node = _node(tables, command)
    copies = tables.copy_count(node.node_id)
    if not node.fenced or copies:
        raise PreconditionFailedError(f"node {node.node_id} is alive or holds {copies} replicas")
    return Decision({}, (NodeChanged(node, None),))


def claim_controller(tables: Tables, command: ClaimController) -> Decision:
    claim = ControllerClaim(command.node_id, tables.revision)
    return Decision({"epoch": claim.epoch}, (ControllerChanged(tables.controller, claim),))


def set_cluster(tables: Tables, command: SetCluster) -> Decision:
    """**safety** A recovery (unsafe_recovery.py) ends every session, and begins new epochs far
    beyond any that the lost voters may have begun: their decisions can never be taken for this
    group's. So it is with the numbers of events: the log may have some that only they noted."""
    before = after = tables.settings
    others: tuple[Change, ...] = ()
    if command.cluster_id is not None:
        if not command.cluster_id or before.cluster_id not in ("", command.cluster_id):
            raise PreconditionFailedError(
                f"the cluster's id is {before.cluster_id!r} and cannot become "
                f"{command.cluster_id!r}"
            )
        after = replace(after, cluster_id=command.cluster_id)
    if command.ack_subjects is not None:
        for pattern in command.ack_subjects:
            check_pattern(pattern)
        after = replace(after, ack_subjects=command.ack_subjects)
    if command.feature_level is not None:
        _check_feature_level(tables, command.feature_level)
        after = replace(after, feature_level=command.feature_level)
        others = _commit_rights(tables, command.feature_level)
    if command.recoveries is not None:
        after = replace(after, recoveries=_checked_recoveries(before, command.recoveries))
        if after.recoveries != before.recoveries:
            others += _recovery_changes(tables)
    for setting in CLUSTER_SETTINGS:
        if (value := getattr(command, setting.field)) is not None:
            given: dict[str, Any] = {setting.field: check_range(setting, value)}
            after = replace(after, **given)
    if after == before:
        return Decision()
    return Decision({}, (SettingsChanged(before, after), *others))


def _commit_rights(tables: Tables, level: FeatureLevel) -> tuple[Change, ...]:
    """What makes `commit` a separate right, and takes it from no principal."""
    before = tables.security
    if before.has_commit or level < COMMIT_LEVEL:
        return ()
    return (SecurityChanged(before, before.with_commit()),)


def _checked_recoveries(before: ClusterSettings, recoveries: tuple[str, ...]) -> tuple[str, ...]:
    if recoveries[: len(before.recoveries)] != before.recoveries:
        raise PreconditionFailedError("the metadata group has gone through other recoveries")
    return recoveries


def _recovery_changes(tables: Tables) -> tuple[Change, ...]:
    """End every session. Nodes stay eligible, and may lead again once they register."""
    nodes = [node for _, node in sorted(tables.nodes.items()) if not node.fenced]
    is_earlier = tables.settings.feature_level < RECOVERY_LEVEL
    epochs = EPOCHS_PER_EARLIER_RECOVERY if is_earlier else EPOCHS_PER_RECOVERY
    return (
        *(NodeChanged(node, replace(node, fenced=True)) for node in nodes),
        *(LeaderReported(stream_id, ()) for stream_id in sorted(tables.reports)),
        *(StreamChanged(stream, begun_anew(stream, epochs)) for stream in tables.streams.values()),
        *_events_skipped(tables),
    )


def _events_skipped(tables: Tables) -> tuple[Change, ...]:
    """**safety** Older software does not know of it."""
    if tables.settings.feature_level < RECOVERY_LEVEL:
        return ()
    if tables.find(ACTIVITY, "") is None:
        return ()
    outbox = tables.activity
    return (ActivityChanged(outbox, outbox.skipping(EVENTS_PER_RECOVERY)),)


def barrier(tables: Tables, command: Barrier) -> Decision:
    return Decision()


def _session_ended(
    tables: Tables, node: NodeMetadata, *, trusted: bool, distrusted: Sequence[StreamId]
) -> list[Change]:
    """Remove the node from every ISR. node: its new state, so it is elected only if alive."""
    election = Election({**tables.nodes, node.node_id: node}, tables.leaderships)
    suspects = dict.fromkeys(distrusted)
    changes: list[Change] = []
    for stream in tables.streams_of(node.node_id):
        is_trusted = (trusted or stream.flushes_before_ack) and stream.id not in suspects
        after = without_node(stream, node.node_id, election, trusted=is_trusted)
        if after is stream:
            continue
        if stream.id in tables.reports and after.leader_epoch != stream.leader_epoch:
            changes.append(LeaderReported(stream.id, ()))
        changes.append(StreamChanged(stream, after))
    return changes


def _node(
    tables: Tables, command: FenceNode | UnfenceNode | DrainNode | NoteDisk | RemoveNode
) -> NodeMetadata:
    """The node in the given incarnation. Raises NotFoundError, FencedEpochError."""
    node = tables.nodes.get(command.node_id)
    if node is None:
        raise NotFoundError(f"node {command.node_id} is not part of this cluster")
    if command.node_incarnation not in (None, node.incarnation):
        raise FencedEpochError(
            f"node {command.node_id} is in incarnation {node.incarnation}, "
            f"not {command.node_incarnation}"
        )
    return node


def _check_feature_level(tables: Tables, level: FeatureLevel) -> None:
    if level < tables.settings.feature_level:
        raise PreconditionFailedError(
            f"the feature level is {tables.settings.feature_level} and cannot go back to {level}"
        )
    older = [
        node_id for node_id, node in sorted(tables.nodes.items()) if node.feature_level_max < level
    ]
    if older:
        raise PreconditionFailedError(f"nodes {older} do not understand feature level {level} yet")
