"""Decides commands that move a stream to other nodes.

    replicas {0, 1, 2} ── ReassignStream(2, 3) ──> replicas {0, 1, 2, 3}, target {2, 3}
                                                   the new ones copy, and join the ISR
                       ── FinishReassignment ────> replicas {2, 3}

Observers come and go at once: nothing relies on them. One that is named as a replica is promoted:
it keeps its log, and joins as any follower does. A replica that is named as an observer is in both
lists until the reassignment ends, and counts until then.

**safety** A replica is removed only when every replica of the target is in sync: each then holds
everything committed. A new replica is in neither ISR nor ELR, and joins as any follower does.

The class of each command (commands.py) says what it means. A decision changes nothing: it returns a
Decision, or raises the JetstreamError that the proposer gets.
"""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError, StorageFullError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import FinishReassignment, ReassignStream
from jetstream_server.metadata.state.decision import (
    Decision,
    check_known,
    check_observers,
    decision_for,
    epochs,
    stream_at_epoch,
)
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from jetstream_server.metadata.state.tables import Tables


def reassign_stream(tables: Tables, command: ReassignStream) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    target = tuple(sorted(command.replicas))
    _check_target(tables, stream, target)
    if command.observers is None:
        observers = tuple(node_id for node_id in stream.observers if node_id not in target)
    else:
        observers = tuple(sorted(command.observers))
        check_observers(tables, target, observers)
    _check_room(tables, stream, (*target, *observers))
    is_target = target == (stream.target_replicas or stream.replicas)
    if is_target and observers == stream.observers:
        return Decision(epochs(stream))
    leaving = tuple(node_id for node_id in stream.replicas if node_id not in target)
    config = replace(stream.config, replicas=len(target), observers=len(observers))
    after = replace(
        stream,
        replicas=tuple(sorted((*target, *leaving))),
        target_replicas=stream.target_replicas if is_target else target,
        observers=observers,
        config=StreamSettings.of_row(config.to_row()),
        stream_epoch=stream.stream_epoch + 1,
    )
    return decision_for(tables, stream, _in_order(after))


def finish_reassignment(tables: Tables, command: FinishReassignment) -> Decision:
    stream = stream_at_epoch(tables, command.stream_id, command.stream_epoch)
    target = stream.target_replicas
    if not target:
        return Decision(epochs(stream))
    if not may_finish(stream):
        behind = [node_id for node_id in target if node_id not in stream.isr]
        reason = f"nodes {behind} are not in sync" if behind else "its leader is to go"
        raise PreconditionFailedError(f"{stream.full_name} cannot be moved yet: {reason}")
    after = replace(
        stream,
        replicas=target,
        target_replicas=(),
        stream_epoch=stream.stream_epoch + 1,
    )
    return decision_for(tables, stream, _in_order(after))


def may_finish(stream: StreamMetadata) -> bool:
    """Whether every replica of the target is in sync, and one of them leads."""
    target = stream.target_replicas
    return bool(target) and stream.leader in target and not set(target) - set(stream.isr)


def _check_target(tables: Tables, stream: StreamMetadata, target: tuple[NodeId, ...]) -> None:
    check_known(tables, target)
    if len(target) < stream.config.min_insync_replicas:
        raise InvalidRequestError(
            f"{stream.full_name} needs {stream.config.min_insync_replicas} replicas in sync "
            f"(min_insync_replicas), and {len(target)} were named: name more, or lower that first"
        )


def _check_room(tables: Tables, stream: StreamMetadata, nodes: tuple[NodeId, ...]) -> None:
    """Raise StorageFullError if the stream would come to a node whose disk is full."""
    held = (*stream.replicas, *stream.observers)
    full = [each for each in nodes if each not in held and tables.nodes[each].disk_full]
    if full:
        raise StorageFullError(
            f"{stream.full_name} cannot be moved to nodes {full}: their disks are below their "
            "reserve; free some space there, or name other nodes"
        )


def _in_order(stream: StreamMetadata) -> StreamMetadata:
    """The stream with all its lists of nodes in the order of `replicas`, and limited to them."""

    def in_order(nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id in stream.replicas if node_id in nodes)

    return replace(
        stream,
        isr=in_order(stream.isr),
        elr=in_order(stream.elr),
        last_known=in_order(stream.last_known),
        unflushed=in_order(stream.unflushed),
    )
