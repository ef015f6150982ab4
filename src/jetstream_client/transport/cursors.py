"""Cursors: positions of readers that the cluster keeps.

Commits that wait while another call runs share the next one: a program with a thousand consumers
makes few calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from jetstream_client._closing import end_tasks
from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.lags import Lags
from jetstream_client.transport.recent import Recent
from jetstream_client.transport.recovery import Caller, repeats
from jetstream_client.transport.streams import Streams
from jetstream_client.values.checks import check_number, check_text
from jetstream_client.values.positions import Position, check_offset
from jetstream_client.values.types import Cursor, CursorDescription, StreamLike
from jetstream_protocol.descriptions import cursor_fields
from jetstream_protocol.errors import (
    JetstreamError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
    from_proto,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import cursors_pb2 as pb

NO_REVISION = -1
"""The revision of a cursor that does not exist."""

_SETS_MAX = 10

COMMITS_MAX = 500
"""In one call: half of what a server takes in bytes, were all as long as can be."""

OWNERS_MAX = 4096

Commit = pb.CommitCursorsRequest.Commit
Result = pb.CommitCursorsResponse.Result
_Waiting: TypeAlias = tuple[Commit, asyncio.Future[Result]]


class Cursors:
    """Belongs to the event loop it is first used on."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self.unanswered: Recent[str, bool] = Recent(OWNERS_MAX)
        """Owners whose last commit has an unknown outcome: it may be carried out, now or later."""
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    async def commit(self, commit: Commit) -> Result:
        """The result of the commit, with its `error` if it has one. Raises the error of the whole
        call."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((commit, answer))
        if self._sending is None:
            self._begin_sending()
        return await answer

    def _begin_sending(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(self._has_sent)

    async def _send(self) -> None:
        while True:
            # Whoever has given up waits for nothing, and has said so to its caller.
            self._waiting = [each for each in self._waiting if not each[1].done()]
            if not self._waiting:
                return
            asked = self._waiting[:COMMITS_MAX]
            ended, waiting = len(asked), len(self._waiting)
            failure = await self._send_some(asked)
            if failure is not None and is_passing(failure):
                # The later ones have waited as long, and need not wait for more calls.
                error = UnavailableError(failure.message)
                _fail(self._waiting[ended:waiting], error)
                ended = waiting
            del self._waiting[:ended]

    def _has_sent(self, sending: asyncio.Task[None]) -> None:
        """Whatever it ended with, no caller is left waiting."""
        self._sending = None
        failure: BaseException | None
        if sending.cancelled():
            failure = UnknownOutcomeError(
                "the client was closed before the commits were answered: they may or may not have "
                "been carried out"
            )
        else:
            failure = sending.exception()
        if failure is not None:
            unanswered, self._waiting = self._waiting, []
            _fail(unanswered, failure)
        elif self._waiting:
            self._begin_sending()

    async def _send_some(self, asked: list[_Waiting]) -> JetstreamError | None:
        """The error of the whole call, which those who wait get."""
        try:
            found: pb.CommitCursorsResponse = await self._control.call(
                pb.CommitCursorsRequest(commits=[commit for commit, _ in asked]),
                what="committing cursors",
                changes=True,
            )
        except JetstreamError as error:
            _fail(asked, error)
            return error
        for (_, answer), result in zip(asked, found.results, strict=True):
            if not answer.done():
                answer.set_result(result)
        return None

    async def list(self, name: str, stream: StreamLike | None) -> list[Cursor]:
        check_text("the cursor's name", name)
        ref = None if stream is None else wire.to_ref(stream)
        cursors: list[Cursor] = []
        page = b""
        while True:
            found: pb.ListCursorsResponse = await self._control.call(
                pb.ListCursorsRequest(name=name, stream=ref, page=page), what="listing cursors"
            )
            cursors += map(cursor_of, found.cursors)
            page = found.next_page
            if not page:
                return cursors

    async def find(self, name: str, stream: StreamLike) -> Cursor | None:
        found = await self.list(name, stream)
        return found[0] if found else None

    async def delete(self, found: Cursor) -> None:
        """Delete it as it was found: a copy of the call that arrives late deletes no other. Raises
        NotFoundError, PreconditionFailedError."""
        await self._control.call(
            pb.DeleteCursorRequest(
                name=found.name, stream=wire.to_ref(found.stream), expected_revision=found.revision
            ),
            what=f"deleting cursor {found.name!r}",
            changes=True,
            done_already=NotFoundError,
        )

    async def close(self) -> None:
        """Commits that wait raise UnknownOutcomeError."""
        await end_tasks(self._sending)


class AsyncCursors(AsyncMethods):
    """A part of `AsyncClient`, which sets these."""

    _cursors: Cursors
    _lags: Lags
    _streams: Streams

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
        return await self._lags.describe(await self.list_cursors(name, stream=stream))

    async def describe_cursor(self, name: str, stream: StreamLike) -> CursorDescription:
        """Describe one cursor: its position in a stream, and how far behind it is. Raises
        NotFoundError."""
        found = await self.list_cursors(name, stream=stream)
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
        return await self._commit(name, stream, offset, last_epoch, metadata)

    async def seek_cursor(self, name: str, stream: StreamLike, position: Position) -> Cursor:
        """Commit a position, given as for `consume`, from which the next consumer of the cursor
        begins. The stream must hold it; otherwise raises OffsetOutOfRangeError. Returns the cursor.

        A consumer that uses the cursor now ends with PreconditionFailedError.
        """
        self._check_open()
        known = await self._streams.registered(wire.to_ref(stream), self._control.timeout)
        offset = await self.offset_at(known, position)
        if isinstance(position, int):
            await self.fetch(known, offset, max_messages=1)  # Raises where it is not held.
        return await self._commit(name, known, offset, -1, "")

    async def delete_cursor(self, name: str, stream: StreamLike) -> None:
        """Delete a cursor of a stream. If the stream was deleted, name it in full (`name@subject`).
        Raises NotFoundError, PreconditionFailedError if it is committed at that moment."""
        found = await self._cursors.find(name, stream)
        if found is None:
            raise NotFoundError(f"there is no cursor {name!r} on stream {stream!r}")
        await self._cursors.delete(found)

    async def _commit(
        self, name: str, stream: StreamLike, offset: int, last_epoch: int, metadata: str
    ) -> Cursor:
        """Commit a position, no matter which was committed before. The commit follows the revision
        that was found, so a copy of the call that arrives late changes nothing. Raises
        PreconditionFailedError if others commit all the time."""
        check_text("the cursor's name", name)
        check_text("the metadata", metadata)
        ref = wire.to_ref(stream)
        found = await self._cursors.find(name, stream)
        for _ in range(_SETS_MAX):
            revision = NO_REVISION if found is None else found.revision
            result = await self._cursors.commit(
                commit_of(name, ref, offset, last_epoch, "", metadata, revision)
            )
            error = error_of(result)
            now = cursor_of(result.cursor) if result.HasField("cursor") else None
            if error is None:
                assert now is not None
                return now
            if not isinstance(error, PreconditionFailedError):
                raise error
            if revision == (NO_REVISION if now is None else now.revision):
                raise error  # It is its group that refuses.
            if now is not None and _says(now, offset, last_epoch, metadata):
                return now  # An earlier copy of this call was carried out, and its answer lost.
            found = now
        raise PreconditionFailedError(
            f"cursor {name!r} is being committed by others: stop them before it is moved"
        )


def _fail(waiting: Iterable[_Waiting], error: BaseException) -> None:
    for _, answer in waiting:
        if not answer.done():
            answer.set_exception(error)


def _says(cursor: Cursor, offset: int, last_epoch: int, metadata: str) -> bool:
    """Whether it is what `commit_cursor` would have made of it."""
    held = (cursor.offset, cursor.last_epoch, cursor.metadata, cursor.owner)
    return held == (offset, last_epoch, metadata, "")


def commit_of(
    name: str,
    ref: common_pb2.StreamRef,
    offset: int,
    last_epoch: int,
    owner: str,
    metadata: str,
    expected_revision: int | None,
    member: tuple[str, int] = ("", 0),
) -> Commit:
    """A commit for the wire. last_epoch: -1: not known. expected_revision: None: any. member: id
    and generation of a consumer group's member."""
    return Commit(
        name=name,
        stream=ref,
        offset=offset,
        last_epoch=None if last_epoch < 0 else check_number("last_epoch", last_epoch),
        owner=owner,
        metadata=metadata,
        expected_revision=expected_revision,
        member_id=member[0],
        generation=member[1],
    )


def cursor_of(cursor: pb.Cursor) -> Cursor:
    return Cursor(**cursor_fields(cursor))


def error_of(result: Result) -> JetstreamError | None:
    return from_proto(result.error) if result.HasField("error") else None


def is_passing(error: JetstreamError) -> bool:
    """Whether a later commit may succeed after this one failed."""
    return repeats(error, Caller.COMMIT)
