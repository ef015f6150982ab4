"""What streams and keyed groups may be named, and how a partition is numbered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jetstream_protocol.errors import InvalidRequestError

NAME_LENGTH_MAX = 255

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

INTERNAL_PREFIX = "__"
"""Prefix of the names of the server's own streams. Users' streams must not have it."""

PARTITIONS_MAX = 10_000
"""Upper bound on the streams of a keyed group."""


def check_name(name: str) -> None:
    """Raise InvalidRequestError unless `name` can name a stream."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"invalid stream name {name!r}: use 1 to {NAME_LENGTH_MAX} letters, digits, '_', '-' "
            "and '.', beginning with a letter, a digit or '_'"
        )


def check_own_name(name: str) -> None:
    """Raise InvalidRequestError unless a user may give a new stream this name."""
    check_name(name)
    if name.startswith(INTERNAL_PREFIX):
        raise InvalidRequestError(
            f"invalid stream name {name!r}: names that begin with {INTERNAL_PREFIX!r} are for the "
            "server's own streams"
        )


def check_partition(group: str, partition: int, partitions: int) -> None:
    """Raise InvalidRequestError unless a stream can be this partition of that group. partitions: 0:
    the stream is not a partition."""
    if not partitions and not partition:
        return
    if not 0 <= partition < partitions <= PARTITIONS_MAX:
        raise InvalidRequestError(
            f"invalid partition {partition} of {partitions}: they count from 0, and a group has 1 "
            f"to {PARTITIONS_MAX}"
        )
    if not group:
        raise InvalidRequestError("a stream that is a partition needs the group of which it is one")


def no_stream(name: str, partitions: Sequence[str] = ()) -> str:
    """What is wrong with a name that no stream has. partitions: the names of the streams of the
    keyed group that has it, by number."""
    if not partitions:
        return f"there is no stream {name!r}"
    several = f"one of them, {partitions[0]} to {partitions[-1]}"
    return f"{name!r} is a group of streams: name {several if partitions[1:] else partitions[0]}"


def did_you_mean(asked: str, names: Iterable[str]) -> str:
    """What to add to `no_stream`: which of the names was meant; "": none is like it, or it is one
    of them."""
    from difflib import get_close_matches

    spelt = {name.lower(): name for name in names}
    for found in get_close_matches(asked.lower(), spelt, 1):
        if spelt[found] != asked:
            return f"; did you mean {spelt[found]!r}?"
    return ""
