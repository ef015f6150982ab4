"""The changes made by one applied command: the registry commits them, its watchers receive them.

A command is first decided from unchanged state, into a tuple of changes. Committing them cannot
fail. A watcher sees them in order, each once; `diff` gives the same for an installed snapshot.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from jetstream_protocol.types import BootUs, NodeId, StreamId, WallUs
from jetstream_server.metadata.state.cluster import ClusterSettings, ControllerClaim
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.security.state import SecurityState


@dataclass(frozen=True, slots=True)
class StreamCreated:
    stream: StreamMetadata


@dataclass(frozen=True, slots=True)
class StreamChanged:
    before: StreamMetadata
    after: StreamMetadata


@dataclass(frozen=True, slots=True)
class StreamDeleted:
    stream: StreamMetadata


@dataclass(frozen=True, slots=True)
class StreamForgotten:
    """A snapshot of the metadata lacks the stream and does not record its deletion: its data must
    not be deleted."""

    stream: StreamMetadata


@dataclass(frozen=True, slots=True)
class DeletionsLearned:
    """A snapshot of the metadata records that these streams were deleted, oldest first; each with
    when it was made, as in Tables.deleted."""

    deletions: tuple[tuple[StreamId, WallUs], ...]


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """`before` is None for a node seen the first time, `after` is None for a removed one."""

    before: NodeMetadata | None
    after: NodeMetadata | None


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    before: ClusterSettings
    after: ClusterSettings


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    before: ControllerClaim
    after: ControllerClaim


@dataclass(frozen=True, slots=True)
class LeaderReported:
    """Reports about a stream's leader, as (reporter, the controller's time); empty: none."""

    stream_id: StreamId
    reports: tuple[tuple[NodeId, BootUs], ...]


@dataclass(frozen=True, slots=True)
class LeaderDeposed:
    """The followers of a stream could not reach its leader, a node that is alive. The change of the
    stream follows."""

    stream_id: StreamId
    leader: NodeId


@dataclass(frozen=True, slots=True)
class SecurityChanged:
    """Tokens or ACL rules have changed."""

    before: SecurityState
    after: SecurityState


@dataclass(frozen=True, slots=True)
class ActivityChanged:
    """The events that wait to be written to the stream of activity (activity.py)."""

    before: Outbox
    after: Outbox


Change = (
    StreamCreated
    | StreamChanged
    | StreamDeleted
    | StreamForgotten
    | DeletionsLearned
    | NodeChanged
    | SettingsChanged
    | ControllerChanged
    | LeaderReported
    | LeaderDeposed
    | SecurityChanged
    | ActivityChanged
)


def diff_streams(
    before: Mapping[StreamId, StreamMetadata],
    after: Mapping[StreamId, StreamMetadata],
    deleted: Container[StreamId],
) -> Iterator[Change]:
    """The changes that lead from one set of streams to another, deletions first."""
    for stream_id, stream in before.items():
        if stream_id not in after:
            yield StreamDeleted(stream) if stream_id in deleted else StreamForgotten(stream)
    for stream_id, stream in after.items():
        known = before.get(stream_id)
        if known is None:
            yield StreamCreated(stream)
        elif known != stream:
            yield StreamChanged(known, stream)


def diff_nodes(
    before: Mapping[NodeId, NodeMetadata], after: Mapping[NodeId, NodeMetadata]
) -> Iterator[Change]:
    """The changes that lead from one set of nodes to another."""
    for node_id, node in before.items():
        if node_id not in after:
            yield NodeChanged(node, None)
    for node_id, node in after.items():
        if before.get(node_id) != node:
            yield NodeChanged(before.get(node_id), node)
