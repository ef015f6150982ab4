"""Which records do not fit a stream's schema, for streams that refuse those (`on_mismatch`).

**safety** What is let through has no `_error` for those who read it by the same schema: the decoder
that checks is the one that reads (`typed_values.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from jetstream_protocol.batch import Batch
from jetstream_protocol.columns import Body, Column, padded, plain_values
from jetstream_protocol.errors import SchemaMismatchError
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_json import decoded
from jetstream_protocol.typed_values import columns_of, errors_of, why_unread


class Fitting:
    """Checks records by one schema, and keeps nothing of them. For one thread."""

    def __init__(self, text: str) -> None:
        schema = parse(text)
        self._fields = schema.fields
        self._errors = errors_of(schema)
        self._why_unread = why_unread(schema)
        self._compiled: Any = None if self._why_unread else columns_of(schema)

    def check(self, batch: Batch) -> None:
        """Raise SchemaMismatchError if a record of the batch does not fit."""
        if self._compiled is not None:
            found = self._first(batch.body, batch.layout.values, 0, len(batch))
        else:
            found = next(iter(self._in_python(batch.values()).items()), None)
        if found is not None:
            at, why = found
            which = "the record" if len(batch) == 1 else f"record {at + 1} of {len(batch)}"
            raise _error(which, why)

    def fits_plain(self, body: Body, count: int) -> bool:
        """Whether so many plain messages fit; the body is that of their batch."""
        if self._compiled is None:
            return False  # So that each is looked at by itself.
        return self._first(body, plain_values(body, count), 0, count) is None

    def misfits(self, values: Sequence[bytes | None]) -> dict[int, SchemaMismatchError]:
        """The errors of those that do not fit, by position."""
        found = self._in_python(values) if self._compiled is None else self._in_c(values)
        return {at: _error("the record", why) for at, why in found.items()}

    def _in_python(self, values: Sequence[bytes | None]) -> dict[int, str]:
        if self._why_unread:  # Nobody here knows, so nothing is let through but tombstones.
            return {at: self._why_unread for at, each in enumerate(values) if each is not None}
        outcomes = (decoded(value, self._fields)[1] for value in values)
        return {at: why for at, why in enumerate(outcomes) if why is not None}

    def _in_c(self, values: Sequence[bytes | None]) -> dict[int, str]:
        items = [value or b"" for value in values]
        offsets = array("i", accumulate(map(len, items), initial=0)).tobytes()
        body = b"".join((offsets.ljust(padded(len(offsets)), b"\0"), *items))
        column, found, first = plain_values(body, len(items)), {}, 0
        while (misfit := self._first(body, column, first, len(items))) is not None:
            at, why = misfit
            if values[at] is not None:  # Tombstones fit.
                found[at] = why
            first = at + 1
        return found

    def _first(self, body: Body, column: Column, first: int, count: int) -> tuple[int, str] | None:
        """The first record from there on that does not fit, and why."""
        offsets, data, length, validity = column
        bits = None if validity < 0 else body
        at, number = self._compiled.check(
            body, offsets, body, data, length, bits, max(0, validity), first, count
        )
        return None if at < 0 else (at, self._errors[number - 1])


def _error(which: str, why: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"{which} does not fit the schema of the stream: {why}")
