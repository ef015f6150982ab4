"""Sets aside folders of streams that the metadata does not know, and takes them back.

**safety** A stream that is missing from the metadata may have been deleted, or the metadata may
have lost it. Only copies of streams that the metadata records as deleted, as moved to other nodes,
or as in sync on another node, are deleted here, a week after they were set aside. A start whose
metadata was cut off or incomplete sets nothing aside. So may a deletion that fails. A stream that
moves to this node while it runs finds no such remains: its log begins anew.

**safety** What was set aside before that is an older copy from then on. If the disk loses the newer
one, the older one must not pass for it (`DataFolder.take_back`): it lacks records that this node
has acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId, StreamId, WallUs
from jetstream_server.clocks import WallClock
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.metadata.state.changes import Change, StreamChanged, StreamCreated
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata

QUARANTINE_DAYS = 7
DAY_US = 86_400_000_000

logger = structlog.get_logger("jetstream.server")


class UnknownStreams:
    """The unknown streams of one node's data folder. lost_through: see RunRecord."""

    def __init__(
        self, folder: DataFolder, registry: Registry, wall_clock: WallClock, lost_through: int
    ) -> None:
        self._folder = folder
        self._registry = registry
        self._wall_clock = wall_clock
        self._lost_through = lost_through

    def sort_out(self, journal_loss: str) -> None:
        """Set unknown folders aside. Call it before the logs are opened, and after a metadata
        barrier: before the barrier, a stream might just not be known here yet. journal_loss: see
        MetadataStatus."""
        for stream in self._registry.streams_of(NodeId(self._folder.node_id)):
            self._settle(stream, self._take_back)
        try:
            for stream_id in self._folder.stream_ids():
                found = self._registry.streams.get(StreamId(stream_id))
                if found is None or self._is_elsewhere(found):
                    self._set_aside(stream_id, journal_loss)
            until_us = WallUs(self._wall_clock() - QUARANTINE_DAYS * DAY_US)
            held = (
                each.id
                for each in self._registry.streams.values()
                if self._is_elsewhere(each) or set(each.isr) - {self._folder.node_id}
            )
            not_needed = {*self._registry.deleted, *held}
            for name in self._folder.delete_quarantined(until_us, not_needed):
                logger.info("quarantined_stream_deleted", name=name)
        except (OSError, StorageError) as error:
            # These folders are not needed: serve the other streams.
            logger.error("quarantine_failed", reason=str(error))

    def apply(self, change: Change) -> None:
        """Take back a stream that appears while the node runs, and set aside what is left of one
        that was here before and comes to this node again. Called before its log is opened."""
        match change:
            case StreamCreated(stream) if not self._is_elsewhere(stream):
                self._settle(stream, self._take_back)
            case StreamChanged(before, after):
                if self._is_elsewhere(before) and not self._is_elsewhere(after):
                    self._settle(after, self._begin_anew)

    def _settle(self, stream: StreamMetadata, move: Callable[[StreamMetadata], None]) -> None:
        """Move a stream's folder before its log is opened. **safety** If it cannot be moved, the
        log must not be opened: it would be trusted, although it lacks what this node has
        acknowledged."""
        self._folder.unsettled.pop(stream.id, None)
        try:
            move(stream)
        except StorageError as error:
            self._folder.unsettled[stream.id] = error

    def _begin_anew(self, stream: StreamMetadata) -> None:
        if self._folder.has_stream(stream.id):
            self._set_aside(stream.id, "")

    def _is_elsewhere(self, stream: StreamMetadata) -> bool:
        """Whether the stream was moved to other nodes."""
        return self._folder.node_id not in stream.copies

    def _set_aside(self, stream_id: int, journal_loss: str) -> None:
        if journal_loss:
            logger.warning("unknown_stream_kept", stream_id=stream_id, reason=journal_loss)
        else:
            self._folder.quarantine(stream_id, self._wall_clock())
            is_deleted = stream_id in self._registry.deleted
            logger.warning("unknown_stream_set_aside", stream_id=stream_id, deleted=is_deleted)

    def _take_back(self, stream: StreamMetadata) -> None:
        if stream.id <= self._lost_through:
            return  # The folder of all streams was lost, and with it perhaps a newer copy.
        if self._folder.take_back(stream.id, stream.created_at_us):
            logger.warning("stream_taken_back", stream=stream.full_name, stream_id=stream.id)
