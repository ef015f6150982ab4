"""Where the record of a node's runs is kept (trust.py says what it is for): a state file."""

from __future__ import annotations

from pathlib import Path

from jetstream_server.log.checkpoint import read_state, write_state
from jetstream_server.log.disk import Disk
from jetstream_server.replication.trust import RunRecord

_KIND = "runs"
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Of the machine: another one after each of its starts."""
    return Path(_BOOT_ID_PATH).read_text().strip()


class RunBook:
    """The record, durable after every method. All raise StorageError when the disk fails them."""

    def __init__(self, disk: Disk, path: str, owner: str) -> None:
        self._disk = disk
        self._path = path
        self._owner = owner
        self.record = RunRecord.from_dict(read_state(disk, path, _KIND, owner))

    def begin(self, session: str, boot_id: str) -> None:
        """This run begins, and will register as `session`."""
        self._write(self.record.begun(session, boot_id))

    def registered(self, session: str) -> None:
        self._write(self.record.registered(session))

    def suspect(self, stream_id: int) -> None:
        """An fsync of that stream's log failed."""
        self._write(self.record.suspecting(stream_id))

    def rebuilt(self, stream_id: int) -> None:
        """That log was emptied, and is fetched again from its leader."""
        self._write(self.record.rebuilt(stream_id))

    def streams_lost(self, revision: int) -> None:
        """The folder that holds all streams is missing; the metadata is at that revision."""
        self._write(self.record.streams_lost(revision))

    def stop(self) -> None:
        """The run ends cleanly."""
        self._write(self.record.stopped())

    def _write(self, record: RunRecord) -> None:
        write_state(self._disk, self._path, _KIND, self._owner, record.to_dict())
        self.record = record
