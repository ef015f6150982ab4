"""The methods of `AsyncClient` about streams: creating, altering, describing, purging, deleting."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from jetstream_client.publishing.subject_routes import SubjectRoutes
from jetstream_client.reading.reader import Reader
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.streams import Streams
from jetstream_client.values.positions import Position
from jetstream_client.values.settings import AlterableSettings, StreamSettings
from jetstream_client.values.types import OffsetAt, Stream, StreamDescription, StreamLike

if TYPE_CHECKING:
    from typing import Unpack


class AsyncStreamMethods(AsyncMethods):
    """What follows is part of `AsyncClient`, which sets these."""

    _reader: Reader
    _routes: SubjectRoutes
    _streams: Streams

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        allow_same_name: bool = False,
        **settings: Unpack[StreamSettings],
    ) -> Stream:
        """Create a stream. If the same stream exists already, return it.

        When this returns, the stream listens: messages that are published from now on are stored.
        Settings (see StreamSettings and AlterableSettings) that are left out take the server's
        defaults. allow_same_name: create it although another subject has a stream of this name.
        Raises StreamExistsError if the stream exists with another configuration, or if another
        subject has a stream of this name.

            await client.create_stream("orders", subject="orders.>", max_age=7 * 86_400)
        """
        self._check_open()
        stream = await self._streams.create(
            name, subject, settings, allow_same_name=allow_same_name
        )
        self._routes.forget_all()
        return stream

    async def alter_stream(
        self,
        stream: StreamLike,
        *,
        stream_epoch: int | None = None,
        **settings: Unpack[AlterableSettings],
    ) -> Stream:
        """Change settings (see AlterableSettings) of a running stream; returns the changed stream.
        stream_epoch: change the settings only if the stream still has this epoch; otherwise raise
        PreconditionFailedError."""
        self._check_open()
        return await self._streams.alter(stream, settings, stream_epoch)

    async def describe_stream(self, stream: StreamLike) -> StreamDescription:
        """Describe a stream with what its leader knows; if the leader does not answer, with what
        any node knows. Raises StreamNotFoundError, AmbiguousStreamError."""
        self._check_open()
        return await self._streams.describe(stream)

    async def list_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[Stream]:
        """List all streams; with `feeding_subject`, only those that store messages of this subject.
        internal: also list the server's own streams, such as `__cursors`."""
        self._check_open()
        return await self._streams.find(feeding_subject, internal=internal)

    async def describe_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[StreamDescription]:
        """Describe the streams of `list_streams` with what their leaders know (or any node, if a
        leader does not answer). This makes one call to each node, however many streams there are.
        """
        self._check_open()
        return await self._streams.describe_all(feeding_subject, internal=internal)

    async def delete_stream(self, stream: StreamLike) -> None:
        """Delete a stream and its records, for good. Raises StreamNotFoundError."""
        self._check_open()
        await self._streams.delete(stream)
        self._routes.forget_all()

    async def purge_stream(self, stream: StreamLike, before: Position | None = None) -> int:
        """Remove the records before a position, or all committed records, on every replica. Returns
        the first offset kept.

        Only whole batches are removed: the batch that holds the position stays. The records of one
        subject cannot be purged. Purged records cannot be read any more; docs/sdk.md says until
        when their bytes stay on disk. Raises OffsetOutOfRangeError for an offset that is not
        committed.
        """
        self._check_open()
        offset = None if before is None else await self.offset_at(stream, before)
        return await self._streams.purge(stream, offset)

    async def set_stream_readonly(self, stream: StreamLike, readonly: bool = True) -> Stream:
        """Refuse every record from now on (StreamReadonlyError), or take records again. Reading,
        retention and compaction go on. Returns the changed stream."""
        return await self._routes_changed(self._streams.set_readonly(stream, readonly))

    async def pause_stream(self, stream: StreamLike) -> Stream:
        """Stop listening to the stream's subject: messages published from now on are not stored.

        Messages that were published before are stored when this returns. Reading, retention and
        compaction go on. A publish through this client raises StreamPausedError; other publishers
        get no answer.
        """
        return await self._routes_changed(self._streams.pause(stream))

    async def resume_stream(self, stream: StreamLike) -> Stream:
        """Undo `pause_stream`. When this returns, the stream listens."""
        return await self._routes_changed(self._streams.resume(stream))

    async def list_offsets(
        self, positions: Iterable[tuple[StreamLike, Position]]
    ) -> list[OffsetAt]:
        """Resolve positions of many streams in one call; the results are in the same order. An
        offset resolves to itself."""
        self._check_open()
        return await self._reader.list_offsets(list(positions))

    async def offset_at(self, stream: StreamLike, position: Position) -> int:
        """Return the offset of a position; for "latest" it is the offset of the next record."""
        self._check_open()
        return (await self._reader.resolve(stream, position, None))[0]

    # Living.

    async def _routes_changed(self, change: Coroutine[Any, Any, Stream]) -> Stream:
        try:
            self._check_open()
            return await change
        finally:
            change.close()
            self._routes.forget_all()
