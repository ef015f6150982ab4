"""What must hold of a run, and the name of each way in which it may not.

What `tests.chaos.damage.checker` finds in the copies (lost, wrong bytes, offset twice, shorter,
duplicate, differs, not healed, internal error), and what only clients can see:

===================  ==========================================================================
reordered            messages of a publisher that repeats none stand in another order
offset regression    a reader was given an offset that is not the next one
uncommitted read     a reader was given a record that is not in the log
changed              two readings of one offset gave two records
zombie commit        the committed position of a consumer group went back
not handled          an acknowledged message of a group was handled by none of its members
table                a table disagrees with the log that it follows
spark                a batch read by Spark has other rows than the log
trespass             a client read what its token, or none, gives no right to
full disk            a full disk, which takes nothing more for a while, failed a log for good
===================  ==========================================================================

NATS keeps the order of a publisher's messages only while they take one way. While a NATS server is
frozen or gone, or a link between two of them, nothing follows from the order of what is sent.

A publish without an answer may be stored, once, or not: nothing follows from it. Everything here
looks at what others have observed, and touches nothing.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

from tests.chaos.damage.checker import Anomaly, Memory, check_stream
from tests.chaos.damage.copies import Copy
from tests.chaos.damage.streams import Stream
from tests.chaos.mixed.history import History, Session, SparkRow
from tests.chaos.mixed.streams import IN_ORDER, KEYED, ORDERED, STREAMS

SHOWN = 5
NO_SPACE = os.strerror(errno.ENOSPC)


class Kind(StrEnum):
    REORDERED = "reordered"
    OFFSET_REGRESSION = "offset regression"
    UNCOMMITTED_READ = "uncommitted read"
    CHANGED = "changed"
    ZOMBIE_COMMIT = "zombie commit"
    NOT_HANDLED = "not handled"
    TABLE = "table"
    SPARK = "spark"
    TRESPASS = "trespass"
    FULL_DISK = "full disk"


def check(history: History, copies: Mapping[str, Sequence[Copy]]) -> list[Anomaly]:
    """A run that has come to rest. copies: of each stream, one of each replica."""
    found: list[Anomaly] = []
    for stream in STREAMS:
        of_stream = copies[stream.name]
        found += check_stream(stream, history.books[stream.name], of_stream, Memory())
        if not of_stream:
            continue
        if stream.name in IN_ORDER:
            overtaking = history.overtaking if stream is ORDERED else []
            found += _order(stream, of_stream[0], overtaking)
        sessions = [each for each in history.sessions if each.stream == stream.name]
        found += _sessions(stream, sessions)
        found += _reads(stream, sessions, of_stream[0])
        if stream is KEYED and history.table is not None:
            found += _table(stream, history.table, of_stream[0])
        if stream.name in history.spark:
            found += _spark(stream, history.spark[stream.name], of_stream[0])
    found += _commits(history.commits)
    found += _handled(history)
    if history.trespasses:
        found.append(Anomaly(Kind.TRESPASS, "", _few(history.trespasses)))
    return found


def check_words(lines: Iterable[str]) -> list[Anomaly]:
    """What a node has logged, line by line."""
    wrong = [line for line in lines if '"log_failed"' in line and NO_SPACE in line]
    return [Anomaly(Kind.FULL_DISK, "", _few(wrong))] if wrong else []


def _order(stream: Stream, copy: Copy, overtaking: Sequence[tuple[int, int]]) -> list[Anomaly]:
    """overtaking: ranges of messages of which nothing follows."""
    placed = [
        (offset, each)
        for offset, each in sorted(copy.records.items())
        if not any(start <= each.number < end for start, end in overtaking)
    ]
    wrong = [
        f"{after.number} at {offset} after {before.number}"
        for (_, before), (offset, after) in pairwise(placed)
        if after.number <= before.number
    ]
    return _anomalies(Kind.REORDERED, stream, wrong)


def _sessions(stream: Stream, sessions: Iterable[Session]) -> list[Anomaly]:
    """Each offset of a session is the next one; of a compacted stream, a later one."""
    wrong = [
        f"{after} after {before}, read from {session.source}"
        for session in sessions
        for (before, _), (after, _) in pairwise(session.records)
        if after <= before or (after != before + 1 and not stream.compacted)
    ]
    return _anomalies(Kind.OFFSET_REGRESSION, stream, wrong)


def _reads(stream: Stream, sessions: Iterable[Session], copy: Copy) -> list[Anomaly]:
    first: dict[int, int] = {}
    changed: dict[int, str] = {}
    uncommitted: dict[int, str] = {}
    for session in sessions:
        for offset, number in session.records:
            known = first.setdefault(offset, number)
            if known != number:
                changed[offset] = f"{known} and {number} at {offset}"
            stored = copy.records.get(offset)
            if stored is None and stream.compacted and offset < copy.high_watermark:
                continue  # A later record of the key has taken its place.
            if stored is None or stored.number != number:
                uncommitted[offset] = f"{number} at {offset}, read from {session.source}"
    return [
        *_anomalies(Kind.CHANGED, stream, list(changed.values())),
        *_anomalies(Kind.UNCOMMITTED_READ, stream, list(uncommitted.values())),
    ]


def _table(stream: Stream, table: Mapping[bytes, int], copy: Copy) -> list[Anomaly]:
    last = {each.key: each.number for _, each in sorted(copy.records.items()) if each.key}
    wrong = [
        f"{key.decode()} is {table.get(key)}, in the log {last.get(key)}"
        for key in sorted(table.keys() | last.keys())
        if table.get(key) != last.get(key)
    ]
    return _anomalies(Kind.TABLE, stream, wrong)


def _spark(stream: Stream, rows: Sequence[SparkRow], copy: Copy) -> list[Anomaly]:
    read = Counter(rows)
    stored = Counter(
        SparkRow(offset, each.number, each.key.decode() if each.key else None)
        for offset, each in copy.records.items()
    )
    wrong = [f"{count} times {tuple(row)} too many" for row, count in (read - stored).items()]
    wrong += [f"{tuple(row)} is missing" for row in stored - read]
    return _anomalies(Kind.SPARK, stream, wrong)


def _commits(commits: Mapping[str, Sequence[int]]) -> list[Anomaly]:
    return [
        Anomaly(Kind.ZOMBIE_COMMIT, stream, f"from {before} to {after}")
        for stream, offsets in commits.items()
        for before, after in pairwise(offsets)
        if after < before
    ]


def _handled(history: History) -> list[Anomaly]:
    missing = sorted(history.published - history.handled, key=int)
    if not missing:
        return []
    return [Anomaly(Kind.NOT_HANDLED, "", _few(missing))]


def _anomalies(kind: Kind, stream: Stream, texts: Sequence[str]) -> list[Anomaly]:
    return [Anomaly(kind, stream.name, _few(texts))] if texts else []


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"{', '.join(texts[:SHOWN])}{more}"
