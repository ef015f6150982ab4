"""Sends the leader's snapshot file, in pieces, to a follower that lags too far.

The pieces are parts of the leader's snapshot file, with its CRCs: the follower checks the whole
file before it replaces anything. A transfer continues with the file with which it began, even if
the leader compacts meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pysyncobj.config import SERIALIZER_STATE

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Snapshot
from jetstream_server.metadata.raft.snapshot_file import decode_snapshot, snapshot_file

PIECE_BYTES = 256 * 1024
SNAPSHOT_BYTES_MAX = 512 * 1024 * 1024
"""Upper bound on a received snapshot. Ten million streams need a tenth of it. A peer must not make
this node hold more."""

Piece = tuple[bytes, bool, bool]
"""Bytes; whether they are the first; whether they are the last."""


@dataclass(slots=True)
class _Transfer:
    data: bytes
    position: int = 0


class SnapshotSender:
    """The part of pysyncobj's serializer that it uses while it leads (names are pysyncobj's)."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._data = b""
        self._transfers: dict[Any, _Transfer] = {}

    def renew(self) -> None:
        """Use a newer snapshot for transfers that begin from now on."""
        self._data = b""

    def getTransmissionData(self, receiver: Any) -> Piece | None:
        """Raises StorageError."""
        transfer = self._transfers.get(receiver)
        if transfer is None:
            self._data = self._data or snapshot_file(self._directory)
            if not self._data:
                return None
            transfer = self._transfers[receiver] = _Transfer(self._data)
        start = transfer.position
        transfer.position = min(start + PIECE_BYTES, len(transfer.data))
        last = transfer.position == len(transfer.data)
        if last:
            del self._transfers[receiver]
        return transfer.data[start : transfer.position], start == 0, last

    def cancelTransmisstion(self, receiver: Any) -> None:  # its spelling
        self._transfers.pop(receiver, None)

    def checkSerializing(self) -> tuple[int, None]:
        """The driver compacts; pysyncobj must not."""
        return SERIALIZER_STATE.SERIALIZING, None

    def setTransmissionData(self, complete: bool) -> bool:
        """Return whether the pieces, which core.py has collected itself, are complete."""
        return complete


class SnapshotReceiver:
    """Collects one snapshot's pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._snapshot: Snapshot | None = None

    def add(self, piece: bytes, first: bool, last: bool) -> bool:
        """Add a piece. Returns whether a valid snapshot is complete. Damaged or oversized ones are
        dropped."""
        if first:
            self._pieces.clear()
            self._size = 0
        elif not self._pieces:
            return False
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > SNAPSHOT_BYTES_MAX:
            self._pieces.clear()
            return False
        if not last:
            return False
        data = b"".join(self._pieces)
        self._pieces.clear()
        try:
            self._snapshot = decode_snapshot(data, "a snapshot from the metadata leader")
        except StorageError:
            return False
        return bool(self._snapshot.base)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that `add` has completed."""
        assert self._snapshot is not None, "add() has returned True"
        return self._snapshot

    def take(self) -> Snapshot:
        """Return the snapshot, and forget it."""
        assert self._snapshot is not None, "add() has returned True"
        snapshot, self._snapshot = self._snapshot, None
        return snapshot
