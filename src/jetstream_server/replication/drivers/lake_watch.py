"""Tells who reads the lake for a node what its replicas need of it, and what nobody may have."""

from __future__ import annotations

from jetstream_server.lake.reader import LakeReader
from jetstream_server.replication.core.lake_bounds import is_in_lake
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica


class LakeWatch(RoleListener):
    """The process that reads starts with the first records that only the lake has: its first reader
    would wait for that. What was purged leaves the cache, too."""

    def __init__(self, reader: LakeReader) -> None:
        self._reader = reader

    def role_changed(self, replica: Replica) -> None:
        self._look(replica)

    def log_start_rose(self, replica: Replica) -> None:
        self._look(replica)

    def _look(self, replica: Replica) -> None:
        stream = replica.stream
        if replica.closed:
            self._reader.drop(stream.id)
            return
        self._reader.drop(stream.id, stream.lake.start)
        if is_in_lake(stream, replica.log, stream.lake.start):
            self._reader.begin()
