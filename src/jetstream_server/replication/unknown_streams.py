"""Folders of streams that the metadata does not know: set aside, and taken back.

**safety** A stream that is missing from the metadata may have been deleted, or the metadata may
have lost it. Only what the metadata says was deleted is ever deleted here, a week after it was set
aside. Nothing is set aside by a start that found something of its metadata cut off or missing.
"""

from __future__ import annotations

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.log.folder import DataFolder
from jetstream_server.metadata.changes import Change, StreamCreated
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.streams import StreamMetadata

QUARANTINE_DAYS = 7
DAY_US = 86_400_000_000

logger = structlog.get_logger("jetstream.server")


class UnknownStreams:
    """Of one node's data folder."""

    def __init__(self, folder: DataFolder, registry: Registry) -> None:
        self._folder = folder
        self._registry = registry

    def sort_out(self, doubt: str) -> None:
        """Before the logs are opened. After a metadata barrier only: before it, a stream might
        merely not be known here yet. doubt: see MetadataStatus."""
        try:
            for stream in self._registry.streams_of(NodeId(self._folder.node_id)):
                self._take_back(stream)
            for stream_id in self._folder.stream_ids():
                if stream_id not in self._registry.streams:
                    self._set_aside(stream_id, doubt)
            deleted = self._folder.delete_quarantined(
                QUARANTINE_DAYS * DAY_US, self._registry.deleted
            )
            for name in deleted:
                logger.info("quarantined_stream_deleted", name=name)
        except (OSError, StorageError) as error:
            # Nobody needs those folders: no reason not to serve the others.
            logger.error("quarantine_failed", reason=str(error))

    def apply(self, change: Change) -> None:
        """A stream that appears while the node runs; called before its log is opened."""
        match change:
            case StreamCreated(stream) if self._folder.node_id in stream.replicas:
                try:
                    self._take_back(stream)
                except (OSError, StorageError) as error:
                    logger.error("quarantine_failed", reason=str(error))

    def _set_aside(self, stream_id: int, doubt: str) -> None:
        if doubt:
            logger.warning("unknown_stream_kept", stream_id=stream_id, reason=doubt)
        else:
            self._folder.quarantine(stream_id)
            is_deleted = stream_id in self._registry.deleted
            logger.warning("unknown_stream_set_aside", stream_id=stream_id, deleted=is_deleted)

    def _take_back(self, stream: StreamMetadata) -> None:
        if self._folder.take_back(stream.id, stream.created_at_us):
            logger.warning("stream_taken_back", stream=stream.full_name, stream_id=stream.id)
