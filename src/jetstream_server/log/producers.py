"""What a log remembers to recognise duplicates: producers' last batches, and message ids.

    batch of a producer ──> check ──> append it · the original · SequenceTakenError, …
    message with an id  ──> offset_of ──> append it · the original's offset

A *producer* numbers its batches from 0, one by one. The last five of each are remembered. A
producer has at most five in flight, so any batch that it repeats is among them. A *message id*
(`Nats-Msg-Id`) is remembered for the stream's duplicate window, the newest `MESSAGE_IDS_MAX` at
most.

Numbers and ids are not secret, so they do not make a duplicate by themselves. A repeated batch has
the CRC of the original's body, as its producer sent it. A repeated message has the original's
subject.

Everything here except the times follows from the batches in the log: the leader and its followers
`note` each batch they append, and `truncate` with their logs. So a new leader knows the content of
its log without reading it, and `producers_file.py` can save and rebuild this state.

Invariants.
* **safety** The state always matches the log: it holds nothing at or after the log end, and a
  truncation resets each producer to its earlier position. The caller must check that a duplicate
  is *committed* before it is acknowledged.
* **safety** A batch of which it is not known that it has the original's content is no duplicate.
* **safety** A producer never skips a sequence, and an unknown producer must begin with 0. Otherwise
  earlier batches that are still in flight, or were lost in a failover and will be repeated, could
  never be stored.

No clock and no I/O. Times are the log's (log_time.py, µs): append timestamps come from wall clocks
that may be hours apart.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from jetstream_protocol import header_names
from jetstream_protocol.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    Batch,
    BatchHeader,
    decode_header,
    producer_fields,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    CorruptBatchError,
    OutOfSequenceError,
    SequenceTakenError,
    UnknownOutcomeError,
)
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from jetstream_protocol.types import MonotonicUs
from jetstream_server.log.log_time import LogTime, LogTimeImage, LogTimeUs, passed_between

PRODUCERS_MAX: Final = 10_000
"""Per stream: about 14 MiB. Above it the producer that was silent longest is forgotten."""
IDLE_US: Final = 24 * 3600 * 1_000_000
"""A producer that is silent for this long is forgotten; no publisher retries for a day."""
MESSAGE_IDS_MAX: Final = 1 << 17
"""Per stream: about 34 MiB. A thousand messages a second fill the default window of 120 s."""
ID_BYTES_MAX: Final = 64
"""Of an id with its subject; longer ones are remembered by a digest. A UUID has 36 bytes."""
DUPLICATE_WINDOW_US: Final = 120 * 1_000_000

NOTHING: Final[Mapping[int, bytes]] = {}

LOST: Final = 2**31 - 1
"""The last sequence of a producer of which more batches were truncated than were remembered. No
sequence comes after it."""

UNKNOWN_CRC: Final = -1
"""The body was encrypted, or compaction has removed rows: its first CRC is not in the header."""

_HEADERS: Final = int(Flags.HEADERS)
_CHANGED: Final = int(Flags.ENCRYPTED | Flags.OFFSET_DELTAS)
# Message ids occur only in batches that leaders made of single messages, which leaders never
# compress, and in single messages that came straight to the leader, which are like those. Any other
# batch of a producer that carries an id is refused.
_MAY_HOLD_IDS: Final = _HEADERS | COMPRESSION_MASK
_NAME: Final = header_names.MSG_ID.encode()
# The same rule as in ingest (headers.py): the header counts only in a block that follows the
# grammar.
_MESSAGE_ID: Final = re.compile(rb"\r\n" + _NAME + rb"[ \t]*+:[ \t]*+([^\r\n\x00]*+)\r\n")


def concerns(header: bytes | bytearray) -> bool:
    """Whether a batch with these header bytes may have to be noted. Much cheaper than decoding the
    batch, and most batches need not be noted."""
    flags, _, producer_id = producer_fields(header)
    return bool(producer_id >= 0 or flags & _MAY_HOLD_IDS == _HEADERS)


def may_hold_ids(header: BatchHeader) -> bool:
    return header.flags & _MAY_HOLD_IDS == _HEADERS


def matters(header: BatchHeader) -> bool:
    """Whether a batch has to be noted, as `concerns` says."""
    return header.producer_id >= 0 or may_hold_ids(header)


def sent_crc(header: BatchHeader) -> int:
    """The CRC of the body as the producer sent it; UNKNOWN_CRC if this header does not tell."""
    return UNKNOWN_CRC if header.flags & _CHANGED else header.body_crc


class StoredBatch(NamedTuple):
    """A batch of a producer in the log: the offsets [base_offset, next_offset). body_crc: of the
    body as the producer sent it, or UNKNOWN_CRC."""

    sequence: int
    base_offset: int
    next_offset: int
    body_crc: int


class Producer(NamedTuple):
    """What is remembered of a producer.

    batches: the last ones, oldest first, in consecutive sequence; none if they were truncated away.
    time_us: the log's time of the last batch. known_from: the log holds the batch before `batches`
    only if it reaches back to this offset.
    """

    last_sequence: int
    time_us: LogTimeUs
    batches: tuple[StoredBatch, ...]
    known_from: int = 0


class MessageId(NamedTuple):
    """A record that carries an id. known_by: see `known_by`."""

    offset: int
    time_us: LogTimeUs
    known_by: bytes


def known_by(subject: bytes, message_id: bytes) -> bytes:
    """The key under which an id is remembered: subject, a space, id; or a space and the digest of
    those, because an id may be as long as a message. No subject holds a space."""
    key = b"%b %b" % (subject, message_id)
    if len(key) <= ID_BYTES_MAX:
        return key
    return b" " + blake2b(key, digest_size=32).digest()


class Producers:
    """See the module. Owned by the log's thread. Another thread may take `image` while it holds the
    lock under which the log changes this object."""

    __slots__ = ("_entries", "_message_ids", "_producers", "_time", "window_us")

    def __init__(
        self,
        window_us: int = DUPLICATE_WINDOW_US,
        producers: tuple[tuple[int, Producer], ...] = (),
        message_ids: tuple[MessageId, ...] = (),
        time: LogTimeImage | None = None,
    ) -> None:
        self.window_us = window_us
        """How long message ids are remembered, in µs; 0: not at all."""
        self._producers: OrderedDict[int, Producer] = OrderedDict(producers)  # least recent first
        self._message_ids: deque[MessageId] = deque()  # oldest first
        self._entries: dict[bytes, MessageId] = {}  # the newest of each id
        self._time = LogTime(time)
        for entry in message_ids:
            self._remember(entry)

    # Checks by the leader before it appends.

    def check(self, producer_id: int, sequence: int, body_crc: int) -> StoredBatch | None:
        """Return None if the batch is the producer's next, otherwise the batch that it repeats.

        Raises OutOfSequenceError for a batch with a number that is neither, SequenceTakenError if
        another batch has that number, and UnknownOutcomeError if it is unknown whether it is
        another one.
        """
        producer = self._producers.get(producer_id)
        if producer is None and sequence == 0:
            return None
        if producer is None or producer.last_sequence == LOST:
            raise OutOfSequenceError(
                f"batch {sequence} of producer {producer_id}, which is not known well enough here: "
                "begin with sequence 0, under a new id if this is not its first batch"
            )
        if sequence == producer.last_sequence + 1:
            return None
        for stored in producer.batches:
            if stored.sequence == sequence:
                _check_content(stored, producer_id, body_crc)
                return stored
        raise OutOfSequenceError(
            f"batch {sequence} of producer {producer_id}, whose last one here is "
            f"{producer.last_sequence}: send {producer.last_sequence + 1} next"
        )

    def offset_of(self, subject: bytes, message_id: bytes, now_us: MonotonicUs) -> int | None:
        """The offset of the record on this subject with this id, if it came within the window;
        otherwise None."""
        entry = self._entries.get(known_by(subject, message_id))
        if entry is None or not self.window_us:
            return None
        return None if self._is_over(entry, self._time.now(now_us)) else entry.offset

    # Called at every append, truncation and reset.

    def note(
        self, header: BatchHeader, body: bytes, now_us: MonotonicUs | None = None, age_us: int = 0
    ) -> None:
        """Note an appended batch. body: as stored, with or without padding. now_us: given if the
        batch was made `age_us` ago; None: it was made some time ago."""
        time_us = self.note_header(header, now_us, age_us)
        if self.window_us and may_hold_ids(header):
            self.note_ids(header, body, time_us)

    def note_header(
        self, header: BatchHeader, now_us: MonotonicUs | None = None, age_us: int = 0
    ) -> LogTimeUs:
        """Note everything except the message ids. Returns the log's time, for `note_ids`."""
        time = self._time
        time_us = (
            time.time_of_copy(header)
            if now_us is None
            else time.time_of_append(header, now_us, age_us)
        )
        if header.producer_id >= 0:
            self._note_batch(header, time_us)
        return time_us

    def note_ids(self, header: BatchHeader, body: bytes, time_us: LogTimeUs) -> None:
        """Note the message ids in a batch of that time."""
        found = message_ids(header, body)
        for offset, subject, message_id in found:
            self._remember(MessageId(offset, time_us, known_by(subject, message_id)))
        if found:
            self._expire(time_us)

    def _note_batch(self, header: BatchHeader, time_us: LogTimeUs) -> None:
        producers = self._producers
        stored = StoredBatch(
            header.producer_sequence, header.base_offset, header.next_offset, sent_crc(header)
        )
        before = producers.pop(header.producer_id, None)
        batches: tuple[StoredBatch, ...] = (stored,)
        known_from = stored.base_offset if stored.sequence else 0
        if before is not None and stored.sequence == before.last_sequence + 1:
            batches, known_from = (*before.batches, stored), before.known_from
            if len(batches) > BATCHES_IN_FLIGHT_MAX:
                known_from, batches = batches[0].next_offset, batches[1:]
        producers[header.producer_id] = Producer(stored.sequence, time_us, batches, known_from)
        if len(producers) > PRODUCERS_MAX:
            producers.popitem(last=False)
        self._expire_producers(LogTimeUs(time_us - IDLE_US))

    def _expire_producers(self, before_us: LogTimeUs) -> None:
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

    def expire(self, now_us: MonotonicUs) -> None:
        """Forget the ids whose window has passed."""
        self._expire(self._time.now(now_us))

    def _expire(self, time_us: LogTimeUs) -> None:
        while self._message_ids and self._is_over(self._message_ids[0], time_us):
            self._forget(self._message_ids.popleft())

    def _is_over(self, entry: MessageId, time_us: LogTimeUs) -> bool:
        return entry.time_us < time_us - self.window_us

    def _forget(self, entry: MessageId) -> None:
        if self._entries.get(entry.known_by) is entry:
            del self._entries[entry.known_by]

    def truncate(self, log_end_offset: int) -> None:
        """Forget what the log does not hold any more.

        If all remembered batches of a producer were truncated, its position is the sequence before
        them: only the first lost batch may come next. If that batch is unknown too, no batch of
        this producer is accepted any more.
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

    def forget_before(self, log_start_offset: int) -> None:
        """Forget the records that the disk has lost in front of the log. **safety** They may never
        have been committed: a repetition must be stored, not acknowledged."""
        for producer_id, producer in list(self._producers.items()):
            kept = tuple(b for b in producer.batches if b.base_offset >= log_start_offset)
            if not kept:
                del self._producers[producer_id]
            elif len(kept) < len(producer.batches):
                known_from = kept[0].base_offset
                self._producers[producer_id] = producer._replace(
                    batches=kept, known_from=known_from
                )
        while self._message_ids and self._message_ids[0].offset < log_start_offset:
            self._forget(self._message_ids.popleft())

    def note_all(
        self,
        headers: Sequence[BatchHeader],
        count: int,
        data: bytes,
        start: int,
        now_us: MonotonicUs | None = None,
        decrypted: Mapping[int, bytes] = NOTHING,
    ) -> None:
        """Note the first `count` batches of those that a leader sent together; see `note`. They
        stand back to back in `data`, from `start` on. now_us: given if the last of all was just
        made. decrypted: batches that are encrypted in `data` and concern this object."""
        for header in headers[:count]:
            if matters(header):
                age_us = passed_between(header, headers[-1])
                plain = decrypted.get(header.base_offset)
                if plain is not None:
                    self.note(decode_header(plain), plain[HEADER_BYTES:], now_us, age_us)
                else:
                    body = start + HEADER_BYTES
                    self.note(header, data[body : body + header.body_length], now_us, age_us)
            start += header.length

    def clear(self) -> None:
        self._producers.clear()
        self._message_ids.clear()
        self._entries.clear()
        self._time = LogTime()

    # For other parts.

    def __bool__(self) -> bool:
        return bool(self._producers or self._message_ids)

    def kept_base_offsets(self) -> frozenset[int]:
        """Base offsets of the batches that compaction must keep, even if empty, so that this state
        can be rebuilt. For the log's own thread."""
        return frozenset(
            stored.base_offset for each in self._producers.values() for stored in each.batches
        )

    def unknown_contents(self) -> list[int]:
        """Base offsets of the batches whose body is not known as its producer sent it."""
        return [
            stored.base_offset
            for each in self._producers.values()
            for stored in each.batches
            if stored.body_crc == UNKNOWN_CRC
        ]

    def learn_content(self, header: BatchHeader) -> None:
        """Note the body of a batch that is remembered already. header: decrypted."""
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            batches = tuple(
                stored._replace(body_crc=sent_crc(header))
                if stored.base_offset == header.base_offset
                else stored
                for stored in producer.batches
            )
            self._producers[header.producer_id] = producer._replace(batches=batches)

    def recall_ids(self, earlier: Sequence[MessageId]) -> None:
        """Remember ids of records before all that are remembered, oldest first."""
        self._message_ids.extendleft(reversed(earlier))
        for entry in reversed(earlier):
            self._entries.setdefault(entry.known_by, entry)

    def image(self) -> tuple[tuple[tuple[int, Producer], ...], tuple[MessageId, ...], LogTimeImage]:
        """Everything that is remembered, oldest first: the arguments to build an equal object."""
        return tuple(self._producers.items()), tuple(self._message_ids), self._time.image


def _check_content(stored: StoredBatch, producer_id: int, body_crc: int) -> None:
    """Raise unless the batch is the stored one. **safety** Producer ids and numbers can be read
    from any batch: by them alone, one publisher could make the batches of others vanish."""
    if stored.body_crc == UNKNOWN_CRC:
        raise UnknownOutcomeError(
            f"batch {stored.sequence} of producer {producer_id} may be stored already: what is "
            "stored under that number cannot be compared any more"
        )
    if stored.body_crc != body_crc:
        raise SequenceTakenError(
            f"another batch is stored as batch {stored.sequence} of producer {producer_id}, at "
            f"offset {stored.base_offset}: this one is not stored. Does somebody else use that "
            "producer id?"
        )


def message_ids(header: BatchHeader, body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Offset, subject and id of each record of a batch that carries an id.

    One search covers the whole batch; records without an id cost nothing. body: as stored.
    """
    try:
        batch = Batch.of_checked(header, body[: header.body_length])
        column = batch.layout.header_blocks
        if column is None:
            return []
        data = batch.data(column)
        if _NAME not in data:
            return []
        subjects = batch.subjects()
    except CorruptBatchError:
        return []  # Its columns cannot be read, so it holds no ids.
    ends = batch.ends(column)
    offsets = batch.offsets()
    found = []
    for match in _MESSAGE_ID.finditer(data):
        record = bisect_right(ends, match.start())
        message_id = match[1].rstrip(b" \t")
        # A match across two blocks is not a header.
        if message_id and record < len(ends) and match.end() <= ends[record]:
            found.append((offsets[record], subjects[record], message_id))
    return found
