"""The methods of `Client` about keyed groups of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.values.settings import AlterableSettings, GroupSettings
from jetstream_client.values.types import Stream, StreamDescription

if TYPE_CHECKING:
    from typing import Unpack


class KeyedGroupMethods:
    """What follows is part of `Client`, which sets these."""

    _client: AsyncClient
    _thread: LoopThread

    def create_group(
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
        return self._thread.run(
            self._client.create_group(name, subject, streams=streams, **settings)
        )

    def describe_keyed_group(self, name: str) -> list[StreamDescription]:
        """Describe the streams of a keyed group, by number, as `describe_streams` does. Each names
        its stream for calls about one, as in `client.pause_stream(each)`. Raises
        StreamNotFoundError if there is no such group."""
        return self._thread.run(self._client.describe_keyed_group(name))

    def alter_keyed_group(self, name: str, **settings: Unpack[AlterableSettings]) -> list[Stream]:
        """Change settings (see AlterableSettings) of each stream of a keyed group; returns the
        changed streams. If it fails, repeat it: a note at the error says which streams have the old
        settings. Raises StreamNotFoundError, and NoStreamError if the group lacks streams."""
        return self._thread.run(self._client.alter_keyed_group(name, **settings))

    def delete_keyed_group(self, name: str) -> None:
        """Delete the streams of a keyed group and their records, for good, from the last to the
        first. If it fails, repeat it: it deletes those that are left. Raises StreamNotFoundError if
        there are none. `delete_group` deletes a consumer group."""
        self._thread.run(self._client.delete_keyed_group(name))
