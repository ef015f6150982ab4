"""What a replica knows of its stream's subjects: the last record of each.

A stream with `key: subject` has an index on every copy. Others get one on their leader once a
publisher expects a subject's last sequence, while that leadership lasts. What has been appended
since an index was made is noted at once; the rest is read in the background (drivers/indexing.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    QuotaExceededError,
    RecordsDamagedError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.subjects import to_regex
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.subject_index import Last, Rows, SubjectIndex, listed
from jetstream_server.replication.replica import Replica

STEP_BYTES: Final = 256 * 1024
"""Read at a time, from the page cache as a rule: some milliseconds."""
STEPS_AT_ONCE: Final = 4
"""Within turns of the event loop: however many messages expect something, they do not stop it."""
FORGOTTEN_AT_ONCE: Final = 10_000
"""Entries that may be looked through within a turn of the event loop: about 2 ms."""
INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the index of a stream without `key: subject`: about 400,000 subjects of 20 bytes."""


def is_configured(replica: Replica) -> bool:
    """Whether the stream's settings ask for an index."""
    return replica.stream.config.is_keyed_by_subject


def begin(replica: Replica) -> SubjectIndex:
    """The index of the replica's subjects, which is made now if there is none."""
    log = replica.log
    if log.subjects is None:
        log.subjects = SubjectIndex(log.log_start_offset, INDEX_BYTES_MAX)
    return log.subjects


def limit_of(replica: Replica) -> int:
    """Up to where the index is to reach: what is not committed can be cut from a follower's log,
    and a leader needs to know all of its own."""
    if replica.leadership is not None:
        return replica.log.log_end_offset
    return min(replica.high_watermark, replica.log.log_end_offset)


def catch_up(replica: Replica, index: SubjectIndex, bytes_max: int = STEP_BYTES) -> None:
    """Read one more step, if there is any. Blocks for some milliseconds, so only STEPS_AT_ONCE are
    read until the background has read again. Raises StorageError, UnavailableError."""
    limit = limit_of(replica)
    index.skip_to(replica.log.log_start_offset)
    if index.reached < limit and not index.is_full and index.steps_at_once < STEPS_AT_ONCE:
        index.steps_at_once += 1
        found = read_step(replica, index.reached, bytes_max, limit)
        if found is not None:
            index.take(found, index.cuts)


def read_step(replica: Replica, offset: int, bytes_max: int, limit: int) -> Rows | None:
    """What an index needs of the next batches. For any thread. Raises the errors of
    `CommitLog.read_subjects`.

    What the only replica's disk has lost is passed over: nobody can read it any more, and the
    stream goes on. **safety** Where there are other replicas, one of them may have it.
    """
    try:
        return replica.log.read_subjects(offset, bytes_max, limit)
    except RecordsDamagedError as error:
        if not replica.stream.is_alone(replica.node_id):
            raise
        return Rows(offset, min(error.end_offset, limit), [])


def expected_end(replica: Replica, subject: bytes) -> int:
    """What a publisher has to expect as the last sequence of a subject: one after the offset of the
    last record on it, committed or not; 0: there is none. For the leader, before it appends.

    **safety** Only an index that reaches the log end can tell. Raises UnavailableError until it
    does, and QuotaExceededError if the stream has too many subjects for one.
    """
    log, index = replica.log, begin(replica)
    if index.reached < log.log_end_offset:
        try:
            catch_up(replica, index)
        except JetstreamError as error:
            raise UnavailableError(f"the subjects could not be read: {error.message}") from None
    _check_complete(index, log.log_end_offset)
    last = index.newest(subject)
    return 0 if last is None or is_gone(log, last) else last.offset + 1


def last_committed(replica: Replica, subject: bytes) -> Last | None:
    """The last committed record on a subject; None: there is none.

    Raises PreconditionFailedError if the stream has no index of its subjects, UnavailableError
    while that is being made, or the end of what is committed is not known yet, and
    QuotaExceededError if there are too many.
    """
    index = _committed(replica)
    last = index.last(subject)
    return None if last is None or is_gone(replica.log, last) else last


def committed_subjects(replica: Replica, pattern: str = "") -> Iterator[tuple[bytes, Last]]:
    """The subjects that match a pattern, all without one, with their last committed records, in no
    order. May be iterated in another thread. Raises the errors of `last_committed`."""
    entries, log = _committed(replica).snapshot(), replica.log
    start, gone_below = log.log_start_offset, _tombstones_gone_below(log)
    wanted = re.compile(to_regex(pattern) if pattern else rb".*", re.DOTALL).fullmatch
    return (
        (subject, last)
        for subject, last in listed(entries.items())
        if last.offset >= (gone_below if last.is_tombstone else start) and last.offset >= start
        if wanted(subject)
    )


def count_if_known(replica: Replica) -> int | None:
    """How many subjects have a committed record. Where there are many, those whose record was
    removed in the last minute may count. None: there is no index, or it is being made."""
    if not is_configured(replica):
        return None
    try:
        index = _committed(replica)
    except JetstreamError:
        return None
    if len(index) <= FORGOTTEN_AT_ONCE:
        forget_gone(replica)
    return len(index)


def is_gone(log: CommitLog, last: Last) -> bool:
    """Whether a record was removed: below the log start, or a tombstone that compaction may have
    removed. That one counts as removed also where it is still there: its subject is deleted."""
    if last.offset < log.log_start_offset:
        return True
    return last.is_tombstone and last.offset < _tombstones_gone_below(log)


def forget_gone(replica: Replica) -> None:
    """Forget subjects whose last record was removed, if any can have been since the last time."""
    log, index = replica.log, replica.log.subjects
    if index is None:
        return
    start, gone_below = log.log_start_offset, _tombstones_gone_below(log)
    if (start, gone_below) != index.forgotten_below:
        index.forget(start, gone_below)


def _committed(replica: Replica) -> SubjectIndex:
    """The index, knowing all that is committed. **safety** A new leader must know that itself: it
    would not find what was acknowledged under the last one."""
    index, high_watermark = replica.log.subjects, replica.high_watermark
    if index is None or not is_configured(replica):
        raise PreconditionFailedError(
            f"stream {replica.stream.name!r} has no index of its subjects: only a stream with key: "
            "subject has one"
        )
    if replica.leadership is not None:
        replica.leadership.check_end()
    index.skip_to(replica.log.log_start_offset)
    _check_complete(index, high_watermark)
    index.commit(high_watermark)
    return index


def _check_complete(index: SubjectIndex, end_offset: int) -> None:
    if index.is_full:
        raise QuotaExceededError(
            "the stream has more subjects than its index may hold (docs/operations/sizing.md)"
        )
    if index.reached < end_offset:
        raise UnavailableError(
            f"the index of subjects is being made: it has reached offset {index.reached} of "
            f"{end_offset}; try again"
        )


def _tombstones_gone_below(log: CommitLog) -> int:
    try:
        return log.tombstones_gone_below
    except StorageError:
        return 0  # It cannot be read at the moment: what is there counts.
