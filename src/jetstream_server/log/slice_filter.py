"""Selects the batches of a slice that a reader's filter cannot rule out, in few slices.

A batch is left out only if its checksums are right and nothing in it is wanted. Damaged bytes are
kept: the reader finds the damage and fetches again, as it does without a filter. Batches that
cannot be decrypted are kept too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jetstream_protocol.batch import Batch, BatchHeader, decode_header
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.encryption import CannotDecryptError, Encryption
from jetstream_server.log.segment import LogSlice

GAP_BYTES_MAX = 32 * 1024
"""Up to this many bytes between two batches are sent along: another slice would cost more."""


class SliceFilter:
    """Goes over one slice, batch by batch. `kept` holds the slices to send so far.

    bytes_max: of the kept batches; if `takes_first`, the first batch is kept whole even if it is
    longer. next_offset: after the last batch that was handled. looked_at: bytes, uncompressed.
    """

    def __init__(
        self,
        found: LogSlice,
        data: bytes,
        wanted: RecordFilter,
        bytes_max: int,
        takes_first: bool,
        encryption: Encryption | None = None,
    ) -> None:
        self._encryption = encryption
        self._found = found
        self._data = data
        self._wanted = wanted
        self._room = bytes_max
        self._takes_any = takes_first
        self.kept: list[LogSlice] = []
        self.next_offset = found.base_offset
        self.looked_at = 0

    def steps(self) -> Iterator[None]:
        """Handle one batch after the other, until the slice or the room is used up."""
        position = 0
        while position < len(self._data):
            try:
                header = decode_header(self._data, position)
            except CorruptBatchError:
                rest = len(self._data) - position
                self._keep(position, rest, self.next_offset, self._found.next_offset)
                return
            if self._may_be_wanted(position, header) and not self._keep_batch(position, header):
                return
            self.looked_at += max(header.length, header.uncompressed_length)
            self.next_offset = header.next_offset
            position += header.length
            yield

    def _may_be_wanted(self, position: int, header: BatchHeader) -> bool:
        try:
            if self._encryption is None:
                return self._wanted.may_hold(Batch.decode(self._data, position))
            batch = self._encryption.decrypt(self._data[position : position + header.length])
            return self._wanted.may_hold(Batch.decode(batch))
        except (CorruptBatchError, CannotDecryptError):
            return True

    def _keep_batch(self, position: int, header: BatchHeader) -> bool:
        return self._keep(position, header.length, header.base_offset, header.next_offset)

    def _keep(self, position: int, length: int, base_offset: int, next_offset: int) -> bool:
        """Keep those bytes; False: there is no room for them."""
        start = self._found.position + position
        last = self.kept[-1] if self.kept else None
        gap = start - (last.position + last.length) if last else 0
        joins = last is not None and gap <= GAP_BYTES_MAX
        cost = length + (gap if joins else 0)
        if cost > self._room and not self._takes_any:
            return False
        self._takes_any = False
        self._room -= cost
        if last is not None and joins:
            longer = replace(last, length=last.length + cost, next_offset=next_offset)
            self.kept[-1] = longer
        else:
            self.kept.append(
                replace(
                    self._found,
                    position=start,
                    length=length,
                    base_offset=base_offset,
                    next_offset=next_offset,
                )
            )
        self.next_offset = next_offset
        return True
