"""The methods of `AsyncClient` about cursors: positions of readers that the cluster keeps."""

from __future__ import annotations

from collections.abc import Callable

from jetstream_client.clients.async_streams import AsyncStreamMethods
from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.reading.lags import Lags
from jetstream_client.transport import wire
from jetstream_client.transport.cursors import Cursors
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.positions import Position, check_offset
from jetstream_client.values.types import Cursor, CursorDescription, OnReset, StreamLike
from jetstream_protocol.errors import NotFoundError


class AsyncCursorMethods(AsyncStreamMethods):
    """What follows is part of `AsyncClient`, which sets these."""

    config: ClientConfig
    _cursors: Cursors
    _lags: Lags

    def _consumer_cursor(
        self,
        name: str | None,
        stream: StreamLike,
        on_reset: OnReset,
        auto_commit: bool,
        member: Callable[[], tuple[str, int]] = lambda: ("", 0),
    ) -> ConsumerCursor | None:
        if name is None:
            return None
        return ConsumerCursor(
            self._cursors,
            self._streams,
            name,
            stream,
            on_reset,
            auto_commit=auto_commit,
            timeout=self.config.timeout,
            member=member,
        )

    async def list_cursors(
        self, name: str = "", *, stream: StreamLike | None = None
    ) -> list[Cursor]:
        """List the cursors, by name and stream: all, those of one name, or those in one stream."""
        self._check_open()
        return await self._cursors.list(name, stream)

    async def describe_cursors(
        self, name: str = "", *, stream: StreamLike | None = None
    ) -> list[CursorDescription]:
        """Describe the cursors that `list_cursors` lists, with how far behind their streams they
        are."""
        self._check_open()
        return await self._lags.describe(await self._cursors.list(name, stream))

    async def describe_cursor(self, name: str, stream: StreamLike) -> CursorDescription:
        """Describe one cursor: its position in a stream, and how far behind it is. Raises
        NotFoundError."""
        self._check_open()
        found = await self._cursors.list(name, stream)
        if not found:
            raise NotFoundError(f"there is no cursor {name!r} on stream {stream!r}")
        return (await self._lags.describe(found))[0]

    async def commit_cursor(
        self,
        name: str,
        stream: StreamLike,
        offset: int,
        *,
        last_epoch: int = -1,
        metadata: str = "",
    ) -> Cursor:
        """Commit a position, no matter which was committed before. Returns once it is committed.

        offset: the next record to read. last_epoch: the `last_epoch` of the `Messages` read before;
        -1: not known. metadata: a text that is stored with it. A consumer that uses the cursor
        meanwhile ends with PreconditionFailedError.
        """
        self._check_open()
        check_offset(offset)
        return await self._cursors.set(name, stream, offset, last_epoch, metadata)

    async def seek_cursor(self, name: str, stream: StreamLike, position: Position) -> Cursor:
        """Commit a position, given as for `consume`, from which the next consumer of the cursor
        begins. The stream must hold it; otherwise raises OffsetOutOfRangeError. Returns the cursor.

        A consumer that uses the cursor now ends with PreconditionFailedError.
        """
        self._check_open()
        known = await self._streams.registered(wire.to_ref(stream), self.config.timeout)
        offset = await self.offset_at(known, position)
        if isinstance(position, int):
            await self._reader.fetch(known, offset, max_messages=1)  # Raises where it is not held.
        return await self._cursors.set(name, known, offset, -1, "")

    async def delete_cursor(self, name: str, stream: StreamLike) -> None:
        """Delete a cursor of a stream. If the stream was deleted, name it in full (`name@subject`).
        Raises NotFoundError."""
        self._check_open()
        await self._cursors.delete(name, stream)
