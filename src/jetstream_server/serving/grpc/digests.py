"""Digests of a replica's bytes: replicas with equal digests have equal bytes.

The bytes are read from the file, and both CRCs of each batch are checked. A worker thread reads one
piece of one stream at a time, so that a comparison does not slow down readers.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b

from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.logfiles.scan import check_body
from jetstream_server.log.segment import LogSlice
from jetstream_server.replication.replica import Replica

PIECE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes read for one request: a tenth of a second of a worker thread."""
_STEP_BYTES = 1024 * 1024


class Digests:
    """Digests of any replica on this node."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def digest(
        self, replica: Replica, start_offset: int, end_offset: int
    ) -> pb.DigestReplicaResponse:
        """Compute a digest. Raises OffsetOutOfRangeError, RecordsDamagedError, CorruptBatchError,
        StorageError."""
        replica.check_readable()
        found, offset, length = blake2b(digest_size=16), start_offset, 0
        async with self._reading:
            while offset < end_offset and length < PIECE_BYTES_MAX:
                data = await read_checked(replica, offset, _STEP_BYTES)
                taken, offset = _whole_batches(data, offset, end_offset)
                if not taken:
                    break
                await asyncio.to_thread(found.update, data[:taken])
                length += taken
                if taken < len(data):
                    break
        return pb.DigestReplicaResponse(
            node_id=replica.node_id,
            digest=found.digest() if length else b"",
            next_offset=offset,
            log_start_offset=replica.log.log_start_offset,
            high_watermark=replica.high_watermark,
            cleaned_to=_cleaned_to(replica),
        )


async def read_checked(replica: Replica, offset: int, bytes_max: int) -> bytes:
    """Committed batches as they are stored, from the one that holds `offset` on; b"" at their end.
    Raises the errors of Digests.digest; UnavailableError if compaction was faster: try again."""
    slice_ = replica.read(offset, bytes_max, is_leader=False)
    if slice_ is None:
        return b""
    try:
        return await asyncio.to_thread(_read_checked, replica, slice_)
    except StorageError as error:
        replica.suspect(offset, error)
        raise


def _read_checked(replica: Replica, slice_: LogSlice) -> bytes:
    data = replica.log.pread(slice_)
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        check_body(data, position, header, position)
        position += header.length
    return data


def _whole_batches(data: bytes, offset: int, end_offset: int) -> tuple[int, int]:
    """How many bytes of `data` are batches that end at or before `end_offset`, and where the last
    one ends."""
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        if header.next_offset > end_offset:
            break
        position, offset = position + header.length, header.next_offset
    return position, offset


def _cleaned_to(replica: Replica) -> int:
    if not replica.stream.was_compacted:
        return 0
    try:
        # There may be gaps below this, from the log it was copied from or from a pass under way.
        return replica.log.compacted_below
    except JetstreamError:
        return replica.high_watermark  # Unknown: nothing can be compared.
