"""The state file that records a node's runs. restart_trust.py explains its use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import structlog

from jetstream_protocol.errors import CorruptBatchError, StorageError, StorageFullError
from jetstream_server.disk_errors import NoDescriptorError
from jetstream_server.log.disk import Disk
from jetstream_server.log.state_files import read_state, write_state
from jetstream_server.metadata.raft.reserve import make_room
from jetstream_server.replication.core.restart_trust import RunRecord

RECORD_BYTES = 64 << 10
"""More than a record is long, unless thousands of logs have failed."""
_KIND = "runs"
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

logger = structlog.get_logger("jetstream.server")


def boot_id() -> str:
    """The machine's boot id: a new one after each boot."""
    return Path(_BOOT_ID_PATH).read_text().strip()


class RunRecordFile:
    """The record, durable after every method. All methods but `stop` may raise StorageError."""

    def __init__(self, disk: Disk, path: str, owner: str) -> None:
        self._disk = disk
        self.path = path
        self._owner = owner
        self.damage = ""
        """Why the record is not trusted; "" when it is, or when there was none."""
        self.record = RunRecord.from_dict(self._read())

    def _read(self) -> dict[str, Any] | None:
        try:
            return read_state(self._disk, self.path, _KIND, self._owner)
        except CorruptBatchError as error:
            self.damage = error.reason
            return None

    def begin(self, session: str, boot_id: str) -> None:
        """Record a new run, which will register as `session`."""
        self._write(self.record.of_new_run(session, boot_id))

    def registered(self, session: str) -> None:
        self._write(self.record.of_registered_run(session))

    def suspect(self, stream_id: int) -> None:
        """Record that an fsync of that stream's log failed."""
        self._write(self.record.suspecting(stream_id))

    def rebuilt(self, stream_id: int) -> None:
        """Record that the log was emptied and is fetched from its leader."""
        self._write(self.record.rebuilt(stream_id))

    def streams_lost(self, revision: int) -> None:
        """Record that the folder of all streams is missing. revision: the metadata's."""
        self._write(self.record.streams_lost(revision))

    def folder_replaced(self, revision: int) -> None:
        """Record that the folder is not that of the node's last run. revision: the metadata's."""
        self._write(self.record.folder_replaced(revision))

    def stop(self) -> None:
        """Record that the run ends cleanly. If that cannot be written, the next start takes the run
        for one that was killed, and scans every log."""
        try:
            self._write(self.record.of_clean_end())
        except StorageError as error:
            logger.error("stop_not_noted", reason=error.message)

    def _write(self, record: RunRecord) -> None:
        while True:
            try:
                write_state(self._disk, self.path, _KIND, self._owner, record.to_dict())
            except StorageFullError as error:
                folder = f"{os.path.dirname(self.path)}/metadata"
                if isinstance(error, NoDescriptorError) or not make_room(folder, RECORD_BYTES):
                    raise
            else:
                break
        self.record = record
