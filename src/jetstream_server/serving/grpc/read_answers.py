"""The answers of the `Reads` service: the bytes of a slice, or the records in it.

Clients that read much should use the data plane, where an answer costs no memory
(response_memory.py).
"""

from __future__ import annotations

import asyncio
import errno
import os
from itertools import islice
from typing import NamedTuple

from jetstream_protocol import batch as batches
from jetstream_protocol.errors import CorruptBatchError, StorageError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.disk_errors import lacks_descriptors, storage_error
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.net.page_cache import make_resident
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.unreadable import unread_error
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.decryption import decrypt_batches, may_be_encrypted
from jetstream_server.serving.long_poll import FetchPosition, LongPoll
from jetstream_server.serving.reader_position import position_after

DECODED_RECORDS_MAX = 10_000
"""Upper bound on records in one decoded answer: about 30 ms of the event loop."""


class Answer(NamedTuple):
    """last_epoch: leader epoch of the record before the response's `next_offset`; -1: unknown."""

    response: pb.FetchResponse
    last_epoch: int


async def answer(
    fetches: LongPoll,
    replica: Replica,
    found: LogSlice | None,
    position: FetchPosition,
    decoding: asyncio.Lock | None = None,
) -> Answer:
    """The answer to a fetch: decoded records, or batches. decoding: limits how many answers are
    decoded at a time.

    Raises StorageError, CorruptBatchError, StreamNotFoundError when the stream was deleted
    meanwhile, UnavailableError when the records were removed meanwhile, and the errors of
    `LongPoll.check_again`.
    """
    response = pb.FetchResponse(
        stream_id=replica.stream.id,
        log_start_offset=start_offset(replica.stream, replica.log),
        high_watermark=replica.high_watermark,
        leader_epoch=replica.stream.leader_epoch,
        next_offset=position.offset,
    )
    if found is None:
        return Answer(response, position.last_epoch)
    try:
        data = await _read_for(replica, found)
    except UnavailableError:
        fetches.check_again(replica, position)  # Perhaps they were cut off.
        raise
    fetches.check_again(replica, position)
    if may_be_encrypted(replica):
        data = await asyncio.to_thread(decrypt_batches, replica, data, found.base_offset)
    below = found.next_offset
    if decoding is not None:
        # One decode per iteration of the loop, whatever the number of callers.
        async with decoding:
            response.messages.extend(_messages(replica, data, position.offset, found))
            await asyncio.sleep(0)
        if response.messages:
            below = response.messages[-1].offset + 1
    end = position_after(data, below)
    if end is None:
        error = unread_error(replica.stream, replica.node_id, position.offset)
        replica.suspect(position.offset, error)
        raise error
    if decoding is None:
        response.batches = data[: end.length]
    # A decoded answer may end before the last batch does.
    response.next_offset = below if response.messages else end.next_offset
    return Answer(response, end.last_epoch)


async def _read_for(replica: Replica, found: LogSlice) -> bytes:
    """Read a slice. Raises the errors of `answer`. Unreadable bytes are reported for repair."""
    try:
        return await _read(found)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            replica.check_readable()  # The stream was probably deleted meanwhile.
        if found.is_gone:
            raise UnavailableError(
                "the records were removed or compacted while they were read; try again"
            ) from error
        replica.suspect(found.base_offset, error)
        done = "" if lacks_descriptors(error.__cause__) else "the file is inspected, "
        raise UnavailableError(f"{error.message}; {done}try again") from error


async def _read(found: LogSlice) -> bytes:
    """The bytes of a slice, read without blocking the loop on a cold disk."""
    try:
        fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await make_resident(fd, found.position, found.length)
            found.check_is_there()
            data = os.pread(fd, found.length, found.position)
            if len(data) < found.length:
                raise OSError(errno.EIO, "the file ends early")
            return data
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error(error, f"reading {found.path}") from error


def _messages(replica: Replica, data: bytes, offset: int, found: LogSlice) -> list[pb.Message]:
    """The records of whole batches from `offset` on, at most DECODED_RECORDS_MAX, up to bad bytes,
    which are reported for repair. Raises CorruptBatchError if the first bytes are bad."""
    messages: list[pb.Message] = []
    try:
        _decode(data, offset, found.path, messages)
    except CorruptBatchError as error:
        at = messages[-1].offset + 1 if messages else offset
        replica.suspect(at, error)
        if not messages:
            raise unread_error(replica.stream, replica.node_id, at) from None
    return messages


def _decode(data: bytes, offset: int, path: str, messages: list[pb.Message]) -> None:
    for batch in batches.iterate(data, file=path):
        rows = zip(
            batch.offsets(),
            batch.timestamps(),
            batch.subjects(),
            batch.keys(),
            batch.values(),
            batch.header_blocks(),
            strict=True,
        )
        room = DECODED_RECORDS_MAX - len(messages)
        wanted = (row for row in rows if row[0] >= offset)
        messages += [
            pb.Message(
                offset=at, timestamp_us=time, subject=subject, key=key, value=value,
                header_block=block,
            )
            for at, time, subject, key, value, block in islice(wanted, room)
        ]  # fmt: skip
        if len(messages) == DECODED_RECORDS_MAX:
            break
