"""A digest of the final state of a compacted log: of the last record of each key.

Replicas compact at their own times, so the bytes of two replicas differ although their readers end
in the same state. The digest covers offset, time, subject, key, headers and value of each record
without a key, and of each that no later record replaces. It is a sum, so it does not depend on
batches. Tombstones do not count, because a replica may have removed them.

The log is read twice: first only keys and offsets, after the compacted part; then the remaining
records are hashed one by one. Memory: KEYS_MAX keys. If there are more, the keys are divided into
parts by their hashes, and the log is read for each part.

Everything is read from the files, and both CRCs of each batch are checked. Worker threads share
Python's lock with the event loop: after each step the work pauses for as long as the step took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import Final

from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.decryption import decrypt_batches
from jetstream_server.serving.grpc.digests import read_checked

KEYS_MAX: Final = 1 << 18
"""Keys in memory at a time: about 40 MB."""
_STEP_BYTES: Final = 256 * 1024
_READS_MAX: Final = 10
"""Attempts to read one place in the log: compaction may swap the file meanwhile."""
_KEYS: Final = int(Flags.KEYS)
_SUMS: Final = 1 << 256
_HEAD: Final = Struct("<qqiiii")
"""Offset, time, and the lengths of subject, key, headers and value; -1: there is none."""
Look = Callable[[Batch], None]


class _Part:
    """The last offset of each key whose hash is `index` modulo `count`."""

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        self.count = count
        self.latest: dict[bytes, int] = {}

    def holds(self, key: bytes) -> bool:
        return int.from_bytes(key[:4]) % self.count == self.index

    def add(self, end_offset: int, batch: Batch) -> None:
        if batch.header.flags & _KEYS:
            for key, offset in zip(hash_keys(batch.keys()), batch.offsets(), strict=True):
                if key is not None and offset < end_offset and self.holds(key):
                    self.latest[key] = offset

    def halve(self) -> _Part:
        """Keep half of the keys. Returns the part with the other half."""
        other = _Part(self.index + self.count, 2 * self.count)
        self.count *= 2
        self.latest = {key: offset for key, offset in self.latest.items() if self.holds(key)}
        return other


class KeyDigest:
    """The digest of the records in [start, end) of one replica. `steps` does the work; then
    `digest` and `records` are set. keys_max: see the module. progress: the last one of `steps`,
    noted by who calls it."""

    def __init__(
        self, replica: Replica, start_offset: int, end_offset: int, keys_max: int = KEYS_MAX
    ) -> None:
        self._replica = replica
        self._start = start_offset
        self._end = end_offset
        self._keys_max = keys_max
        self._sum = 0
        self._done = 0.0
        self.progress = 0.0
        self.records = 0

    @property
    def digest(self) -> bytes:
        summed = self._sum.to_bytes(32, "little") + self.records.to_bytes(8, "little")
        return blake2b(summed, digest_size=16).digest()

    async def steps(self) -> AsyncIterator[float]:
        """Do the work, and yield the progress after each step.

        Raises InvalidRequestError for an end that is not committed here, OffsetOutOfRangeError,
        RecordsDamagedError, CorruptBatchError, and StorageError for records that cannot be read
        or decrypted.
        """
        if self._end > self._replica.high_watermark:
            raise InvalidRequestError(
                f"node {self._replica.node_id} knows that records up to offset "
                f"{self._replica.high_watermark} are committed, not up to {self._end}"
            )
        parts = [_Part(0, 1)]
        while parts:
            part = parts.pop()
            mapping = partial(self._map, part, parts)
            async for done in self._over(self._mapped_from(), mapping):
                yield self._done + done / 2 / part.count
            async for done in self._over(self._start, partial(self._hash, part)):
                yield self._done + (0.5 + done / 2) / part.count
            self._done += 1 / part.count

    def _mapped_from(self) -> int:
        """The offset below which no two records have the same key."""
        try:
            return max(self._start, self._replica.log.compaction.state.cleaned_to)
        except JetstreamError:
            return self._start

    async def _over(self, start: int, look: Look) -> AsyncIterator[float]:
        """Call `look` with each batch, in a thread. Yields the progress."""
        offset, clock = start, asyncio.get_running_loop().time
        while offset < self._end:
            begun = clock()
            data = await self._read(offset)
            if not data:
                break
            offset = await asyncio.to_thread(self._look, data, offset, look)
            yield min(1.0, (offset - start) / (self._end - start))
            await asyncio.sleep(clock() - begun)

    async def _read(self, offset: int) -> bytes:
        for reads_left in reversed(range(_READS_MAX)):
            try:
                return await read_checked(self._replica, offset, _STEP_BYTES)
            except UnavailableError:
                if not reads_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _look(self, data: bytes, offset: int, look: Look) -> int:
        """Call `look` with the batches in `data`. Returns the offset where the data ends."""
        for batch in iterate(decrypt_batches(self._replica, data, offset)):
            look(batch)
            offset = batch.header.next_offset
        return offset

    def _map(self, part: _Part, parts: list[_Part], batch: Batch) -> None:
        """Add the batch to `part`; what is too much for it goes to `parts`."""
        part.add(self._end, batch)
        while len(part.latest) > self._keys_max:
            parts.append(part.halve())

    def _hash(self, part: _Part, batch: Batch) -> None:
        keys = batch.keys()
        offsets = batch.offsets()
        wanted = [
            index
            for index, key in enumerate(hash_keys(keys))
            if self._start <= offsets[index] < self._end
            and (
                part.index == 0
                if key is None
                else part.holds(key) and part.latest.get(key, -1) <= offsets[index]
            )
        ]
        if wanted:
            values, headers = batch.values(), batch.header_blocks()
            subjects, times = batch.subjects(), batch.timestamps()
            for at in wanted:
                if values[at] is not None or keys[at] is None:
                    columns = (subjects[at], keys[at], headers[at], values[at])
                    self._sum = (self._sum + _number(offsets[at], times[at], columns)) % _SUMS
                    self.records += 1


def hash_keys(keys: Sequence[bytes | None]) -> list[bytes | None]:
    """16 bytes for each key, so that the number of keys bounds the memory. The chance that two keys
    share them is negligible for any amount of data."""
    return [None if key is None else blake2b(key, digest_size=16).digest() for key in keys]


def _number(offset: int, timestamp: int, columns: tuple[bytes | None, ...]) -> int:
    lengths = (-1 if column is None else len(column) for column in columns)
    head = _HEAD.pack(offset, timestamp, *lengths)
    whole = b"".join((head, *(column or b"" for column in columns)))
    return int.from_bytes(blake2b(whole, digest_size=32).digest(), "little")
