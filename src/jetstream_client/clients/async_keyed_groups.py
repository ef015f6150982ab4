"""The methods of `AsyncClient` about keyed groups of streams."""

from __future__ import annotations

from typing import Unpack

from jetstream_client.publishing.keyed_group import (
    check_room,
    check_whole,
    names_of,
    note_rest,
    streams_of,
)
from jetstream_client.transport.streams import AsyncStreams
from jetstream_client.values.checks import check_text
from jetstream_client.values.settings import AlterableSettings, GroupSettings
from jetstream_client.values.types import Stream, StreamDescription
from jetstream_protocol.errors import JetstreamError


class AsyncKeyedGroups(AsyncStreams):
    """A part of `AsyncClient`."""

    async def create_group(
        self, name: str, subject: str, *, streams: int, **settings: Unpack[GroupSettings]
    ) -> list[Stream]:
        """Create a keyed group: streams NAME-0, NAME-1 and so on that share the subject. The key of
        a record chooses its stream. Returns all of them, in order.

        streams: how many. Existing streams stay. If a call fails, repeat it: it creates what is
        missing. With a larger number the group grows. Keys are then shared out anew, so that the
        later records of a key may be in another stream than the earlier ones. A group cannot
        shrink. Settings (see GroupSettings) hold for each stream. docs/keyed_groups.md has more.

        Raises StreamExistsError if one of the streams exists with another configuration,
        InvalidRequestError for fewer streams than there are, and if another stream on the subject
        would not hear messages that are published by key.
        """
        unknown = sorted(set(settings) - set(GroupSettings.__annotations__))
        if unknown:
            raise TypeError(f"create_group has no setting {unknown[0]!r}")
        check_text("the group's name", name)
        check_room(await self.list_streams(), name, subject, streams)
        try:
            return [
                await self.create_stream(
                    each, subject, **settings, group=name, partition=number, partitions=streams
                )
                for number, each in enumerate(names_of(name, streams))
            ]
        finally:
            self._forget_routes()

    async def describe_keyed_group(self, name: str) -> list[StreamDescription]:
        """Describe the streams of a keyed group, by number, as `describe_streams` does. Each names
        its stream for calls about one, as in `client.pause_stream(each)`. Raises
        StreamNotFoundError if there is no such group."""
        return streams_of(name, await self.describe_streams())

    async def alter_keyed_group(
        self, name: str, **settings: Unpack[AlterableSettings]
    ) -> list[Stream]:
        """Change settings (see AlterableSettings) of each stream of a keyed group; returns the
        changed streams. If it fails, repeat it: a note at the error says which streams have the old
        settings. Raises StreamNotFoundError, and NoStreamError if the group lacks streams."""
        streams = streams_of(name, await self.list_streams())
        check_whole(name, streams)
        altered: list[Stream] = []
        for at, stream in enumerate(streams):
            try:
                altered.append(await self.alter_stream(stream, stream_epoch=None, **settings))
            except JetstreamError as error:
                note_rest(error, name, streams, at)
                raise
        return altered

    async def delete_keyed_group(self, name: str) -> None:
        """Delete the streams of a keyed group and their records, for good, from the last to the
        first. If it fails, repeat it: it deletes those that are left. Raises StreamNotFoundError if
        there are none. `delete_group` deletes a consumer group."""
        streams = streams_of(name, await self.list_streams())[::-1]
        try:
            for at, stream in enumerate(streams):
                try:
                    await self.delete_stream(stream)
                except JetstreamError as error:
                    note_rest(error, name, streams, at)
                    raise
        finally:
            self._forget_routes()
