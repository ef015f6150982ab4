"""What `stream create` tells of other streams: those that store the new one's messages, too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import Stream
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.subjects import covers, overlaps

NAMED_MAX = 3
"""So many of them are named."""


def overlapping_streams(client: Client, stream: Stream) -> list[Stream]:
    """The other streams that store some of its messages. Streams of one group share their messages
    out, so they are none. Empty, too, if the streams cannot be listed: `stream` is created all the
    same."""
    try:
        known = client.list_streams()
    except JetstreamError:
        return []
    return [
        other
        for other in known
        if other.id != stream.id
        and not (stream.group and other.group == stream.group)
        and other.subject
        and overlaps(other.subject, stream.subject)
    ]


def note_others(stream: Stream, others: Sequence[Stream]) -> None:
    """On standard error: it may be meant."""
    if not others:
        return
    named = ", ".join(f"{other.name} ({other.subject})" for other in others[:NAMED_MAX])
    more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
    verb = "stores" if len(others) == 1 else "store"
    some = "" if any(covers(other.subject, stream.subject) for other in others) else "some of "
    print(f"note: {named}{more} {verb} {some}these messages, too", file=sys.stderr)
