"""A keyed group: streams that share a subject; the key of a record chooses one of them.

A group may be growing, or have lost a stream. Each stream says how many streams the group was to
have when the stream was created. The number of partitions is the largest such number of which every
partition exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jetstream_client.values.positions import Position
from jetstream_client.values.types import Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NoStreamError,
    StreamNotFoundError,
)
from jetstream_protocol.stream_names import PARTITIONS_MAX
from jetstream_protocol.subjects import covers, ingest_prefix, matches, overlaps

_Stream = TypeVar("_Stream", bound=Stream)

_NAMED_MAX = 3
"""Streams that an error names."""


@dataclass(frozen=True, slots=True)
class KeyedGroup:
    """The partitions of one subject, by number. problem: why nothing can be published by key."""

    name: str
    streams: tuple[Stream, ...]
    problem: InvalidRequestError | NoStreamError | None = None

    @classmethod
    def among(cls, streams: Sequence[Stream], subject: str) -> KeyedGroup | None:
        """The keyed group of a subject with these streams; None: it has none."""
        members = [stream for stream in streams if stream.partition is not None]
        if not members:
            return None
        name = members[0].group
        by_number = {stream.partition: stream for stream in members}
        if any(stream.group != name for stream in members):
            others = sorted({stream.group for stream in members})
            return cls(name, (), InvalidRequestError(
                f"{subject!r} belongs to several keyed groups ({', '.join(others)}), and a key has "
                "one place: give the groups subjects that do not overlap"
            ))  # fmt: skip
        count = partition_count(members)
        if not count:
            wanted = min(stream.partitions for stream in members)
            missing = [number for number in range(wanted) if number not in by_number]
            return cls(name, (), NoStreamError(
                f"group {name!r} lacks partitions {missing} of {wanted}: create_group makes them"
            ))  # fmt: skip
        found = tuple(by_number[number] for number in range(count))
        heard = f"{ingest_prefix(name, 0)}{subject}"
        deaf = [
            stream.full_name
            for stream in streams
            if stream.group != name and not matches(stream.subject, heard)
        ]
        problem = None
        if deaf:
            problem = InvalidRequestError(
                f"{', '.join(deaf)} would not hear what is published to group {name!r}, which "
                f"listens on {ingest_prefix(name, 0)}… and so on: let it listen there, or delete it"
            )
        return cls(name, found, problem)


def partition_count(members: Sequence[Stream]) -> int:
    """How many partitions a keyed group with these streams has; 0: some are missing."""
    numbers = {stream.partition for stream in members}
    counts = {stream.partitions for stream in members}
    complete = [count for count in counts if numbers.issuperset(range(count))]
    return max(complete, default=0)


def streams_of(group: str, streams: Sequence[_Stream]) -> list[_Stream]:
    """The streams of a keyed group, by number. Raises StreamNotFoundError if there are none."""
    numbered = {
        each.partition: each
        for each in streams
        if each.group == group and each.partition is not None
    }
    if not numbered:
        raise StreamNotFoundError(f"there is no keyed group {group!r}")
    return [numbered[number] for number in sorted(numbered)]


def check_whole(group: str, members: Sequence[Stream]) -> None:
    """Raise NoStreamError if streams of the keyed group are missing, or hidden from the caller."""
    if not partition_count(members):
        wanted = min(each.partitions for each in members)
        there = {each.partition for each in members}
        missing = [number for number in range(wanted) if number not in there]
        raise NoStreamError(
            f"group {group!r} lacks partitions {missing} of {wanted}, or you may not see them: "
            "create_group makes missing ones"
        )


def check_group(name: str, streams: Sequence[Stream], *positions: Position | None) -> None:
    """Raise NoStreamError if streams are missing; InvalidRequestError for an offset."""
    check_whole(name, streams)
    if any(isinstance(position, int) for position in positions):
        raise InvalidRequestError(
            f"{name!r} is a group of streams, and each has offsets of its own: name one of them, "
            f"as in {streams[0].name}, or say earliest, latest, a time, or -10 for the last ten of "
            "each"
        )


def note_rest(error: JetstreamError, group: str, streams: Sequence[Stream], done: int) -> None:
    """Say at an error how far a change of a group's streams has come, if it has begun. done: for so
    many it was made; the next one failed."""
    if not done:
        return
    rest = streams[done:]
    last = f" to {rest[-1].name}" if len(rest) > 1 else ""
    error.add_note(
        f"not done, or not known to be done, for {rest[0].name}{last} of group {group!r}, and done "
        "for those before: repeat it"
    )


def names_of(group: str, count: int) -> list[str]:
    """The names of the streams of a keyed group that a client creates."""
    return [f"{group}-{number}" for number in range(count)]


def check_room(streams: Sequence[Stream], group: str, subject: str, count: int) -> None:
    """Raise InvalidRequestError if a keyed group of `count` streams does not fit beside the
    existing streams: it would shrink, or another stream would not hear messages that are published
    by key."""
    if type(count) is not int or not 0 < count <= PARTITIONS_MAX:
        raise InvalidRequestError(
            f"invalid number of streams {count!r}: a group has 1 to {PARTITIONS_MAX}"
        )
    there = max((stream.partitions for stream in streams if stream.group == group), default=0)
    if count < there:
        raise InvalidRequestError(
            f"group {group!r} has {there} streams: it cannot shrink, because the records of the "
            "others would have no reader; create another group, and copy"
        )
    heard = ingest_prefix(group, 0) + subject
    deaf = [
        stream.name
        for stream in streams
        if stream.group != group
        and overlaps(stream.subject, subject)
        and not covers(stream.subject, heard)
    ]
    if deaf:
        raise InvalidRequestError(
            f"{_list(deaf)} on this subject already and would miss what is published by key: "
            f"delete {'it' if len(deaf) == 1 else 'them'}, or choose another subject"
        )


def _list(names: Sequence[str]) -> str:
    """The first of them, and that they listen."""
    if len(names) == 1:
        return f"{names[0]} listens"
    first, more = names[:_NAMED_MAX], len(names) - _NAMED_MAX
    last = f"{more} more" if more > 0 else first[-1]
    return f"{', '.join(first if more > 0 else first[:-1])} and {last} listen"
