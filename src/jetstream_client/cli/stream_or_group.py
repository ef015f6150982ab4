"""Commands that take the name of a stream also take that of a keyed group: all its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jetstream_client.clients.blocking_client import Client
from jetstream_client.publishing.keyed_group import check_group, check_whole, note_rest, streams_of
from jetstream_client.values.positions import Position
from jetstream_client.values.types import Stream, StreamLike
from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    StreamNotFoundError,
)

_Done = TypeVar("_Done")
_Stream = TypeVar("_Stream", bound=Stream)

NO_SUCH_STREAM = (StreamNotFoundError, PermissionDeniedError)
"""What a server answers to a name that no stream has: the latter to callers whose rights are on
other names, such as those of the group's streams."""


def for_each(
    client: Client, name: str, do: Callable[[StreamLike], _Done]
) -> Iterator[tuple[str, _Done]]:
    """Do it to the stream of this name; if there is none, to each stream of the keyed group of this
    name. Each is reported by its name and result, before the next is begun."""
    try:
        done = do(name)
    except NO_SUCH_STREAM as error:
        streams = streams_in(client.list_streams(), name, error)
        check_whole(name, streams)
    else:
        yield name, done
        return
    yield from each_of(name, streams, do)


def read_each(
    client: Client, name: str, read: Callable[[StreamLike], _Done], *positions: Position
) -> list[_Done]:
    """A reading of the stream of this name; if there is none, one of each stream of the keyed group
    of this name, by number. Raises InvalidRequestError for a group and an offset."""
    try:
        return [read(name)]
    except NO_SUCH_STREAM as error:
        streams = streams_in(client.list_streams(), name, error)
        check_group(name, streams, *positions)
    return [read(stream) for stream in streams]


def each_of(
    group: str, streams: Sequence[Stream], do: Callable[[Stream], _Done]
) -> Iterator[tuple[str, _Done]]:
    """The same for streams of a keyed group. A failure says for which it was not done."""
    for at, stream in enumerate(streams):
        try:
            done = do(stream)
        except JetstreamError as error:
            note_rest(error, group, streams, at)
            raise
        yield stream.name, done


def streams_in(streams: Sequence[_Stream], name: str, error: JetstreamError) -> list[_Stream]:
    """Those of the keyed group of this name. error: what is raised if there are none, or a stream
    has the name."""
    try:
        if all(each.name != name for each in streams):
            return streams_of(name, streams)
    except StreamNotFoundError:
        pass
    raise error from None


def listed(streams: Sequence[Stream]) -> str:
    """How many, and their names."""
    if len(streams) == 1:
        return f"its stream {streams[0].name}"
    return f"its {len(streams)} streams, {streams[0].name} to {streams[-1].name},"
