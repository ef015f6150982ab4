"""What clients put into buckets by the domain's own subjects.

Clients with a domain publish the key `k` of a bucket `b` on `$JS.<domain>.API.$KV.b.k`; others, and
older ones, on `$KV.b.k`, where the stream listens anyway. The node that leads the stream announces
the former on its leaf link, takes off the prefix, and stores the message as if NATS had delivered
it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetstream_protocol.subjects import is_pattern
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.leaf.parser import LeafMessage
from jetstream_server.metadata.state.changes import (
    Change,
    StreamChanged,
    StreamCreated,
    StreamDeleted,
)
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata

BUCKETS: Final = "$KV."
"""The first token of the subjects of buckets."""

Put = Callable[[StreamId, LeafMessage], None]
"""Stores a message in a stream that this node leads, or drops it."""


class BucketPuts:
    """put: stores a message. may_write: whether clients of the API may write to a stream."""

    def __init__(
        self,
        registry: Registry,
        put: Put,
        may_write: Callable[[StreamMetadata, str], bool],
        *,
        node_id: int,
        domain: str,
    ) -> None:
        self._registry = registry
        self._put = put
        self._may_write = may_write
        self._node_id = NodeId(node_id)
        self._prefix = f"$JS.{domain}.API.".encode()
        self._heard: dict[StreamId, bytes] = {}
        """The patterns that this node announces, by stream."""
        self._link: LeafConnection | None = None

    def begin(self, link: LeafConnection) -> None:
        """Announce on this link what this node leads, from now on."""
        self._link = link
        for stream in self._registry.streams.values():
            self._settle(stream)

    def apply(self, change: Change) -> None:
        """Call it with each change of the metadata, after the replicas have taken it."""
        if isinstance(change, StreamDeleted):
            self._withdraw(change.stream.id)
        elif isinstance(change, StreamCreated):
            self._settle(change.stream)
        elif isinstance(change, StreamChanged):
            self._settle(change.after)

    def _settle(self, stream: StreamMetadata) -> None:
        # NATS closes a link for a literal subject that its user may not hear.
        is_bucket = stream.subject.startswith(BUCKETS) and is_pattern(stream.subject)
        if is_bucket and stream.leader == self._node_id and not stream.is_silent:
            pattern = self._prefix + stream.subject.encode()
            self._heard[stream.id] = pattern
            if self._link is not None:
                self._link.listen(pattern)
        else:
            self._withdraw(stream.id)

    def _withdraw(self, stream_id: StreamId) -> None:
        pattern = self._heard.pop(stream_id, b"")
        is_heard = not pattern or pattern in self._heard.values()
        if self._link is not None and not is_heard:
            self._link.stop_listening(pattern)

    def takes(self, message: LeafMessage) -> bool:
        """Take a message for a bucket. Returns whether it is one."""
        subject = message.subject[len(self._prefix) :]
        if not message.subject.startswith(self._prefix) or not subject.startswith(_BUCKETS):
            return False
        text = subject.decode("utf-8", "replace")
        for stream in self._registry.feeding(text):
            if stream.id in self._heard and self._may_write(stream, text):
                self._put(stream.id, message._replace(subject=subject))
        return True


_BUCKETS: Final = BUCKETS.encode()
