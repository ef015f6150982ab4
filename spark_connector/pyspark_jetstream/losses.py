"""Finds what a streaming query has lost between two batches: streams that were deleted, created
again or cut back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from jetstream_protocol.subjects import overlaps
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.options import Selection


def is_selected(full_name: str, selection: Selection) -> bool:
    """Whether the options name the stream. A pattern or subject may select any stream."""
    name, _, subject = full_name.partition("@")
    if selection.subjects and not any(overlaps(subject, each) for each in selection.subjects):
        return False
    if selection.names:
        return name in selection.names or full_name in selection.names
    return re.fullmatch(selection.pattern or ".*", name) is not None


def losses(
    start: Offsets, end: Offsets, earliest: Mapping[int, int], selection: Selection
) -> Iterator[str]:
    """One clause for each loss. earliest: the first offset kept, if known.

    A query that has not read anything yet has lost nothing, even if it begins again after the end
    of its first batch.
    """
    if start.cluster != end.cluster:
        yield (
            "the checkpoint and servers belong to different clusters, "
            f"{start.cluster!r} and {end.cluster!r}"
        )
        return
    if start.initial:
        return
    by_name = {mark.name: number for number, mark in end.streams.items()}
    for number, mark in start.streams.items():
        if number not in end.streams:
            # A stream that the options do not name any more is left out on purpose.
            if is_selected(mark.name, selection):
                yield _gone(number, mark, by_name)
        elif end.streams[number].offset < mark.offset:
            yield (
                f"stream {mark.name!r} ends at offset {end.streams[number].offset}, and the query "
                f"has read up to {mark.offset}: its log was cut back"
            )
        elif earliest.get(number, 0) > mark.offset:
            yield (
                f"stream {mark.name!r} begins at offset {earliest[number]}, and the query has read "
                f"only up to {mark.offset}: retention removed the records between"
            )


def _gone(number: int, mark: Mark, by_name: Mapping[str, int]) -> str:
    if mark.name in by_name:
        return (
            f"stream {mark.name!r} was deleted and another made under its name (id {number} is "
            f"now {by_name[mark.name]})"
        )
    return f"stream {mark.name!r} was deleted"
