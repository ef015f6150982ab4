"""Events about cursors for the stream of activity: what is published, and where it waits.

    one batch of `__cursors`: the cursor's record, and the event ─> committed ─> NoteCursors
                                                   └──────────(noted)──> deleted

The event is a separate record, in the batch that makes the change. So neither is ever without the
other, whichever node fails, and whoever leads `__cursors` next finds what was not noted yet. Keys
sort like the log: by leader epoch, then by offset.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from jetstream_protocol.generated.cursors_pb2 import Cursor

EVENT_PREFIX = b"event/"


class Cause(NamedTuple):
    """Who changes a cursor. principal: the caller, "" while security is off. by_hand: by a commit
    without an owner; consumers name one."""

    principal: str = ""
    by_hand: bool = False


NO_CAUSE = Cause()


class Event(NamedTuple):
    """An event that waits in `__cursors`. leader_epoch, offset: of its record. text: JSON."""

    key: bytes
    leader_epoch: int
    offset: int
    text: str


class CursorEvent(NamedTuple):
    """The event of a change. text: JSON. is_move: the cursor was moved by hand, and neither
    created nor deleted."""

    text: str
    is_move: bool = False


def event_key(leader_epoch: int, offset: int) -> bytes:
    return EVENT_PREFIX + b"%010d/%020d" % (leader_epoch, offset)


def waiting_event(key: bytes, value: bytes) -> Event:
    """The reverse of `event_key`, with the record's value."""
    leader_epoch, offset = key.removeprefix(EVENT_PREFIX).split(b"/")
    return Event(key, int(leader_epoch), int(offset), value.decode())


def event_about(before: bytes | None, after: bytes | None, cause: Cause) -> CursorEvent | None:
    """What to tell of a write: the cursor's record before and after; None: there is none.

    Commits of consumers, which come each second, are published only when they create the cursor. A
    cursor of a stream that was deleted is created anew for the next stream of that name.
    """
    was = None if before is None else Cursor.FromString(before)
    if after is None:
        return (
            None
            if was is None
            else CursorEvent(_text("cursor_deleted", was, cause, offset=was.offset))
        )
    now = Cursor.FromString(after)
    if was is None or was.stream_id != now.stream_id:
        return CursorEvent(_text("cursor_created", now, cause, offset=now.offset))
    if cause.by_hand and was.offset != now.offset:
        offset = {"before": was.offset, "after": now.offset}
        return CursorEvent(
            _text("cursor_moved", now, cause, changes={"offset": offset}), is_move=True
        )
    return None


def _text(kind: str, cursor: Cursor, cause: Cause, **fields: Any) -> str:
    event: dict[str, Any] = {
        "type": kind,
        "cursor": cursor.name,
        "stream": f"{cursor.stream_name}@{cursor.stream_subject}",
        "stream_id": cursor.stream_id,
        **fields,
    }
    if cause.principal:
        event["principal"] = cause.principal
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
