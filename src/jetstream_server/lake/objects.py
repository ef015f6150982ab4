"""Objects of the lake, and the list of a stream's objects. Pure.

An object holds the batches of one range of offsets, as the log holds them. It is read by groups of
whole batches. A list names all objects of a stream, in their order; a changed list is a new file.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import BatchHeader, iterate
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError

GROUP_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Group:
    """Whole batches in a row in an object: the unit of a read."""

    base_offset: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LakeObject:
    """One object. [begin, end): its offsets. last_epoch, newest_us: leader epoch and append
    timestamp of its last batch."""

    name: str
    begin: int
    end: int
    length: int
    last_epoch: int
    newest_us: int
    groups: tuple[Group, ...]

    def group_of(self, offset: int) -> tuple[Group, int]:
        """The group that holds `offset`, and where the next one begins."""
        at = bisect_right(self.groups, offset, key=lambda each: each.base_offset) - 1
        ends = (*self.groups[1:], None)
        following = ends[at]
        return self.groups[at], self.end if following is None else following.base_offset


def describe(name: str, data: bytes, begin: int, end: int) -> LakeObject:
    """What is in an object. Raises CorruptBatchError unless it holds exactly [begin, end), in valid
    batches that are not encrypted."""
    groups: list[Group] = []
    position, last = 0, None
    for header in checked_headers(data, begin, end):
        if not groups or position - groups[-1].position >= GROUP_BYTES:
            groups.append(Group(header.base_offset, position, 0))
        position += header.length
        last = header
        groups[-1] = Group(
            groups[-1].base_offset, groups[-1].position, position - groups[-1].position
        )
    assert last is not None, "checked_headers raises for nothing"
    return LakeObject(
        name, begin, end, len(data), last.leader_epoch, last.append_timestamp, tuple(groups)
    )


def checked_headers(data: bytes, begin: int, end: int) -> Iterator[BatchHeader]:
    """The headers of valid batches that hold exactly [begin, end). Raises CorruptBatchError."""
    offset, epoch = begin, -1
    for batch in iterate(data):
        header = batch.header
        if header.base_offset != offset or header.leader_epoch < epoch:
            raise CorruptBatchError(f"offset {header.base_offset} follows {offset - 1}")
        if header.flags & Flags.ENCRYPTED:
            raise CorruptBatchError(f"the records from offset {offset} on are encrypted")
        offset, epoch = header.next_offset, header.leader_epoch
        yield header
    if offset != end or begin == end:
        raise CorruptBatchError(f"the records end at offset {offset}, not {end}")


def encode_list(objects: Sequence[LakeObject]) -> bytes:
    return json.dumps([asdict(each) for each in objects], separators=(",", ":")).encode()


def decode_list(data: bytes) -> tuple[LakeObject, ...]:
    """Raises CorruptBatchError."""
    try:
        rows: list[dict[str, Any]] = bounded_json.loads(data)
        return tuple(
            LakeObject(**{**row, "groups": tuple(Group(**each) for each in row["groups"])})
            for row in rows
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptBatchError(f"the list of objects cannot be read: {error!r}") from error


def object_of(objects: Sequence[LakeObject], offset: int) -> LakeObject | None:
    """The object that holds `offset`."""
    at = bisect_right(objects, offset, key=lambda each: each.begin) - 1
    return objects[at] if at >= 0 and offset < objects[at].end else None
