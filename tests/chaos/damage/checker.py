"""What must hold after damage, and a name for each kind of failure.

==================  ===========================================================================
lost                an acknowledged record is missing from a copy, and neither a limit of the
                    stream, nor a later record of its key, nor the node's own words account for it
wrong bytes         at the offset of an acknowledged record there is another one, or a value that
                    nobody published
offset twice        an offset was given out twice: two messages were told the same one, or what
                    stood there once is another record now
shorter             the log starts later, or ends earlier, than it did, and nothing says why
duplicate           a message id is in the log twice, or its message was told two offsets
differs             two replicas of one node each serve other bytes, or another last value of a key
not healed          the cluster was not whole again in time: a replica out of the ISR, no leader, no
                    acknowledgements, a process that ended or refused to start without saying what
                    to do
not said            a damaged file went unmentioned: in the logs, by `describe`, in last words
internal error      a node logged a traceback
==================  ===========================================================================

The checker only reads observations of others. A stream with one replica has no other copy: its own
reports (holes, a state that is not "online") excuse missing records, but never wrong bytes, an
offset twice or a duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tests.chaos.damage.copies import Copy
from tests.chaos.damage.publishers import Books
from tests.chaos.damage.streams import Stream

LIMIT_SLACK_BYTES = 32 * 1024
"""A log that was cut at its end by a leader keeps so much less than its limit."""
SHOWN = 5


class Kind(StrEnum):
    LOST = "lost"
    WRONG_BYTES = "wrong bytes"
    OFFSET_TWICE = "offset twice"
    SHORTER = "shorter"
    DUPLICATE = "duplicate"
    DIFFERS = "differs"
    NOT_HEALED = "not healed"
    NOT_SAID = "not said"
    INTERNAL_ERROR = "internal error"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """kind: a `Kind`, or one of another checker's."""

    kind: StrEnum
    stream: str
    text: str

    def __str__(self) -> str:
        where = f" in {self.stream}" if self.stream else ""
        return f"{self.kind}{where}: {self.text}"


class Memory:
    """What earlier rounds have seen of one stream: it must not change."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.log_start_offset = 0
        self.high_watermark = 0

    def take(self, copy: Copy) -> None:
        """After a round that found nothing."""
        self.numbers = {offset: record.number for offset, record in copy.records.items()}
        self.log_start_offset = copy.log_start_offset
        self.high_watermark = copy.high_watermark


def check_stream(
    stream: Stream, books: Books, copies: Sequence[Copy], memory: Memory, excuse: str = ""
) -> list[Anomaly]:
    """All copies of a stream at rest.

    excuse: the stream's own words on what it lacks ("offline: …"); "" where nothing excuses.
    """
    found = [*_acks(stream, books, copies)]
    for copy in copies:
        found += _values(stream, copy)
        found += _history(stream, books, copy, memory)
        found += _acknowledged(stream, books, copy, excuse)
        found += _ends(stream, books, copy, memory, excuse)
        found += _twice(stream, copy, copies)
    for one, other in pairwise(copy for copy in copies if not copy.holes):
        found += _difference(stream, one, other)
    return found


def _acks(stream: Stream, books: Books, copies: Sequence[Copy]) -> list[Anomaly]:
    """The acknowledgements by themselves."""
    found: list[Anomaly] = []
    owners: dict[int, int] = {}
    for number, offsets in books.acked.items():
        for offset in offsets:
            other = owners.setdefault(offset, number)
            if other != number:
                found.append(
                    Anomaly(
                        Kind.OFFSET_TWICE, stream.name,
                        f"offset {offset} was told to messages {other} and {number}",
                    )
                )  # fmt: skip
        if len(offsets) > 1 and not _may_be_forgotten(offsets[0], stream, copies):
            found.append(
                Anomaly(Kind.DUPLICATE, stream.name, f"message {number} was told offsets {offsets}")
            )
    return found[:SHOWN]


def _may_be_forgotten(offset: int, stream: Stream, copies: Sequence[Copy]) -> bool:
    """Whether the stream's limits or compaction may have removed all that tells of the id of the
    message there. One copy without it is enough: it may have been made anew, and led. If no node
    serves any more, there is no copy, and nobody knows."""
    removed = not copies or any(offset not in copy.records for copy in copies)
    return removed and (stream.compacted or stream.max_bytes > 0)


def _values(stream: Stream, copy: Copy) -> list[Anomaly]:
    strange = [offset for offset, record in copy.records.items() if record.number < 0]
    if not strange:
        return []
    text = f"node {copy.node}: nobody published what is at {_few(strange)}"
    return [Anomaly(Kind.WRONG_BYTES, stream.name, text)]


def _history(stream: Stream, books: Books, copy: Copy, memory: Memory) -> list[Anomaly]:
    changed = [
        offset
        for offset, record in copy.records.items()
        if memory.numbers.get(offset, record.number) != record.number
    ]
    if not changed:
        return []
    text = f"node {copy.node}: other records than before at {_few(changed)}"
    return [Anomaly(Kind.OFFSET_TWICE, stream.name, text)]


def _acknowledged(stream: Stream, books: Books, copy: Copy, excuse: str) -> list[Anomaly]:
    wrong, lost = [], []
    last = _last_offsets(copy)
    for number, offsets in books.acked.items():
        offset = offsets[-1]
        record = copy.records.get(offset)
        if record is not None:
            if record.number != number:
                wrong.append(offset)
        elif not _may_be_missing(stream, copy, last, number, offset, excuse):
            lost.append(offset)
    found = []
    if wrong:
        text = f"node {copy.node}: another record than the acknowledged one at {_few(wrong)}"
        found.append(Anomaly(Kind.WRONG_BYTES, stream.name, text))
    if lost:
        text = f"node {copy.node}: {_few(lost)} of {len(books.acked)} acknowledged"
        found.append(Anomaly(Kind.LOST, stream.name, text))
    return found


def _may_be_missing(
    stream: Stream, copy: Copy, last: Mapping[bytes, int], number: int, offset: int, excuse: str
) -> bool:
    if stream.max_bytes and offset < copy.log_start_offset:
        return True  # Whether the log start is where it may be is a question of its own.
    key = stream.key(number)
    if key is not None:
        if last.get(key, -1) > offset:
            return True
        if any(hole.end > offset for hole in copy.holes):
            return True  # What came later of the key may be there.
    return bool(excuse) or any(hole.start <= offset < hole.end for hole in copy.holes)


def _last_offsets(copy: Copy) -> dict[bytes, int]:
    """Of each key."""
    return {each.key: offset for offset, each in sorted(copy.records.items()) if each.key}


def _ends(stream: Stream, books: Books, copy: Copy, memory: Memory, excuse: str) -> list[Anomaly]:
    found = []
    rose = copy.log_start_offset > memory.log_start_offset
    if rose and not copy.holes and not _limit_removed(stream, copy):
        text = (
            f"node {copy.node}: the log starts at {copy.log_start_offset}, "
            f"before at {memory.log_start_offset}, and keeps {len(copy.data)} bytes"
        )
        if not excuse:
            found.append(Anomaly(Kind.SHORTER, stream.name, text))
    acked = max((max(offsets) + 1 for offsets in books.acked.values()), default=0)
    end = max(acked, memory.high_watermark)
    if copy.high_watermark < end and not excuse:
        text = f"node {copy.node}: the log ends at {copy.high_watermark}, and reached {end}"
        found.append(Anomaly(Kind.SHORTER, stream.name, text))
    return found


def _limit_removed(stream: Stream, copy: Copy) -> bool:
    """Whether the stream's limit accounts for what is not there."""
    return 0 < stream.max_bytes <= len(copy.data) + LIMIT_SLACK_BYTES


def _twice(stream: Stream, copy: Copy, copies: Sequence[Copy]) -> list[Anomaly]:
    places: dict[int, int] = {}
    twice = []
    for offset, record in copy.records.items():
        if record.number < 0 or (first := places.setdefault(record.number, offset)) == offset:
            continue
        if not _may_be_forgotten(first, stream, copies):
            twice.append(f"{record.number} at {first} and {offset}")
    if not twice:
        return []
    text = f"node {copy.node}: messages stored twice: {', '.join(twice[:SHOWN])}"
    return [Anomaly(Kind.DUPLICATE, stream.name, text)]


def _difference(stream: Stream, one: Copy, other: Copy) -> list[Anomaly]:
    problem = difference(stream, one, other)
    return [Anomaly(Kind.DIFFERS, stream.name, problem)] if problem else []


def difference(stream: Stream, one: Copy, other: Copy) -> str:
    """In words, "" when the two agree. Copies with holes are as different as can be."""
    who = f"nodes {one.node} and {other.node}"
    for copy in (one, other):
        if copy.holes:
            return f"node {copy.node} does not serve all: {copy.holes[0].reason}"
    if one.high_watermark != other.high_watermark:
        return f"{who} end at {one.high_watermark} and {other.high_watermark}"
    if stream.compacted:
        tables = [
            {key: copy.records[offset].number for key, offset in _last_offsets(copy).items()}
            for copy in (one, other)
        ]
        if tables[0] != tables[1]:
            return f"{who} have other last values of keys"
        common = one.records.keys() & other.records.keys()
        parted = [offset for offset in common if one.records[offset] != other.records[offset]]
        return f"{who} have other records at {_few(parted)}" if parted else ""
    if one.log_start_offset != other.log_start_offset:
        return f"{who} start at {one.log_start_offset} and {other.log_start_offset}"
    return "" if one.data == other.data else f"{who} differ in bytes"


def _few(offsets: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(offsets)[:SHOWN]))
    more = f" and {len(offsets) - SHOWN} more" if len(offsets) > SHOWN else ""
    return f"offset{'s' if len(offsets) > 1 else ''} {shown}{more}"
