"""What de-duplication must remember of the log, and must not believe.

What is promised (docs/guarantees.md, log/producers.py):

* A message id is a duplicate of the last record that has it, if the window has not passed since the
  record was appended, also if compaction has removed it. (A log that has failed, or whose cut
  or reset was interrupted, is read anew: it may know only what it holds.)
* So is a batch of a producer that may still be in flight: one of the last five that it has sent.
* Nothing else is taken for stored: no record that was truncated or reset away, and no batch with
  another content than that of its number. (What compaction has made of a batch may not tell.)
* A producer's next batch is let in, and none that is older, or after a gap.

That holds after every step, for a log that follows as for one that leads. Time is the time of the
last append, unless it passes by itself; a process that does not run need not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, NamedTuple

from jetstream_protocol.batch import Batch, BatchHeader
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import OutOfSequenceError, SequenceTakenError, UnknownOutcomeError
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from jetstream_protocol.types import MonotonicUs
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.producers import IDLE_US, UNKNOWN_CRC, StoredBatch, sent_crc
from tests.property.log_failures.compacted import Content, Stored, check
from tests.support.log_producers import OTHER_CRC, next_of

SUBJECT = b"a.b"
WINDOW_US = 40
PASSING_US = (3, WINDOW_US // 2, WINDOW_US - 5, WINDOW_US + 1, IDLE_US // 2, IDLE_US + 1)
PRODUCERS = (0, 1)
_OFTEN = (0, 0, 0, 1)
"""One sends more than are remembered."""
IDS = (*(b"id %d" % number for number in range(6)), b"long id, " * 9 + b"7")
"""Few, so that each comes again once its window has passed."""


class Sent(NamedTuple):
    """A batch: the message ids of its two records, b"": none, or a producer's batch."""

    ids: tuple[bytes, ...] = (b"", b"")
    producer_id: int = -1
    sequence: int = -1


class Remembered:
    """See the module. What was sent, by the mark of its batch."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.removed: set[Stored] = set()
        """What retention has removed, and what may be known all the same."""
        self.may_be_read_anew = False
        """A reset has begun: what is known of its records may be gone before they are."""
        self._crcs: dict[bytes, int] = {}
        self._firsts = {(producer_id, 0) for producer_id in PRODUCERS}
        self._reached: dict[int, int] = {}

    def epoch(self, epoch: int, log_end_offset: int) -> int:
        """The epoch to append under: what one has put at an offset is not replaced under it."""
        return epoch + (self._reached.get(epoch, 0) > log_end_offset)

    def emptied(self) -> None:
        """Note that the log is empty, and knows nothing."""
        self.removed.clear()
        self.may_be_read_anew = False

    def reached(self, epoch: int, log_end_offset: int) -> None:
        self._reached[epoch] = max(self._reached.get(epoch, 0), log_end_offset)

    def led(self, log: CommitLog, mark: bytes, dice: Random) -> dict[str, Any]:
        """What identifies a new batch that this leader's log takes: ids that it does not know, or a
        producer's next sequence."""
        now_us = MonotonicUs(int(mark))

        def is_new(message_id: bytes) -> bool:
            return log.producers.offset_of(SUBJECT, message_id, now_us) is None

        if dice.random() < 0.5:
            produced = next_of(log, dice.choice(_OFTEN))
            return self._noted(mark, Sent((b"", b""), *produced.values()))
        return self._noted(mark, Sent(_ids(is_new, dice)))

    def copied(self, content: Content, mark: bytes, dice: Random) -> dict[str, Any]:
        """The same for a batch of another leader, whose log has the same content."""
        newest = {m: int(at[2]) for at in content.batches for m in self._of(at).ids if m}

        def is_new(message_id: bytes) -> bool:
            return newest.get(message_id, -WINDOW_US - 1) < int(mark) - WINDOW_US

        if dice.random() < 0.5:
            producer_id = dice.choice(_OFTEN)
            of_it = self._sequences(producer_id, content.batches)
            sequence = of_it[-1][0].sequence + 1 if of_it else 0
            if not of_it and content.start:
                # What its leader's retention has removed may have held earlier ones.
                sequence = dice.randrange(7)
                self._firsts.add((producer_id, sequence))
            return self._noted(mark, Sent((b"", b""), producer_id, sequence))
        return self._noted(mark, Sent(_ids(is_new, dice)))

    def _noted(self, mark: bytes, sent: Sent) -> dict[str, Any]:
        self.sent[mark] = sent
        if sent.producer_id >= 0:
            return {"producer_id": sent.producer_id, "producer_sequence": sent.sequence}
        if not any(sent.ids):
            return {}
        return {"header_blocks": [_block(message_id) for message_id in sent.ids]}

    def made(self, mark: bytes, header: BatchHeader) -> None:
        """Note the content of a batch."""
        self._crcs[mark] = sent_crc(header)

    # What the log remembers.

    def check(
        self,
        log: CommitLog,
        content: Content,
        found: Sequence[Batch],
        now_us: int,
        is_suspect: bool,
        *hidden: Collection[Stored],
    ) -> None:
        """content: what the log should hold. found: what is left of that. hidden: what may have
        been in front of its start. is_suspect: the log has failed before."""
        if self.sent:
            in_front = self.removed.union(*hidden)
            known = sorted({*content.batches, *(b for b in in_front if b[1] <= content.start)})
            is_read_anew = is_suspect or self.may_be_read_anew
            self._check_ids(log, known, found, now_us, is_read_anew)
            whole = {
                batch.header.base_offset
                for batch in found
                if not batch.header.flags & Flags.OFFSET_DELTAS
            }
            for producer_id in PRODUCERS:
                self._check_producer(log, producer_id, content.batches, known, now_us, whole)

    def _check_ids(
        self, log: CommitLog, stored: Sequence[Stored], found: Sequence[Batch], now_us: int,
        is_read_anew: bool,
    ) -> None:  # fmt: skip
        start = log.log_start_offset
        there = {offset for batch in found for offset in batch.offsets() if offset >= start}
        offsets: dict[bytes, list[tuple[int, int]]] = {message_id: [] for message_id in IDS}
        for each in stored:
            for offset, message_id in enumerate(self._of(each).ids, each[0]):
                if message_id:
                    offsets[message_id].append((offset, int(each[2])))
        for message_id, with_it in offsets.items():
            known = log.producers.offset_of(SUBJECT, message_id, MonotonicUs(now_us))
            elsewhere = log.producers.offset_of(b"a.c", message_id, MonotonicUs(now_us))
            check(elsewhere is None, f"{message_id!r} is known of another subject")
            is_there = known is None or known in [offset for offset, _ in with_it]
            check(is_there, f"it takes {message_id!r} for stored at {known}")
            held = [e for e in with_it if e[0] in there or (e[0] >= start and not is_read_anew)]
            if not held:
                continue
            last, appended_us = held[-1]
            is_last = known is None or known >= last
            check(is_last, f"{message_id!r} is at {last}, and not at {known}")
            is_over = now_us - appended_us > WINDOW_US
            check(known is not None or is_over, f"{message_id!r} at {last} would be stored again")

    def _check_producer(
        self, log: CommitLog, producer_id: int, stored: Sequence[Stored],
        known_too: Sequence[Stored], now_us: int, whole: Collection[int],
    ) -> None:  # fmt: skip
        """whole: base offsets of the batches of which compaction has removed nothing."""
        sent = [each for each in self.sent.values() if each.producer_id == producer_id]
        of_it = self._sequences(producer_id, stored)
        last = of_it[-1][0].sequence if of_it else -1
        last_too = [batch.sequence for batch, _ in self._sequences(producer_id, known_too)][-1:]
        begun = max((i + 1 for i, each in enumerate(sent[1:]) if not each.sequence), default=0)
        highest = max((each.sequence for each in sent[begun:]), default=-1)
        in_flight_from = highest - BATCHES_IN_FLIGHT_MAX + 1
        is_idle = not of_it or now_us - of_it[-1][1] > IDLE_US
        batches = {batch for batch, _ in [*of_it, *self._sequences(producer_id, known_too)]}
        promised = {
            batch.sequence: batch
            for batch, appended_us in of_it
            if batch.sequence >= in_flight_from
            and batch.next_offset > log.log_start_offset
            and now_us - appended_us <= IDLE_US
        }
        for sequence in range(max(highest, last) + 2 + BATCHES_IN_FLIGHT_MAX):
            is_next = sequence == last + 1 if of_it else (producer_id, sequence) in self._firsts
            is_next |= sequence - 1 in last_too
            crcs = {batch.body_crc for batch in batches if batch.sequence == sequence}
            for crc in (OTHER_CRC, *crcs - {UNKNOWN_CRC}):
                held = promised.get(sequence)
                is_held = held is not None and held.body_crc == crc
                try:
                    known = log.producers.check(producer_id, sequence, crc)
                except (OutOfSequenceError, SequenceTakenError):
                    check(not is_held, f"it refuses {sequence} of {producer_id}, which it holds")
                    continue
                except UnknownOutcomeError:
                    is_told = held is not None and held.base_offset in whole
                    check(not is_told, f"it does not know what {sequence} of {producer_id} is")
                    continue
                if known is not None:
                    is_right = known in batches and known.body_crc == crc
                    check(is_right, f"it takes {sequence} of {producer_id} for {known}")
                else:
                    is_right = is_next or (sequence == 0 and (is_idle or 0 not in promised))
                    check(is_right, f"it lets {sequence} of {producer_id} in after {last}")

    def _sequences(
        self, producer_id: int, stored: Sequence[Stored]
    ) -> list[tuple[StoredBatch, int]]:
        """The batches of a producer since it last began, and when they were appended."""
        found: list[tuple[StoredBatch, int]] = []
        for base_offset, next_offset, mark in stored:
            sent = self._of((base_offset, next_offset, mark))
            if sent.producer_id == producer_id:
                if found and sent.sequence <= found[-1][0].sequence:
                    found.clear()
                crc = self._crcs.get(mark, UNKNOWN_CRC)
                batch = StoredBatch(sent.sequence, base_offset, next_offset, crc)
                found.append((batch, int(mark)))
        return found

    def _of(self, stored: Stored) -> Sent:
        return self.sent.get(stored[2], Sent())


def _ids(is_new: Callable[[bytes], bool], dice: Random) -> tuple[bytes, ...]:
    chosen = dice.sample(IDS, 2)
    return tuple(each if dice.random() < 0.8 and is_new(each) else b"" for each in chosen)


def _block(message_id: bytes) -> bytes:
    return b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id if message_id else b""
