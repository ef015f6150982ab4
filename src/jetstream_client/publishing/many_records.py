"""The records of one `publish_many` on their way into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from jetstream_client.publishing.deliveries import BatchDelivery, ManyDelivery
from jetstream_client.publishing.partitioner import rows_by_partition
from jetstream_client.publishing.record_accumulator import ends_of
from jetstream_client.publishing.sender import Sender
from jetstream_client.publishing.senders import Senders
from jetstream_client.values.records import one_a_record
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnknownOutcomeError

_Column = Sequence[bytes | None]


class Share:
    """The records of one call that go to one sender, or, without a key, to whichever is next.

    rows: their places in the call; None: they are all there are. blocks: the headers of each; None:
    there are none. start: the first that is not in a batch yet.
    """

    def __init__(
        self,
        senders: Senders,
        sender: Sender | None,
        values: _Column,
        keys: _Column | None,
        rows: Sequence[int] | None,
        blocks: Sequence[bytes] | None,
    ) -> None:
        self._senders = senders
        self._sender = sender
        self.values = values
        self.keys = keys
        self.rows = rows
        self.blocks = blocks
        self.ends = ends_of(values, keys, blocks)
        self.start = 0

    @property
    def left(self) -> int:
        return len(self.values) - self.start

    def next_sender(self) -> Sender:
        if self._sender is not None:
            return self._sender
        before = self.ends[self.start - 1] if self.start else 0
        return self._senders.without_key(self.ends[self.start] - before)


class ManyRecords:
    """Shared out when it is made. Raises InvalidRequestError and MessageTooLargeError before
    anything is added."""

    def __init__(
        self,
        senders: Senders,
        subject: str,
        values: _Column,
        keys: _Column | None,
        blocks: Iterable[bytes] | None,
        trace: bytes,
    ) -> None:
        """blocks: the headers of each record; None: there are none. trace: those of the first
        record in each stream, if it has no others; b"": none."""
        blocks = None if blocks is None else one_a_record("header block", blocks)
        if blocks is not None and len(blocks) != len(values):
            raise InvalidRequestError(f"{len(values)} values and {len(blocks)} header blocks")
        self._subject = subject
        self._is_keyed = senders.is_keyed
        self._parts: list[BatchDelivery] = []
        self._rows: list[Sequence[int]] = []
        every = senders.all
        if not senders.is_keyed:
            found = _blocks(blocks, trace, range(len(values)))
            self.shares = [Share(senders, every[0], values, keys, None, found)]
        elif keys is None:
            everything = range(len(values))
            found = _blocks(blocks, trace, everything)
            self.shares = [Share(senders, None, values, None, everything, found)]
        else:
            self.shares = [
                Share(
                    senders,
                    None if number < 0 else every[number],
                    [values[row] for row in rows],
                    None if number < 0 else [keys[row] for row in rows],
                    rows,
                    _blocks(blocks, trace, rows),
                )
                for number, rows in rows_by_partition(keys, len(every)).items()
            ]
        for share in self.shares:
            every[0].buffer.check(share.ends)

    def put(self, share: Share, sender: Sender) -> bool:
        """Add as many of the share as fit into a batch of the sender; False: it has no room."""
        start = share.start
        found = sender.buffer.put_many(share.values, share.keys, share.ends, start, share.blocks)
        if found is None:
            return False
        batch, place, stop = found
        self._parts.append(BatchDelivery(batch, self._subject, place, stop - start))
        if share.rows is not None:
            self._rows.append(share.rows[start:stop])
        share.start = stop
        return True

    @contextmanager
    def being_added(self) -> Iterator[None]:
        """Around all of them. **safety** A caller that repeats a call of which a part was added
        would store that twice: the error says so."""
        try:
            yield
        except JetstreamError as error:
            left = sum(share.left for share in self.shares)
            count = sum(len(share.values) for share in self.shares)
            if left == count:
                raise
            raise UnknownOutcomeError(
                f"{count - left} of {count} records were added, and are sent, before this: "
                f"{error.message}"
            ) from error

    def delivery(self) -> ManyDelivery:
        return ManyDelivery(self._parts, self._rows if self._is_keyed else None)


def _blocks(
    blocks: Sequence[bytes] | None, trace: bytes, rows: Sequence[int]
) -> Sequence[bytes] | None:
    if blocks is not None:
        return [blocks[row] for row in rows]
    return [trace] + [b""] * (len(rows) - 1) if trace and rows else None
