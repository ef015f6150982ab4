"""Decrypts encrypted records for readers.

Decrypted batches go through this process's memory, as they do over TLS, and are not sent from their
files. Nodes and backups get batches as they are stored.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from jetstream_protocol.errors import StorageError
from jetstream_server.log.encryption import CannotDecryptError
from jetstream_server.log.segment import LogSlice
from jetstream_server.net.frame_connection import UnreadableSliceError
from jetstream_server.replication.replica import Replica

DECRYPTED_BYTES_MAX: Final = 1024 * 1024
"""Upper bound on one answer, unless one batch is longer: each connection may hold one answer in
memory."""


def may_be_encrypted(replica: Replica) -> bool:
    """Whether any batch of the replica's log may be encrypted."""
    return replica.log.encryption is not None


def read_plain(replica: Replica, slices: Sequence[LogSlice], *, partly: bool) -> bytes:
    """Read and decrypt the batches of the slices. Blocks. For any thread.

    partly: for a single slice: the batches before the first one that cannot be decrypted are
    enough. Raises StorageError, UnreadableSliceError.
    """
    return b"".join(
        decrypt_batches(replica, _read(replica, each), each.base_offset, partly=partly)
        for each in slices
    )


def decrypt_batches(replica: Replica, data: bytes, offset: int, *, partly: bool = False) -> bytes:
    """Decrypt whole batches of a replica's log. offset: where they begin. Raises StorageError,
    which names the stream and the node."""
    encryption = replica.log.encryption
    if encryption is None:
        return data
    try:
        return encryption.decrypt_all(data, partly=partly)
    except CannotDecryptError as error:
        raise StorageError(
            f"node {replica.node_id} cannot decrypt stream {replica.stream.name!r} from offset "
            f"{offset} on: {error.message}"
        ) from error


def _read(replica: Replica, slice_: LogSlice) -> bytes:
    try:
        return replica.log.pread(slice_)
    except StorageError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError):
            cause = OSError(errno.EIO, error.message)
        raise UnreadableSliceError(slice_, cause) from cause
