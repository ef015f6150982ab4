"""Records of a file: what their fields may be, and what stands for those that are missing.

A file of another system has to have values only. **Invariant** reading a file twice with the same
`Defaults` gives the same records: an import that was interrupted reads its file once more, and
compares all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import lt
from pathlib import Path
from typing import Any

from jetstream_client.migration.records import Records
from jetstream_client.values.headers import outgoing
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.subjects import is_pattern
from jetstream_protocol.times import to_timestamp_us

OFFSET_MAX = 2**42 - 1
"""Offsets without records are covered by batches without any: so many take 400 MB."""
_NO_SUBJECT = re.compile(rb"[ \t\r\n]")
"""What no message of NATS can have in its subject."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """For records that lack them. subject: the new stream's, which stands for the records' only if
    it has no wildcard. timestamp: µs."""

    subject: str
    timestamp: int


class RecordsOfFile:
    """Makes `Records` of a file's fields, which come in order. unit: "line" or "row"."""

    def __init__(self, path: Path, unit: str, defaults: Defaults) -> None:
        self._path = path
        self._unit = unit
        self._defaults = defaults
        self._subject = None if is_pattern(defaults.subject) else defaults.subject.encode()
        self._has_offsets: bool | None = None
        self._next_offset = 0

    def row_error(self, number: int, what: object) -> InvalidRequestError:
        """number: of the line or row, from 1."""
        return InvalidRequestError(f"{self._path}, {self._unit} {number}: {what}")

    def complete(
        self, numbers: Sequence[int], offsets: Sequence[int | None],
        timestamps: Sequence[int | None], subjects: Sequence[bytes | None],
        keys: Sequence[bytes | None], values: Sequence[bytes | None],
        header_blocks: Sequence[bytes | None],
    ) -> Records:  # fmt: skip
        """Columns of the same length, at least one record; None: it has no such field. numbers: of
        the lines or rows. Raises InvalidRequestError, which names the line or row."""
        time = self._defaults.timestamp
        return Records(
            self._offsets(numbers, offsets),
            [time if each is None else each for each in timestamps],
            self._subjects(numbers, subjects),
            keys,
            values,
            [block or b"" for block in header_blocks],
        )

    def _offsets(self, numbers: Sequence[int], offsets: Sequence[int | None]) -> Sequence[int]:
        if self._has_offsets is None:
            self._has_offsets = offsets[0] is not None
        if not self._has_offsets:
            for number, offset in zip(numbers, offsets, strict=True):
                if offset is not None:
                    raise self.row_error(
                        number, 'it has an "offset", and the records before it have none'
                    )
            given: Sequence[int] = range(self._next_offset, self._next_offset + len(offsets))
        else:
            given = self._growing(numbers, offsets)
        self._next_offset = given[-1] + 1
        return given

    def _growing(self, numbers: Sequence[int], offsets: Sequence[int | None]) -> Sequence[int]:
        found = [offset for offset in offsets if offset is not None]
        is_whole = len(found) == len(offsets)
        if is_whole and found[0] >= self._next_offset and all(map(lt, found, found[1:])):
            if found[-1] > OFFSET_MAX:
                at = next(row for row, offset in enumerate(found) if offset > OFFSET_MAX)
                raise self.row_error(
                    numbers[at], f"offset {found[at]} is too large: an import takes {OFFSET_MAX}"
                )
            return found
        least = self._next_offset
        for number, offset in zip(numbers, offsets, strict=True):
            if offset is None:
                raise self.row_error(
                    number, 'it has no "offset", and the records before it have one'
                )
            if offset < least:
                raise self.row_error(
                    number,
                    f"offset {offset} comes after {least - 1}: offsets must grow"
                    if offset >= 0
                    else f"offset {offset} is below 0",
                )
            least = offset + 1
        raise AssertionError("one of them is wrong")

    def _subjects(
        self, numbers: Sequence[int], subjects: Sequence[bytes | None]
    ) -> Sequence[bytes]:
        wrong = {each for each in set(subjects) if not self._is_subject(each)}
        for number, subject in zip(numbers, subjects, strict=True) if wrong else ():
            if subject in wrong and subject is None:
                raise self.row_error(
                    number,
                    f'it has no "subject", and that of the stream, {self._defaults.subject}, has '
                    "wildcards: say a subject without wildcards, or give each record one",
                )
            if subject in wrong:
                raise self.row_error(
                    number, f"subject {subject!r}: a subject is not empty and has no white space"
                )
        return [self._subject or b"" if each is None else each for each in subjects]

    def _is_subject(self, subject: bytes | None) -> bool:
        if subject is None:
            return self._subject is not None
        return bool(subject) and not _NO_SUBJECT.search(subject)


def timestamp_of(text: object) -> int:
    """µs. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(
            f"timestamp {text!r}: it must be text such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"timestamp {text!r} has no time zone: add Z if it is UTC")
    return to_timestamp_us(moment)


def header_block_of(headers: Mapping[str, Any]) -> bytes:
    """Texts, or lists of texts, by their names, as a raw NATS header block. Raises ValueError."""
    for name, given in headers.items():
        texts = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError(f"header {name!r}: it must be text, or a list of texts")
    try:
        pairs = outgoing(headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        return f"NATS/1.0\r\n{lines}\r\n".encode() if pairs else b""
    except InvalidRequestError as error:
        raise ValueError(error.message) from None


def checked_block(block: bytes | None) -> bytes | None:
    """A header block that somebody has written. What is none would be stored, and read as no
    headers. Raises ValueError."""
    if not block or (block.startswith(b"NATS/1.0") and block.endswith(b"\r\n\r\n")):
        return block
    raise ValueError(
        "it is no header block of NATS, which begins with NATS/1.0 and ends with an empty line"
    )
