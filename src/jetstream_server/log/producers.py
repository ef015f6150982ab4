"""What a log remembers so that nothing is stored twice: producers' last batches, message ids.

    batch of a producer ──> check ──> append it · the original · OutOfSequenceError
    message with an id  ──> offset_of ──> append it · the original's offset

A *producer* numbers its batches from 0, one by one. The last five of each are remembered: it has
at most five on their way, so whichever it repeats is among them. A *message id* (`Nats-Msg-Id`) is
remembered for the stream's duplicate window, the newest `MESSAGE_IDS_MAX` at most.

Everything here but the times is a function of the batches in the log: the leader and its
followers `note` each batch they append, and `truncate` as their logs are. So whoever is elected
knows what is in its own log without reading it, and `producers_file.py` can save and rebuild it.

Invariants.
* **safety** What is remembered of an offset is what the log holds there: nothing at or behind the
  log end, and of a truncated producer where it stood before. Whether that is *committed* is the
  caller's to ask, before a duplicate is acknowledged.
* **safety** A producer never skips a sequence. One that is not known begins with 0: whatever else
  it sends, batches before it may be on their way, or lost with a failover and still to be repeated,
  and could not be stored behind a later one.

No clock and no I/O. Times are the log's (log_time.py, µs): append timestamps are of wall clocks
that may be hours apart.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from jetstream_protocol.batch import COMPRESSION_MASK, HEADER_BYTES, Batch, BatchHeader
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, OutOfSequenceError
from jetstream_server.log.log_time import LogTime, LogTimeImage

BATCHES_KEPT: Final = 5
"""Per producer; what publishers may have on their way is bounded by it."""
PRODUCERS_MAX: Final = 10_000
"""Per stream: about 10 MiB. Beyond it the one that was silent longest is forgotten."""
IDLE_US: Final = 24 * 3600 * 1_000_000
"""A producer that was silent for so long is gone; no publisher retries for a day."""
MESSAGE_IDS_MAX: Final = 1 << 17
"""Per stream: about 30 MiB. A thousand messages a second fill the default window of 120 s."""
ID_BYTES_MAX: Final = 64
"""Remembered as they are; a UUID has 36. Of longer ones a digest is."""
DUPLICATE_WINDOW_US: Final = 120 * 1_000_000

LOST: Final = 2**31 - 1
"""The last sequence of a producer of which more was truncated away than was remembered. None comes
after it."""

_HEADERS: Final = int(Flags.HEADERS)
# Ids are in batches that leaders made of messages: those they never compress, and a producer's
# batch with an id in it they refuse.
_MAY_HOLD_IDS: Final = _HEADERS | COMPRESSION_MASK
_NAME: Final = b"Nats-Msg-Id"
# As ingest reads it (headers.py): only in a block that follows the grammar does it mean anything.
_MESSAGE_ID: Final = re.compile(rb"\r\n" + _NAME + rb"[ \t]*+:[ \t]*+([^\r\n\x00]*+)\r\n")


_CONCERNS: Final = struct.Struct("<6xH44xiq")  # flags, producer sequence, producer id


def concerns(header: bytes | bytearray) -> bool:
    """Whether a batch with this header, as bytes, may have to be noted: a fraction of the cost of
    decoding it, and most need not be."""
    flags, _, producer_id = _CONCERNS.unpack_from(header)
    return bool(producer_id >= 0 or flags & _MAY_HOLD_IDS == _HEADERS)


def may_hold_ids(header: BatchHeader) -> bool:
    return header.flags & _MAY_HOLD_IDS == _HEADERS


class StoredBatch(NamedTuple):
    """A batch of a producer in the log: the offsets [base_offset, next_offset)."""

    sequence: int
    base_offset: int
    next_offset: int


class Producer(NamedTuple):
    """batches: the last ones, oldest first, in consecutive sequence; none of a producer whose last
    ones were truncated away. time_us: of its last batch. known_from: the log has to reach so far
    for the batch before those to be in it."""

    last_sequence: int
    time_us: int
    batches: tuple[StoredBatch, ...]
    known_from: int = 0


class MessageId(NamedTuple):
    """A record that carries an id; known_by: the id, or the digest of a long one."""

    offset: int
    time_us: int
    known_by: bytes


def _known_by(message_id: bytes) -> bytes:
    """What an id is remembered by: a header may be as long as a message."""
    if len(message_id) <= ID_BYTES_MAX:
        return message_id
    return blake2b(message_id, digest_size=32).digest()


class Producers:
    """See the module. Owned by the log's thread; `image` may be taken by another one that holds
    the lock under which the log calls whatever changes it."""

    __slots__ = ("_entries", "_message_ids", "_producers", "_time", "window_us")

    def __init__(
        self,
        window_us: int = DUPLICATE_WINDOW_US,
        producers: tuple[tuple[int, Producer], ...] = (),
        message_ids: tuple[MessageId, ...] = (),
        time: LogTimeImage | None = None,
    ) -> None:
        self.window_us = window_us
        """How long message ids are remembered; 0: not at all."""
        self._producers: OrderedDict[int, Producer] = OrderedDict(producers)  # least recent first
        self._message_ids: deque[MessageId] = deque()  # oldest first
        self._entries: dict[bytes, MessageId] = {}  # the newest of each id
        self._time = LogTime(time)
        for entry in message_ids:
            self._remember(entry)

    # Asked by the leader before it appends.

    def check(self, producer_id: int, sequence: int) -> StoredBatch | None:
        """None: append it, it is the producer's next. Otherwise what it is a duplicate of.

        Raises OutOfSequenceError for a batch that is neither.
        """
        producer = self._producers.get(producer_id)
        if producer is None and sequence == 0:
            return None
        if producer is None or producer.last_sequence == LOST:
            raise OutOfSequenceError(
                f"batch {sequence} of producer {producer_id}, of which too little is known here: "
                "begin with sequence 0, under a new id if that is not its first"
            )
        if sequence == producer.last_sequence + 1:
            return None
        for stored in producer.batches:
            if stored.sequence == sequence:
                return stored
        raise OutOfSequenceError(
            f"batch {sequence} of producer {producer_id}, whose last one here is "
            f"{producer.last_sequence}: send {producer.last_sequence + 1} next"
        )

    def offset_of(self, message_id: bytes, now_us: int) -> int | None:
        """The offset of the record that carries this id, if it came within the window. now_us:
        monotonic."""
        entry = self._entries.get(_known_by(message_id))
        if entry is None or not self.window_us:
            return None
        return None if self._is_over(entry, self._time.now(now_us)) else entry.offset

    # Told of every append, truncation and reset.

    def note(self, header: BatchHeader, body: bytes, now_us: int | None = None) -> None:
        """A batch was appended; body: as stored, with or without padding. now_us: the monotonic
        time, if it has just been made; None: it was made some time ago."""
        time_us = self.note_header(header, now_us)
        if self.window_us and may_hold_ids(header):
            self.note_ids(header, body, time_us)

    def note_header(self, header: BatchHeader, now_us: int | None = None) -> int:
        """All of `note` but the message ids; returns the log's time, for `note_ids`."""
        time = self._time
        time_us = time.copied(header) if now_us is None else time.appended(header, now_us)
        if header.producer_id >= 0:
            self._note_batch(header, time_us)
        return time_us

    def note_ids(self, header: BatchHeader, body: bytes, time_us: int) -> None:
        """The message ids in a batch of that time."""
        found = message_ids(header, body)
        for offset, message_id in found:
            self._remember(MessageId(offset, time_us, _known_by(message_id)))
        if found:
            self._expire(time_us)

    def _note_batch(self, header: BatchHeader, time_us: int) -> None:
        producers = self._producers
        stored = StoredBatch(header.producer_sequence, header.base_offset, header.next_offset)
        before = producers.pop(header.producer_id, None)
        batches: tuple[StoredBatch, ...] = (stored,)
        known_from = stored.base_offset if stored.sequence else 0
        if before is not None and stored.sequence == before.last_sequence + 1:
            batches, known_from = (*before.batches, stored), before.known_from
            if len(batches) > BATCHES_KEPT:
                known_from, batches = batches[0].next_offset, batches[1:]
        producers[header.producer_id] = Producer(stored.sequence, time_us, batches, known_from)
        if len(producers) > PRODUCERS_MAX:
            producers.popitem(last=False)
        self._expire_producers(time_us - IDLE_US)

    def _expire_producers(self, before_us: int) -> None:
        producers = self._producers
        while producers and producers[next(iter(producers))].time_us < before_us:
            producers.popitem(last=False)

    def _remember(self, entry: MessageId) -> None:
        self._message_ids.append(entry)
        self._entries[entry.known_by] = entry
        if len(self._message_ids) > MESSAGE_IDS_MAX:
            self._forget(self._message_ids.popleft())

    @property
    def holds_message_ids(self) -> bool:
        return bool(self._message_ids)

    def expire(self, now_us: int) -> None:
        """Forget the ids whose window has passed; now_us: monotonic."""
        self._expire(self._time.now(now_us))

    def _expire(self, time_us: int) -> None:
        while self._message_ids and self._is_over(self._message_ids[0], time_us):
            self._forget(self._message_ids.popleft())

    def _is_over(self, entry: MessageId, time_us: int) -> bool:
        return entry.time_us < time_us - self.window_us

    def _forget(self, entry: MessageId) -> None:
        if self._entries.get(entry.known_by) is entry:
            del self._entries[entry.known_by]

    def truncate(self, log_end_offset: int) -> None:
        """Forget what is not in the log any more.

        A producer whose every remembered batch went is known by the sequence before them: its
        next one is the first it lost, and no later one. If that one went too, it is not known
        where the producer stands, and none of its batches is taken any more.
        """
        for producer_id, producer in list(self._producers.items()):
            kept = tuple(b for b in producer.batches if b.next_offset <= log_end_offset)
            if kept:
                last_sequence = kept[-1].sequence
            elif log_end_offset < producer.known_from:
                last_sequence = LOST
            elif producer.batches:
                last_sequence = producer.batches[0].sequence - 1
            else:
                continue
            if last_sequence < 0:
                del self._producers[producer_id]
            else:
                self._producers[producer_id] = producer._replace(
                    last_sequence=last_sequence, batches=kept
                )
        while self._message_ids and self._message_ids[-1].offset >= log_end_offset:
            self._forget(self._message_ids.pop())

    def note_all(
        self, headers: Sequence[BatchHeader], data: bytes, start: int, now_us: int | None = None
    ) -> None:
        """Batches were appended that stand back to back in `data`, from `start` on; see `note`."""
        for header in headers:
            if header.producer_id >= 0 or may_hold_ids(header):
                body = start + HEADER_BYTES
                self.note(header, data[body : body + header.body_length], now_us)
            start += header.length

    def clear(self) -> None:
        self._producers.clear()
        self._message_ids.clear()
        self._entries.clear()
        self._time = LogTime()

    # Read by others.

    def __bool__(self) -> bool:
        return bool(self._producers or self._message_ids)

    def kept_base_offsets(self) -> frozenset[int]:
        """Base offsets of the batches that compaction leaves in place, emptied if need be: from
        them this can be rebuilt. For the log's own thread."""
        return frozenset(
            stored.base_offset for each in self._producers.values() for stored in each.batches
        )

    def image(self) -> tuple[tuple[tuple[int, Producer], ...], tuple[MessageId, ...], LogTimeImage]:
        """Everything remembered, oldest first: the arguments of another one."""
        return tuple(self._producers.items()), tuple(self._message_ids), self._time.image


def message_ids(header: BatchHeader, body: bytes) -> list[tuple[int, bytes]]:
    """Offset and id of each record of a batch that carries one.

    One search for the whole batch; nothing per record where no id is in it. body: as stored.
    """
    try:
        batch = Batch.of_checked(header, body[: header.body_length])
    except CorruptBatchError:
        return []  # Its columns cannot be read: it holds no messages, then, and no ids.
    column = batch.layout.header_blocks
    if column is None:
        return []
    data = batch.data(column)
    if _NAME not in data:
        return []
    ends = batch.ends(column)
    offsets = batch.offsets()
    found = []
    for match in _MESSAGE_ID.finditer(data):
        record = bisect_right(ends, match.start())
        message_id = match[1].rstrip(b" \t")
        # Two blocks that only together read like the header are no header.
        if message_id and record < len(ends) and match.end() <= ends[record]:
            found.append((offsets[record], message_id))
    return found
