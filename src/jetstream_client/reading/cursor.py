"""The cursor of one consumer: where it resumes, and its commits.

Every commit says which revision of the cursor it follows. So a late copy of a commit changes
nothing, and a cursor that somebody has moved by hand stays where it was moved to. A commit whose
answer was lost is recognised by its owner, which is this consumer, or an earlier one of the same
client.

A consumer takes its cursor over when it opens it: it commits the position that it has found. From
then on whatever an earlier consumer commits is refused, also what arrives late from a program that
has died. A cursor that is new is taken over by the first commit, if that is made at once
(`auto_commit`). Members of a group need none of that: the coordinator refuses who owns no stream.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable

from jetstream_client._log import logger
from jetstream_client.transport import wire
from jetstream_client.transport.cursors import NO_REVISION, Cursors, commit_of, cursor_of, error_of
from jetstream_client.transport.streams import Streams
from jetstream_client.values.positions import Position
from jetstream_client.values.types import Cursor, OnReset, Stream, StreamLike
from jetstream_protocol.cursor_names import check_cursor_name
from jetstream_protocol.errors import (
    DivergedError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    UnknownOutcomeError,
)

CHECKPOINT_SECONDS = 1.0
TAKE_OVER_SECONDS = 2.0
"""So long a consumer waits to take its cursor over: while cursors cannot be committed, as when too
few of their replicas are in sync, one reads nevertheless."""
_ADOPTIONS_MAX = 3
_GRACE_SHARE = 0.05
"""Of the timeout: a commit is waited for so much longer. Its call ends before that, and says which
server does not answer."""


class ConsumerCursor:
    """The cursor of a consumer; call `open` first. committed: the position as it was last
    committed; None: it never was. reset_to: where to begin, because the stream is not the one on
    which it was committed."""

    def __init__(
        self,
        cursors: Cursors,
        streams: Streams,
        name: str,
        stream: StreamLike,
        on_reset: OnReset,
        *,
        auto_commit: bool,
        timeout: float,
        member: Callable[[], tuple[str, int]] = lambda: ("", 0),
    ) -> None:
        """member: id and generation of the consumer group's member that commits."""
        if on_reset not in ("error", "earliest", "latest"):
            raise InvalidRequestError(
                f"on_reset must be 'error', 'earliest' or 'latest', not {on_reset!r}"
            )
        self.name = check_cursor_name(name)
        self.auto_commit = auto_commit
        self._on_reset: OnReset = on_reset
        self.committed: int | None = None
        self.reset_to: Position | None = None
        self.began = 0
        """Where the consumer began; it sets this before it commits."""
        self.owner = f"{socket.gethostname()[:32]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._cursors = cursors
        self._streams = streams
        self._named = stream
        self._timeout = timeout
        self._member = member
        self._stream: Stream | None = None
        self._revision = NO_REVISION
        self._takes_over = False
        """Whether the next commit replaces that of any other consumer: the cursor was new."""
        self._turn = asyncio.Lock()

    async def open(self) -> tuple[int, int] | None:
        """Returns the offset to resume at and the leader epoch of the record before it; None: the
        cursor is new.

        Raises DivergedError if the stream was deleted and created again, unless `on_reset` says
        what to do then.
        """
        stream = await self._streams.registered(wire.to_ref(self._named), self._timeout)
        self._stream = stream
        found = await self._taken_over(stream)
        self._takes_over = found is None and self.auto_commit and not self._member()[0]
        if found is None:
            return None
        if found.stream_id != stream.id:
            self.reset_to = self.reset_by(
                DivergedError(
                    f"stream {stream.full_name!r} was deleted and created again since cursor "
                    f"{self.name!r} was committed at offset {found.offset} of the earlier one"
                )
            )
            return None
        self.committed = found.offset
        return found.offset, found.last_epoch

    async def _taken_over(self, stream: Stream) -> Cursor | None:
        """The cursor as it is; None: there is none. Nobody else's earlier commit can change it any
        more, if this consumer may commit, and can do so now."""
        tried = NO_REVISION
        for _ in range(_ADOPTIONS_MAX):
            found = await self._cursors.find(self.name, stream)
            self._revision = NO_REVISION if found is None else found.revision
            if found is None or found.stream_id != stream.id or self._member()[0]:
                break
            if found.owner == self.owner or found.revision == tried:
                break  # It was taken over, or its group refuses whoever is no member.
            tried = found.revision
            try:
                async with asyncio.timeout(TAKE_OVER_SECONDS):
                    if await self._commit(found.offset, found.last_epoch, found.metadata):
                        break
            except PreconditionFailedError:
                continue  # Another has committed meanwhile.
            except (JetstreamError, TimeoutError):
                break  # If it is to commit later, it will be told then.
        return found

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "it was opened"
        return self._stream

    def reset_by(self, error: JetstreamError) -> Position:
        """The stream no longer holds the position: returns where to go on. Raises `error` if
        `on_reset` is "error"."""
        if self._on_reset == "error":
            error.add_note(
                "say on_reset='earliest' or 'latest', or move the cursor: "
                f"jetstream cursor seek {self.name} {self.stream.full_name} POSITION"
            )
            raise error
        logger.warning("cursor %r begins anew at %r: %s", self.name, self._on_reset, error.message)
        return self._on_reset

    async def commit(self, offset: int, last_epoch: int, metadata: str = "") -> None:
        """Returns once it is committed. Raises PreconditionFailedError when somebody else has
        committed or moved the cursor; UnknownOutcomeError once the timeout has passed, also if it
        has waited for an earlier call that nobody answered."""
        try:
            async with asyncio.timeout(self._timeout * (1 + _GRACE_SHARE)), self._turn:
                for _ in range(_ADOPTIONS_MAX):
                    if await self._commit(offset, last_epoch, metadata):
                        self.committed = offset
                        self._takes_over = False
                        return
        except TimeoutError:
            raise UnknownOutcomeError(
                f"no server has answered in time whether cursor {self.name!r} is committed at "
                f"offset {offset}: it may be, or may be later"
            ) from None
        raise PreconditionFailedError(f"cursor {self.name!r} is committed by others; try again")

    async def _commit(self, offset: int, last_epoch: int, metadata: str) -> bool:
        """False: an earlier commit of ours had been carried out; now its revision is known."""
        ref = wire.to_ref(self.stream)
        unanswered = self._cursors.unanswered
        unanswered.put(self.owner, True)
        result = await self._cursors.commit(
            commit_of(
                self.name,
                ref,
                offset,
                last_epoch,
                self.owner,
                metadata,
                self._revision,
                self._member(),
            )
        )
        unanswered.pop(self.owner)
        now = cursor_of(result.cursor) if result.HasField("cursor") else None
        error = error_of(result)
        if error is None:
            assert now is not None
            self._revision = now.revision
            return True
        if not isinstance(error, PreconditionFailedError):
            raise error
        if now is not None and now.revision == self._revision:
            raise error  # It is its group that refuses.
        # A consumer of this client that was closed may have committed only after this one began.
        # **safety** Not where it left records that this one does not read: "latest" moves on.
        is_left = now is not None and now.owner in unanswered and now.offset >= self.began
        if now is not None and (now.owner == self.owner or is_left):
            self._revision = now.revision
            return False
        if self._takes_over and now is not None and now.owner:
            self._revision = now.revision
            return False
        if self._member()[0] or (now is None and self._revision == NO_REVISION):
            raise error  # To a member it says whether the stream is still the member's.
        raise PreconditionFailedError(self._take_name(now))

    def _take_name(self, now: Cursor | None) -> str:
        if now is None:
            return f"cursor {self.name!r} on {self.stream.full_name!r} was deleted meanwhile"
        who = now.owner or "by hand"
        return (
            f"cursor {self.name!r} on {self.stream.full_name!r} was committed at offset "
            f"{now.offset} by another ({who}): one consumer at a time may use it"
        )
