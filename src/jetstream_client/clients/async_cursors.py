"""The methods of `AsyncClient` about cursors: positions of readers that the cluster keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.reading.lags import Lags
from jetstream_client.reading.reader import Reader
from jetstream_client.transport import wire
from jetstream_client.transport.cursors import Cursors
from jetstream_client.transport.streams import Streams
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.positions import Position, check_offset
from jetstream_client.values.types import Cursor, CursorDescription, OnReset, StreamLike
from jetstream_protocol.errors import NotFoundError


class AsyncCursorMethods(ABC):
    """What follows is part of `AsyncClient`, which sets these."""

    config: ClientConfig
    _cursors: Cursors
    _lags: Lags
    _reader: Reader
    _streams: Streams

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    async def offset_at(self, stream: StreamLike, position: Position) -> int: ...

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
        """The positions that are kept, by cursor and stream: all, those of one cursor, or those in
        one stream."""
        self._check_open()
        return await self._cursors.list(name, stream)

    async def describe_cursors(
        self, name: str = "", *, stream: StreamLike | None = None
    ) -> list[CursorDescription]:
        """The cursors that `list_cursors` lists, with how far behind their streams they are."""
        self._check_open()
        return await self._lags.describe(await self._cursors.list(name, stream))

    async def describe_cursor(self, name: str, stream: StreamLike) -> CursorDescription:
        """One cursor's position in a stream, and how far behind it is. Raises NotFoundError."""
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
        """Commit a position, whatever was committed before. Returns once it is committed.

        offset: the next record to read. last_epoch: `Messages.last_epoch` of what was read before;
        -1: not known. A consumer that uses the cursor at the time ends with
        PreconditionFailedError.
        """
        self._check_open()
        check_offset(offset)
        return await self._cursors.set(name, stream, offset, last_epoch, metadata)

    async def seek_cursor(self, name: str, stream: StreamLike, position: Position) -> Cursor:
        """Commit a position said as for `consume`, which the stream must hold: for the next
        consumer of the cursor. One that uses it now ends with PreconditionFailedError.

        Raises OffsetOutOfRangeError.
        """
        self._check_open()
        known = await self._streams.registered(wire.to_ref(stream), self.config.timeout)
        offset = await self.offset_at(known, position)
        if isinstance(position, int):
            await self._reader.fetch(known, offset, max_messages=1)  # Raises where it is not held.
        return await self._cursors.set(name, known, offset, -1, "")

    async def delete_cursor(self, name: str, stream: StreamLike) -> None:
        """Forget a position, of a stream that may be gone: name that in full. Raises
        NotFoundError."""
        self._check_open()
        await self._cursors.delete(name, stream)
