"""Selects the records a reader wants: those on subjects of a pattern, those with a key, or both.

A server calls `may_hold` on whole batches. It may err in one direction only: it may send a batch
without a wanted record, but never leaves out a batch with one. So it looks for bytes in columns,
which costs nothing per record. The reader always picks the rows with `rows`, so the result is right
even if the server does not filter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jetstream_protocol import subjects
from jetstream_protocol.batch import Batch
from jetstream_protocol.columns import Column
from jetstream_protocol.errors import InvalidRequestError


class RecordFilter:
    """subject: a NATS subject or pattern; "": any. key: None: any key or none.

    Raises InvalidRequestError for an invalid pattern, and if neither subject nor key is given.
    """

    __slots__ = ("_literal", "_pattern", "key", "subject")

    def __init__(self, subject: str = "", key: bytes | None = None) -> None:
        if not subject and key is None:
            raise InvalidRequestError("a filter needs a subject, a key, or both")
        if subject:
            subjects.check_pattern(subject)
        self.subject = subject
        self.key = key
        self._pattern = re.compile(subjects.to_regex(subject), re.DOTALL) if subject else None
        self._literal = _longest_literal(subject)

    @property
    def is_one_subject(self) -> bool:
        """Whether it asks for the records on one subject, whatever their keys."""
        return self.key is None and not subjects.is_pattern(self.subject)

    def may_hold(self, batch: Batch) -> bool:
        """False only if no record of the batch is wanted. Raises CorruptBatchError."""
        return self._may_hold_subject(batch) and self._may_hold_key(batch)

    def _may_hold_subject(self, batch: Batch) -> bool:
        if self._pattern is None:
            return True
        column = batch.layout.subjects
        if column is None:
            return self._pattern.fullmatch(batch.layout.subject) is not None
        if self._literal not in batch.data(column):
            return False
        return self._literal == self.subject.encode() or self._has_subject(batch)

    def _has_subject(self, batch: Batch) -> bool:
        assert self._pattern is not None
        return any(map(self._pattern.fullmatch, set(batch.subjects())))

    def _may_hold_key(self, batch: Batch) -> bool:
        if self.key is None:
            return True
        column: Column | None = batch.layout.keys
        return column is not None and self.key in batch.data(column)

    def rows(self, batch: Batch) -> Sequence[int]:
        """The indexes of the wanted rows of the batch, in order. Raises CorruptBatchError."""
        rows: Sequence[int] = range(len(batch))
        if self._pattern is not None:
            if batch.layout.subjects is None:
                if self._pattern.fullmatch(batch.layout.subject) is None:
                    return ()
            else:
                given = batch.subjects()
                wanted = {each for each in set(given) if self._pattern.fullmatch(each)}
                rows = [row for row in rows if given[row] in wanted]
        if self.key is not None:
            keys = batch.keys()
            rows = [row for row in rows if keys[row] == self.key]
        return rows


def _longest_literal(pattern: str) -> bytes:
    """The longest text in every subject of the pattern: `orders.eu.` of `orders.eu.>`."""
    runs, run = [""], ""
    for token in pattern.split("."):
        if token in ("*", ">"):
            runs.append(f"{run}." if run else "")
            run = ""
        else:
            run = f"{run}.{token}" if run else token
    runs.append(run)
    return max(runs, key=len).encode("utf-8", "surrogateescape")
