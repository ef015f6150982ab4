"""The `Cursors` service: commit, list, delete. The leader of `__cursors` answers; other nodes
forward. The first commit in a cluster creates the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from jetstream_protocol.cursor_names import check_cursor_name
from jetstream_protocol.errors import (
    CODES,
    InvalidRequestError,
    JetstreamError,
    NotFoundError,
    QuotaExceededError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_server.clocks import WallClock
from jetstream_server.cursors.events import Cause
from jetstream_server.cursors.records import CURSOR_PREFIX, cursor_key
from jetstream_server.cursors.store import CursorStore
from jetstream_server.cursors.table import Entry, Fence, Outcome, Write
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.error_limits import bounded
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.cursor_leader import CursorLeader
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import quota_holder
from jetstream_server.serving.grpc.turns import Turns
from jetstream_server.serving.stream_access import StreamAccess

COMMITS_MAX = 10_000
_COMMITS_PER_TURN = 100
"""Commits per turn: a few milliseconds of the event loop."""
PAGE = 2_000
METADATA_BYTES_MAX = 1024
_COMMIT = "/jetstream.v1.Cursors/CommitCursors"
OWNER_LENGTH_MAX = 64

_OFFSET_MAX = 2**63 - 1
_OfStream = pb.ListCursorsRequest | pb.DeleteCursorRequest


class CursorsService:
    """Checks the requests. The store decides."""

    def __init__(
        self,
        store: CursorStore,
        registry: Registry,
        leader: CursorLeader,
        access: StreamAccess,
        wall_clock: WallClock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._leader = leader
        self._access = access
        self._wall_clock = wall_clock
        self._turns = Turns(_COMMITS_PER_TURN)

    async def CommitCursors(
        self, request: pb.CommitCursorsRequest, call: Call
    ) -> pb.CommitCursorsResponse:
        if len(request.commits) > COMMITS_MAX:
            raise InvalidRequestError(f"at most {COMMITS_MAX} commits in one call")
        allowed, refused = await self._sorted_out(request, call.identity)
        if allowed.commits:
            with self._noting_doubt(allowed.commits, call.identity):
                results = (await self._commit(allowed, call)).results
            self._note_quota([each.error for each in results], call.identity)
            await self._note_moved(allowed.commits, results, call.identity)
            found = iter(results)
        return pb.CommitCursorsResponse(
            results=[refused.get(at) or next(found) for at in range(len(request.commits))]
        )

    async def _sorted_out(
        self, request: pb.CommitCursorsRequest, identity: Identity
    ) -> tuple[pb.CommitCursorsRequest, dict[int, pb.CommitCursorsResponse.Result]]:
        """The commits that the caller may make, with stream ids; and the answers to the others."""
        allowed = pb.CommitCursorsRequest()
        refused: dict[int, pb.CommitCursorsResponse.Result] = {}

        def sort(at: int) -> None:
            commit = request.commits[at]
            try:
                stream = self._access.resolve(identity, Operation.READ, commit.stream, unread)
                self._access.check_commit(identity, stream, commit.name, refused_names)
            except JetstreamError as error:
                refused[at] = self._result(Outcome(None, error))
                return
            commit.stream.CopyFrom(common_pb2.StreamRef(id=stream.id))
            allowed.commits.append(commit)

        control = self._access.control
        with (
            control.refusals(identity, Operation.READ) as unread,
            control.refusals(identity, Operation.COMMIT) as refused_names,
        ):
            await self._turns.map(sort, range(len(request.commits)))
        return allowed, refused

    async def _commit(
        self, request: pb.CommitCursorsRequest, call: Call
    ) -> pb.CommitCursorsResponse:
        principal = quota_holder(self._access.control, call)
        await self._leader.create()
        answer = await self._leader.forward(call, request, pb.CommitCursorsResponse, principal)
        if answer is not None:
            return answer
        now_us = self._wall_clock()
        check = partial(self._checked_write, now_us, principal)
        checked = await self._turns.map(check, request.commits)
        writes = [each for each in checked if isinstance(each, Write)]
        outcomes = iter(await self._store.write(writes) if writes else ())
        found = [
            next(outcomes) if isinstance(each, Write) else Outcome(None, each) for each in checked
        ]
        results = await self._turns.map(self._result, found)
        return pb.CommitCursorsResponse(results=results)

    @contextmanager
    def _noting_doubt(
        self, commits: Sequence[pb.CommitCursorsRequest.Commit], identity: Identity
    ) -> Iterator[None]:
        """Around making commits: note in the audit log if no caller hears whether cursors were
        moved by hand."""
        is_decided = identity.is_node
        try:
            yield
            is_decided = True
        finally:
            by_hand = [each for each in commits if not each.owner] if not is_decided else []
            if by_hand:
                first = self._resource_of(by_hand[0])
                self._access.control.audit.in_doubt(
                    identity, _COMMIT, first, repeated=len(by_hand) - 1
                )

    def _resource_of(self, commit: pb.CommitCursorsRequest.Commit) -> str:
        return f"{commit.name} in {self._access.name_of(commit.stream)}"

    def _note_quota(self, errors: Sequence[common_pb2.Error], identity: Identity) -> None:
        """Note a used-up quota in the audit log, on the node that the client has asked."""
        code = CODES[QuotaExceededError].code
        used_up = [each for each in errors if each.code == code]
        if used_up and not identity.is_node:
            error = QuotaExceededError(used_up[0].message)
            self._access.control.quota_error(identity, "CommitCursors", error)

    async def _note_moved(
        self,
        commits: Sequence[pb.CommitCursorsRequest.Commit],
        results: Sequence[pb.CommitCursorsResponse.Result],
        identity: Identity,
    ) -> None:
        """Note cursors that were moved by hand in the audit log, on the node that the client has
        asked. Commits of consumers, which come each second, name their owner."""
        if identity.is_node:
            return

        def note(commit: pb.CommitCursorsRequest.Commit) -> None:
            self._access.control.audit.moved(
                identity, _COMMIT, self._resource_of(commit), commit.offset
            )

        pairs = zip(commits, results, strict=True)
        moved = [each for each, result in pairs if not each.owner and not result.HasField("error")]
        await self._turns.map(note, moved)

    async def ListCursors(
        self, request: pb.ListCursorsRequest, call: Call
    ) -> pb.ListCursorsResponse:
        if request.HasField("stream"):
            self._name_in_full(request, call.identity)
        is_one = request.name and request.HasField("stream")
        if not (await self._leader.surely_exists() if is_one else self._leader.exists):
            return pb.ListCursorsResponse()
        if self._access.control.applies_to(call.identity):
            return await self._list_known(request, call)
        return await self._list(request, call)

    async def _list_known(
        self, request: pb.ListCursorsRequest, call: Call
    ) -> pb.ListCursorsResponse:
        """A page of what the caller may see. Where the next one begins is the key of a cursor, so
        it must be one of these."""
        asked = pb.ListCursorsRequest()
        asked.CopyFrom(request)
        while True:
            answer = await self._list(asked, call)
            known = [each for each in answer.cursors if self._may_see(call.identity, each)]
            if known or not answer.next_page:
                next_page = _key_of(known[-1]) if answer.next_page else b""
                return pb.ListCursorsResponse(cursors=known, next_page=next_page)
            asked.page = answer.next_page
            await asyncio.sleep(0)

    def _may_see(self, identity: Identity, cursor: pb.Cursor) -> bool:
        """Whether the caller may see a cursor, whose stream may be gone."""
        return self._access.control.allows_named(
            identity, Operation.READ, cursor.stream_name, cursor.stream_subject
        )

    async def _list(self, request: pb.ListCursorsRequest, call: Call) -> pb.ListCursorsResponse:
        answer = await self._leader.forward(call, request, pb.ListCursorsResponse)
        if answer is not None:
            return answer
        table = await self._store.table()
        if request.name and request.HasField("stream"):
            entry = table.committed_entries.get(_key(request))
            return pb.ListCursorsResponse(cursors=self._cursors([entry] if entry else []))
        entries, next_page = table.page(CURSOR_PREFIX, request.page, PAGE)
        cursors = [each for each in self._cursors(entries) if _is_asked_for(each, request)]
        return pb.ListCursorsResponse(cursors=cursors, next_page=next_page)

    async def DeleteCursor(
        self, request: pb.DeleteCursorRequest, call: Call
    ) -> pb.DeleteCursorResponse:
        self._name_in_full(request, call.identity)
        self._check_may_delete(request, call.identity)
        principal = quota_holder(self._access.control, call)
        if await self._leader.surely_exists():
            answer = await self._leader.forward(call, request, pb.DeleteCursorResponse, principal)
            if answer is not None:
                return answer
        key, ref = _key(request), request.stream
        if not self._leader.exists or key not in (await self._store.table()).committed_entries:
            raise NotFoundError(
                f"there is no cursor {request.name!r} on stream {_full_name(ref)!r}"
            )
        stream = self._registry.find(ref.name, ref.subject)
        fence = Fence(request.name, 0 if stream is None else stream.id)
        expected = request.expected_revision if request.HasField("expected_revision") else None
        (outcome,) = await self._store.write(
            [Write(key, None, expected, fence, cause=Cause(principal))]
        )
        if outcome.error is not None:
            raise outcome.error
        return pb.DeleteCursorResponse()

    # Requests.

    def _name_in_full(self, request: _OfStream, identity: Identity) -> None:
        """Put name and subject of the stream into the request, if the caller may read the stream.
        It may be gone; the request must then name it in full. Raises the errors of
        StreamAccess.resolve."""
        access, ref = self._access.control, request.stream
        if ref.id or not ref.subject:
            stream = self._access.resolve(identity, Operation.READ, ref)
            ref.CopyFrom(common_pb2.StreamRef(name=stream.name, subject=stream.subject))
        elif access.applies_to(identity) and not access.allows_named(
            identity, Operation.READ, ref.name, ref.subject
        ):
            raise access.denied_error(identity, Operation.READ, _full_name(ref))

    def _check_may_delete(self, request: pb.DeleteCursorRequest, identity: Identity) -> None:
        """request: names its stream in full. Raises PermissionDeniedError."""
        access, ref = self._access.control, request.stream
        if access.applies_to(identity) and not access.allows_named(
            identity, Operation.COMMIT, ref.name, ref.subject, request.name
        ):
            raise access.denied_error(
                identity, Operation.COMMIT, _full_name(ref), cursor=request.name
            )

    def _checked_write(
        self, now_us: int, principal: str, commit: pb.CommitCursorsRequest.Commit
    ) -> Write | JetstreamError:
        try:
            return self._write_of(commit, now_us, principal)
        except JetstreamError as error:
            return error

    def _write_of(
        self, commit: pb.CommitCursorsRequest.Commit, now_us: int, principal: str
    ) -> Write:
        """Convert. Raises InvalidRequestError, StreamNotFoundError, AmbiguousStreamError."""
        stream = self._registry.stream_of(commit.stream)
        if stream.is_internal:
            raise InvalidRequestError(
                f"{stream.name} is the server's own stream: it has no cursors"
            )
        if not 0 <= commit.offset <= _OFFSET_MAX:
            raise InvalidRequestError(f"offset {commit.offset} is impossible: offsets begin at 0")
        if len(commit.metadata.encode()) > METADATA_BYTES_MAX:
            raise InvalidRequestError(f"metadata is longer than {METADATA_BYTES_MAX} bytes")
        if len(commit.owner) > OWNER_LENGTH_MAX:
            raise InvalidRequestError(f"the owner is longer than {OWNER_LENGTH_MAX} characters")
        cursor = pb.Cursor(
            name=check_cursor_name(commit.name),
            stream_id=stream.id,
            stream_name=stream.name,
            stream_subject=stream.subject,
            offset=commit.offset,
            last_epoch=commit.last_epoch if commit.HasField("last_epoch") else None,
            committed_at_us=now_us,
            owner=commit.owner,
            metadata=commit.metadata,
        )
        expected = commit.expected_revision if commit.HasField("expected_revision") else None
        return Write(
            cursor_key(commit.name, stream.full_name),
            cursor.SerializeToString(),
            expected,
            Fence(commit.name, stream.id, commit.member_id, commit.generation),
            principal,
            self._access.control.quotas.cursors,
            Cause(principal, by_hand=not commit.owner),
        )

    # Answers.

    def _result(self, outcome: Outcome) -> pb.CommitCursorsResponse.Result:
        result = pb.CommitCursorsResponse.Result()
        if outcome.error is not None:
            result.error.CopyFrom(bounded(outcome.error))
        if outcome.entry is not None:
            result.cursor.CopyFrom(self._cursor(outcome.entry))
        return result

    def _cursors(self, entries: Sequence[Entry]) -> Iterator[pb.Cursor]:
        return map(self._cursor, entries)

    def _cursor(self, entry: Entry) -> pb.Cursor:
        cursor = pb.Cursor.FromString(entry.value)
        cursor.revision = entry.revision
        now = self._registry.find(cursor.stream_name, cursor.stream_subject)
        cursor.stream_id_now = 0 if now is None else now.id
        return cursor


def _key(request: _OfStream) -> bytes:
    """The key of the cursor in a request that names its stream in full."""
    return cursor_key(check_cursor_name(request.name), _full_name(request.stream))


def _key_of(cursor: pb.Cursor) -> bytes:
    return cursor_key(cursor.name, f"{cursor.stream_name}@{cursor.stream_subject}")


def _is_asked_for(cursor: pb.Cursor, request: pb.ListCursorsRequest) -> bool:
    """request: names its stream in full, if it names one."""
    of_stream = cursor.stream_name, cursor.stream_subject
    return request.name in ("", cursor.name) and (
        not request.HasField("stream") or of_stream == (request.stream.name, request.stream.subject)
    )


def _full_name(ref: common_pb2.StreamRef) -> str:
    return f"{ref.name}@{ref.subject}"
