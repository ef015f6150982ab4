"""An outbox of metadata changes that are not in the stream `__activity` yet.

Once that stream exists, the entry that makes a change also puts an event with the next number into
the outbox. The leader of the stream appends the events, and then removes them by a command. So no
event is missed, whichever node fails: an event that is not committed in the stream's log is still
in the outbox, and its number shows a new leader what is in the log already.

Cursors are not metadata: their events come from `__cursors` (cursors/events.py), by a command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_server.metadata.state.changes import (
    ActivityChanged,
    Change,
    ControllerChanged,
    NodeChanged,
    SecurityChanged,
    SettingsChanged,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
)
from jetstream_server.metadata.state.commands import (
    CURSOR_EVENTS_LEVEL,
    DISK_LEVEL,
    REPLICA_EVENTS_LEVEL,
    NoteCursors,
    TrimActivity,
)
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.fields import Fields
from jetstream_server.metadata.state.nodes import FeatureLevel, NodeMetadata
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.streams import StreamMetadata, settings_fields, stream_fields
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.security.state import SecurityState

ACTIVITY = "__activity"
CURSOR_EVENTS = ("cursor_created", "cursor_moved", "cursor_deleted")
NOTED_MAX = 500
"""Upper bound on the events of one command: it is one entry of the metadata group."""


def outbox_after(tables: Tables, changes: Iterable[Change]) -> Outbox:
    """The outbox with the events of these changes, which are committed already."""
    outbox = tables.activity
    if tables.find(ACTIVITY, "") is None:
        return outbox
    level = tables.settings.feature_level
    texts: list[str] = []
    for change in changes:
        for event in _events(change, level):
            sequence = outbox.next_sequence + len(texts)
            numbered = {"sequence": sequence, "revision": tables.revision, **event}
            texts.append(json.dumps(numbered, separators=(",", ":")))
    # All at once: each time copies the events that wait.
    return outbox.with_events(texts) if texts else outbox


def trim_activity(tables: Tables, command: TrimActivity) -> Decision:
    """Forget the events that are in the log."""
    before = tables.activity
    after = before.without(command.through)
    return Decision(changes=() if after is before else (ActivityChanged(before, after),))


def tells_of_cursors(tables: Tables) -> bool:
    """Whether events about cursors are asked for, and every node understands them."""
    if tables.settings.feature_level < CURSOR_EVENTS_LEVEL:
        return False
    return tables.find(ACTIVITY, "") is not None


def note_cursors(tables: Tables, command: NoteCursors) -> Decision:
    """Put events about cursors into the outbox. **safety** Each once: those up to the last one that
    was noted are passed over. So whoever leads `__cursors` may repeat what it finds there."""
    before = tables.activity
    if tables.find(ACTIVITY, "") is None:
        raise PreconditionFailedError("there is no stream of activity")
    if not 0 < len(command.events) == len(command.offsets) <= NOTED_MAX:
        raise InvalidRequestError(f"note_cursors has 1 to {NOTED_MAX} events, each with its offset")
    positions = [(int(command.leader_epoch), offset) for offset in command.offsets]
    if positions != sorted(set(positions)):
        raise InvalidRequestError("note_cursors has events in the order of the log")
    texts: list[str] = []
    for position, text in zip(positions, command.events, strict=True):
        event = _cursor_event(text)
        if position > before.cursors_noted:
            sequence = before.next_sequence + len(texts)
            numbered = {"sequence": sequence, "revision": tables.revision, **event}
            texts.append(json.dumps(numbered, separators=(",", ":")))
    if not texts:
        return Decision()
    after = replace(before.with_events(texts), cursors_noted=positions[-1])
    return Decision(changes=(ActivityChanged(before, after),))


def _cursor_event(text: str) -> dict[str, Any]:
    """Read an event about a cursor. Raises InvalidRequestError for anything else."""
    try:
        values = bounded_json.loads(text)
    except ValueError as error:
        raise InvalidRequestError("an event of note_cursors is not JSON") from error
    if not isinstance(values, dict):
        raise InvalidRequestError("an event of note_cursors is not a JSON object")
    given = Fields(values, "note_cursors.events")
    event: dict[str, Any] = {"type": given.choice("type", CURSOR_EVENTS)}
    event |= {"cursor": given.text("cursor"), "stream": given.text("stream")}
    event["stream_id"] = given.stream_id()
    if event["type"] == "cursor_moved":
        moved = given.object("changes")
        offset = moved.object("offset")
        both = {name: offset.integer(name) for name in ("before", "after")}
        event["changes"] = {"offset": both}
        offset.finish()
        moved.finish()
    else:
        event["offset"] = given.integer("offset")
    if given.has("principal"):
        event["principal"] = given.text("principal")
    given.finish()
    return event


def _events(change: Change, level: FeatureLevel) -> Iterator[dict[str, Any]]:
    match change:
        case StreamCreated(stream):
            yield {"type": "stream_created", **_name(stream), **_stream(stream, level)}
        case StreamChanged(before, after):
            found = _stream_differences(before, after, level)
            if found:
                yield {"type": "stream_changed", **_name(after), "changes": found}
        case StreamDeleted(stream):
            yield {"type": "stream_deleted", **_name(stream)}
        case NodeChanged(None, NodeMetadata() as node):
            yield {"type": "node_added", "node": node.node_id, **_node(node, level)}
        case NodeChanged(NodeMetadata() as node, None):
            yield {"type": "node_removed", "node": node.node_id}
        case NodeChanged(NodeMetadata() as before, NodeMetadata() as after):
            found = _differences(_node(before, level), _node(after, level))
            if found:
                yield {"type": "node_changed", "node": after.node_id, "changes": found}
        case SettingsChanged(before, after):
            found = _differences(before.to_dict(), after.to_dict())
            if found:
                yield {"type": "cluster_changed", "changes": found}
        case ControllerChanged(_, controller):
            yield {"type": "controller_changed", "node": controller.node_id}
        case SecurityChanged(before, after):
            yield from _of_security(before, after)


def _name(stream: StreamMetadata) -> dict[str, Any]:
    return {"stream": stream.full_name, "stream_id": stream.id}


_INNER = ("id", "name", "subject", "config", "stream_epoch", "created_at_us", "lake", "schemas")
"""Fields of a stream that never change, mean nothing to users, are long, or are reported one by
one."""


@cache
def _fields_of(level: FeatureLevel) -> dict[str, Callable[[StreamMetadata], Any]]:
    """The fields and settings that the feature level has, by what they are called in events, in
    their order. **safety** Older software writes the same events."""
    # Which nodes hold replicas, or observe, says how many do.
    numbers = {"observers"} if level < REPLICA_EVENTS_LEVEL else {"observers", "replicas"}
    return {
        **{name: attrgetter(name) for name in stream_fields(level) if name not in _INNER},
        **{name: attrgetter(f"config.{name}") for name in settings_fields(level)
           if name not in numbers},
    }  # fmt: skip


def _stream(stream: StreamMetadata, level: FeatureLevel) -> dict[str, Any]:
    return {name: value_of(stream) for name, value_of in _fields_of(level).items()}


def _stream_differences(
    before: StreamMetadata, after: StreamMetadata, level: FeatureLevel
) -> dict[str, Any]:
    """`_differences` of the two, without all that they have in common: a node that ends changes
    every stream that it has a copy of."""
    return {
        name: {"before": was, "after": now}
        for name, value_of in _fields_of(level).items()
        if (was := value_of(before)) != (now := value_of(after))
    }


def _node(node: NodeMetadata, level: FeatureLevel) -> dict[str, Any]:
    """All fields that the level has, but the token of its run."""
    values = node.to_dict()
    del values["session"]
    if level >= DISK_LEVEL:
        values["disk_full"] = node.disk_full
    return values


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What both have, and differs: a raised feature level brings fields that nothing had."""
    return {
        name: {"before": before[name], "after": after[name]}
        for name in after
        if name in before and before[name] != after[name]
    }


def _of_security(before: SecurityState, after: SecurityState) -> Iterator[dict[str, Any]]:
    """Events about tokens name id and principal, never the hash. A rule that has changed, when
    `commit` became a separate right, was removed and added."""
    for token_id, token in after.tokens.items():
        if token_id not in before.tokens:
            yield {"type": "token_created", "token": token_id, "principal": token.principal}
    for token_id, token in before.tokens.items():
        if token_id not in after.tokens:
            yield {"type": "token_revoked", "token": token_id, "principal": token.principal}
    for rule_id, rule in before.rules.items():
        if after.rules.get(rule_id) != rule:
            yield {"type": "acl_removed", "rule": rule.to_row()}
    for rule_id, rule in after.rules.items():
        if before.rules.get(rule_id) != rule:
            yield {"type": "acl_added", "rule": rule.to_row()}
