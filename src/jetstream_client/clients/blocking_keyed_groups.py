"""The methods of `Client` about keyed groups of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.values.settings import GroupSettings
from jetstream_client.values.types import Stream

if TYPE_CHECKING:
    from typing import Unpack


class KeyedGroupMethods:
    """What follows is part of `Client`, which sets these."""

    _client: AsyncClient
    _thread: LoopThread

    def create_group(
        self, name: str, subject: str, *, streams: int, **settings: Unpack[GroupSettings]
    ) -> list[Stream]:
        """Create a keyed group: so many streams, NAME-0, NAME-1 and so on, that share the subject,
        of which the key of a record chooses one. Returns all of them, in order.

        What exists already stays: a call that failed is finished by the same call, and one with
        more streams lets the group grow. Keys are then shared out anew, so that the later records
        of a key may be in another stream than the earlier ones. A group cannot shrink. Settings
        (see GroupSettings) hold for each stream. See docs/keyed_groups.md.

        Raises StreamExistsError if one of them exists with another configuration,
        InvalidRequestError for fewer streams than there are, and if another stream on the subject
        would not hear what is published by key.
        """
        return self._thread.run(
            self._client.create_group(name, subject, streams=streams, **settings)
        )
