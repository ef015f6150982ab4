"""Requests to the cluster before reading: the streams, their ranges, and the offsets of
positions.

The same code serves a batch read, which asks once, and a streaming query, which asks again and
again. It is written for an `AsyncClient` that its caller owns.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from jetstream_client import AsyncClient, Stream, StreamNotFoundError
from jetstream_client.values.types import partitions_of
from jetstream_protocol.stream_names import no_stream
from jetstream_protocol.subjects import overlaps
from pyspark_jetstream.errors import OptionError, log
from pyspark_jetstream.options import ReadOptions, Selection
from pyspark_jetstream.positions import Place, Positions

_T = TypeVar("_T")


BEHIND_SECONDS = 5.0
"""How long a stream is looked for that a node does not know. A node hears of new and of deleted
streams a moment later than others, and one that has just woken even later."""

RETRY_SECONDS = 0.2
"""Pause between two questions to nodes that are behind."""


@dataclass(frozen=True)
class Held:
    """Committed records of a stream: [earliest, latest). leader_epoch: of the leader that answered;
    no record has a later one. -1: unknown."""

    earliest: int
    latest: int
    leader_epoch: int = -1


def select(streams: Sequence[Stream], selection: Selection) -> dict[int, Stream]:
    """The selected streams by id, of those there are. Raises OptionError if a name fits several."""
    if selection.names:
        found = [_named(name, streams) for name in selection.names]
        chosen = [stream for stream in found if stream is not None]
    else:
        pattern = re.compile(selection.pattern or ".*")
        chosen = [stream for stream in streams if pattern.fullmatch(stream.name)]
    if selection.subjects:
        chosen = [
            stream
            for stream in chosen
            if any(overlaps(stream.subject, subject) for subject in selection.subjects)
        ]
    return {stream.id: stream for stream in sorted(chosen, key=lambda stream: stream.id)}


def names_of(full_names: Iterable[str]) -> set[str]:
    """Everything that such streams may be called in options: `name@subject`, and `name`."""
    return {each for full_name in full_names for each in (full_name, full_name.partition("@")[0])}


def missing(streams: Iterable[Stream], selection: Selection) -> list[str]:
    """The names in the options of which there is no stream."""
    there = names_of(stream.full_name for stream in streams)
    return [name for name in selection.names if name not in there]


def _named(name: str, streams: Sequence[Stream]) -> Stream | None:
    found = [stream for stream in streams if name in (stream.name, stream.full_name)]
    if len(found) > 1:
        candidates = " or ".join(sorted(stream.full_name for stream in found))
        raise OptionError(
            f"several streams are named {name!r}: write {candidates} in option streams"
        )
    return found[0] if found else None


def not_found(name: str, streams: Sequence[Stream]) -> str:
    """What is wrong with a name of which there is no stream."""
    partitions = partitions_of(name, streams)
    if partitions:
        pattern = f"{name}-[0-9]+"
        return f"option streams: {no_stream(name, partitions)}, or use streamPattern {pattern!r}"
    known = ", ".join(sorted(stream.full_name for stream in streams)[:10])
    hint = f"name one of those there are: {known}" if known else "the cluster has none: create it"
    return f"option streams names {name!r}, and there is no such stream; {hint}"


def check_names(streams: Sequence[Stream], selection: Selection) -> None:
    """Raise OptionError if there is no stream of a name."""
    for name in missing(streams, selection):
        raise OptionError(not_found(name, streams))


def warn_of_subjects(streams: Sequence[Stream], selection: Selection) -> None:
    """Log a warning for each pattern of option subject that no selected stream can fit."""
    named = select(streams, replace(selection, subjects=())).values()
    for subject in selection.subjects:
        if not any(overlaps(stream.subject, subject) for stream in named):
            log.warning(
                "option subject: no stream that is read listens on %r, so it adds no records; "
                "commas separate patterns: write a comma that belongs to a subject as \\,",
                subject,
            )


def check_found(streams: Mapping[int, Stream], selection: Selection) -> None:
    """Raise OptionError for a batch read of no stream."""
    if not streams:
        raise OptionError(
            f"no stream fits streamPattern {selection.pattern!r} and subject "
            f"{','.join(selection.subjects)!r}: `jetstream stream list` shows the streams there are"
        )


async def settled(ask: Callable[[], Awaitable[_T]], seconds: float) -> _T:
    """What `ask` returns, which lists streams and asks their leaders. The node that lists them may
    be a moment behind, or ahead: StreamNotFoundError is raised if that lasts for `seconds`."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await ask()
        except StreamNotFoundError:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def held(client: AsyncClient, stream_ids: Iterable[int]) -> dict[int, Held]:
    """The committed records of each stream. Raises StreamNotFoundError for one that is gone."""
    ids = list(stream_ids)
    queries: list[tuple[int, Place]] = [(number, "earliest") for number in ids]
    queries += [(number, "latest") for number in ids]
    found = await client.list_offsets(queries)
    return {
        number: Held(earliest.offset, max(earliest.offset, latest.offset), latest.leader_epoch)
        for number, earliest, latest in zip(ids, found, found[len(ids) :], strict=False)
    }


async def resolve(
    client: AsyncClient,
    streams: Mapping[int, Stream],
    positions: Positions,
    known: Mapping[int, Held],
    options: ReadOptions,
) -> dict[int, int]:
    """The offset of each stream's place. Raises OptionError for an offset outside of the stream."""
    _check_names(positions, streams.values())
    found: dict[int, int] = {}
    by_time: list[tuple[int, Place]] = []
    for number, stream in streams.items():
        place = positions.place_for(stream.name, stream.full_name)
        if place == "earliest":
            found[number] = known[number].earliest
        elif place == "latest":
            found[number] = known[number].latest
        elif isinstance(place, int):
            found[number] = _within(place, stream, known[number], positions, options)
        else:
            by_time.append((number, place))
    answers = await client.list_offsets([(number, place) for number, place in by_time])
    for (number, _), answer in zip(by_time, answers, strict=True):
        found[number] = min(max(answer.offset, known[number].earliest), known[number].latest)
    return found


def _check_names(positions: Positions, streams: Iterable[Stream]) -> None:
    names = names_of(stream.full_name for stream in streams)
    strangers = sorted(positions.by_stream.keys() - names)
    if strangers:
        raise OptionError(
            f"{positions.option} names {', '.join(strangers)}, which this query does not read: "
            "leave it out or add it to option streams"
        )


def _within(
    offset: int, stream: Stream, holds: Held, positions: Positions, options: ReadOptions
) -> int:
    if holds.earliest <= offset <= holds.latest:
        return offset
    if not options.fail_on_data_loss:
        return min(max(offset, holds.earliest), holds.latest)
    raise OptionError(
        f"{positions.option} {offset} of stream {stream.full_name!r} is out of range: it holds "
        f"[{holds.earliest}, {holds.latest}); choose an offset in there, or set "
        "failOnDataLoss=false to read what there is"
    )
