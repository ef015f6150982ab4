"""Fills a new stream with records that already have offsets and times.

Records are added in order, and sent in requests of about REQUEST_BYTES. Records that the source
does not have (deleted, compacted) leave a gap. Batches without records cover the gap, and readers
skip it.

A restore that was interrupted goes on where the stream's log ends. After a failure with an unknown
outcome, the log's end shows what was done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.records import Records
from jetstream_client.values.types import Stream
from jetstream_protocol.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    Batch,
    BatchHeader,
    EncodedBatch,
    decode_header,
    encode,
    with_flags,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.restored_batch import RESTORE_BYTES_MAX, filler
from jetstream_protocol.times import to_timestamp_us
from jetstream_protocol.types import WallUs

REQUEST_BYTES = 2 * 1024 * 1024
BATCH_BYTES = 1024 * 1024
BATCH_RECORDS = 16_384
_GAP_MAX = RECORDS_MAX // 2
"""A longer gap is covered by batches of its own: a batch covers RECORDS_MAX offsets at most."""
_SPARE_BYTES = 1024
"""Room for the columns of a batch of one record, besides the record's bytes."""
_SETTLE_SECONDS = 0.2


def check_restorable(data: bytes, position: int) -> None:
    """Raises MessageTooLargeError for the stored batch there if `put_batches` could not restore
    it."""
    header = decode_header(data, position)
    if header.length <= RESTORE_BYTES_MAX:
        return
    check_records(_divide(header, data, position))


def check_records(records: Records) -> None:
    """Raises MessageTooLargeError for a record that `put` could not restore."""
    for row, size in enumerate(records.sizes()):
        if size > RESTORE_BYTES_MAX - _SPARE_BYTES:
            # With a gap before it and another time than its batch: so it takes most.
            base, timestamp = records.offsets[row] - 1, records.timestamps[row] + 1
            _encode(records.rows(row, row + 1), base, timestamp)


def _divide(header: BatchHeader, data: bytes, position: int) -> Records:
    """The records of a stored batch. Raises MessageTooLargeError if they are encrypted."""
    if header.flags & Flags.ENCRYPTED:
        raise MessageTooLargeError(
            f"the batch at offset {header.base_offset} is encrypted, so that it cannot be divided, "
            f"and of {header.length} bytes: a restore takes {RESTORE_BYTES_MAX} at a time; back "
            "the stream up to Parquet instead"
        )
    return Records.of_batch(Batch.decode(data, position))


class _Sent(NamedTuple):
    base_offset: int
    next_offset: int
    data: bytes


class RestoreWriter:
    """Call `put` with records, or `put_batches`, in order, and `flush` at the end. `next_offset` is
    where the next record is expected; earlier records are in the stream already, and are skipped.
    """

    def __init__(
        self, client: Client, stream: Stream, *, now_us: Callable[[], int] | None = None
    ) -> None:
        description = client.describe_stream(stream)
        if description.log_end_offset is None:
            raise UnavailableError(f"stream {stream.name!r} has no leader that answers: try again")
        self._client = client
        self._stream = stream
        self._now_us = now_us or (lambda: time.time_ns() // 1000)
        self._queue: deque[_Sent] = deque()
        self._queued_bytes = 0
        last = description.last_append
        self._timestamp = 0 if last is None else to_timestamp_us(last)
        self.next_offset: int = description.log_end_offset

    def put(self, records: Records) -> None:
        """Records with growing offsets. Raises as `Client.restore_batches`."""
        start = sum(1 for offset in records.offsets if offset < self.next_offset)
        sizes = records.sizes()
        while start < len(records):
            stop = _batch_end(records, sizes, start)
            self._put_batch(records.rows(start, stop))
            start = stop

    def put_batches(self, data: bytes) -> None:
        """Whole stored batches, back to back. Those that a request cannot hold are divided."""
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            end = position + header.length
            if header.next_offset > self.next_offset:
                if self._is_divided(header):
                    self.put(_divide(header, data, position))
                    self._cover(header.next_offset, min(header.append_timestamp, self._now_us()))
                else:
                    self._cover(header.base_offset, header.append_timestamp)
                    self._put_stored(header, data[position:end])
            position = end

    def _is_divided(self, header: BatchHeader) -> bool:
        """Whether its records become new batches: also if the clock of its leader was ahead. They
        keep their times, and the log does not get that one."""
        is_encrypted = bool(header.flags & Flags.ENCRYPTED)
        return (
            header.base_offset < self.next_offset
            or header.length > RESTORE_BYTES_MAX
            or (header.append_timestamp > self._now_us() and not is_encrypted)
        )

    def _put_stored(self, header: BatchHeader, batch: bytes) -> None:
        if header.flags & Flags.AFTER_GAP:
            batch = with_flags(batch, header.flags & ~Flags.AFTER_GAP)
        self._timestamp = max(self._timestamp, header.append_timestamp)
        self._enqueue(_Sent(header.base_offset, header.next_offset, batch))

    def _put_batch(self, records: Records) -> None:
        first, last = records.offsets[0], records.offsets[-1]
        newest = min(max(records.timestamps), self._now_us())
        if first - self.next_offset > _GAP_MAX:
            self._cover(first, min(records.timestamps[0], newest))
        base = self.next_offset
        self._timestamp = max(self._timestamp, newest, 0)
        encoded = _encode(records, base, self._timestamp)
        encoded.stamp(base, 0, WallUs(self._timestamp))
        self._enqueue(_Sent(base, last + 1, encoded.to_bytes()))

    def _cover(self, offset: int, timestamp: int) -> None:
        """Batches without records up to `offset`."""
        self._timestamp = max(self._timestamp, timestamp, 0)
        for data in filler(self.next_offset, offset, WallUs(self._timestamp)):
            header = decode_header(data)
            self._enqueue(_Sent(header.base_offset, header.next_offset, data))

    def cover(self, offset: int) -> None:
        """Nothing more comes before `offset`: the stream's next record is to have it."""
        self._cover(offset, self._timestamp)

    def _enqueue(self, batch: _Sent) -> None:
        if self._queued_bytes + len(batch.data) > REQUEST_BYTES:
            self.flush()
        self._queue.append(batch)
        self._queued_bytes += len(batch.data)
        self.next_offset = batch.next_offset

    def flush(self) -> None:
        """Returns once everything that was put is committed."""
        deadline = time.monotonic() + self._client.config.timeout
        while self._queue:
            data = b"".join([batch.data for batch in self._queue])
            try:
                self._client.restore_batches(self._stream, data)
            except (PreconditionFailedError, UnknownOutcomeError) as error:
                # Perhaps an attempt whose answer was lost has done it, or a part of it.
                if not self._settle() and time.monotonic() > deadline:
                    raise error from None
            else:
                self._queue.clear()
        self._queued_bytes = 0

    def _settle(self) -> bool:
        """Drop from the queue what the log holds; whether it was anything."""
        time.sleep(_SETTLE_SECONDS)
        found = self._client.describe_stream(self._stream)
        if not found.restoring:
            raise PreconditionFailedError(
                f"stream {found.name!r} takes its records from its subject: only a stream that is "
                "being restored is written to"
            )
        if found.log_end_offset is None or found.high_watermark != found.log_end_offset:
            return False
        done = 0
        while self._queue and self._queue[0].next_offset <= found.log_end_offset:
            self._queue.popleft()
            done += 1
        if self._queue and self._queue[0].base_offset != found.log_end_offset:
            raise InvalidRequestError(
                f"stream {found.name!r} ends at offset {found.log_end_offset}, and the next batch "
                f"begins at {self._queue[0].base_offset}: does somebody else write to it?"
            )
        return done > 0


def _encode(records: Records, base: int, timestamp: int) -> EncodedBatch:
    """A batch from offset `base` on, appended at `timestamp`. Raises MessageTooLargeError."""
    first, last = records.offsets[0], records.offsets[-1]
    is_dense = last - base + 1 == len(records)
    has_times = any(each != timestamp for each in records.timestamps)
    encoded = encode(
        records.values,
        records.subjects,
        keys=records.keys if any(key is not None for key in records.keys) else None,
        header_blocks=records.header_blocks if any(records.header_blocks) else None,
        timestamps=records.timestamps if has_times else None,
        offset_deltas=None if is_dense else [offset - base for offset in records.offsets],
        last_offset_delta=last - base,
    )
    if encoded.length > RESTORE_BYTES_MAX:
        raise MessageTooLargeError(
            f"the record at offset {first} is too large: a restore takes records of up to "
            f"{RESTORE_BYTES_MAX - HEADER_BYTES - _SPARE_BYTES} bytes"
        )
    return encoded


def _batch_end(records: Records, sizes: list[int], start: int) -> int:
    """Where the batch that begins with row `start` ends: by its bytes, its records and its gaps."""
    offsets, total, stop = records.offsets, 0, start
    while stop < len(records) and stop - start < BATCH_RECORDS:
        is_too_long = total + sizes[stop] > BATCH_BYTES
        is_too_wide = offsets[stop] - offsets[start] >= _GAP_MAX
        if stop > start and (is_too_long or is_too_wide):
            break
        total += sizes[stop]
        stop += 1
    return stop
