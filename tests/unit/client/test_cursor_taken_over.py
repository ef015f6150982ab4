"""A consumer takes its cursor over: what an earlier one commits later changes nothing and ends
nobody. The table of cursors is the server's; what comes when is the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.transport import wire
from jetstream_client.transport.cursors import Commit, Result, cursor_of
from jetstream_client.transport.recent import Recent
from jetstream_client.values.types import Cursor
from jetstream_protocol.errors import (
    JetstreamError,
    NotEnoughReplicasError,
    PermissionDeniedError,
    PreconditionFailedError,
)
from jetstream_protocol.generated import api_pb2
from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_server.cursors.table import CursorTable, Write
from tests.support.virtual_time import on_virtual_loop

STREAM = wire.stream_of(api_pb2.Stream(id=7, name="orders", subject="orders.>"))
KEY = b"cursor/billing/orders@orders.>"


class Server:
    """`Cursors` of a client, and the table behind it. before_commit, error: of the next commit.
    held: of a client that is killed after its commit has left; it arrives when the test says so."""

    def __init__(self) -> None:
        self.table = CursorTable()
        self.end_offset = 0
        self.unanswered: Recent[str, bool] = Recent(100)
        self.before_commit: Callable[[], object] | None = None
        self.error: JetstreamError | None = None
        self.held: list[Commit] | None = None

    async def find(self, name: str, stream: object) -> Cursor | None:
        entry = self.table.committed_entries.get(KEY)
        return None if entry is None else self._cursor(entry)

    async def commit(self, commit: Commit) -> Result:
        if self.held is not None:
            self.held.append(commit)
            raise KilledError
        if self.error is not None:
            raise self.error
        before, self.before_commit = self.before_commit, None
        if before is not None:
            before()
        return self.arrived(commit)

    def arrived(self, commit: Commit) -> Result:
        cursor = pb.Cursor(
            name=commit.name,
            stream_id=STREAM.id,
            stream_name=STREAM.name,
            stream_subject=STREAM.subject,
            offset=commit.offset,
            owner=commit.owner,
            metadata=commit.metadata,
        )
        write = Write(KEY, cursor.SerializeToString(), commit.expected_revision)
        plan = self.table.plan([[write]], self.end_offset)
        self.table.appended(plan)
        self.end_offset = plan.end_offset
        self.table.advance(self.end_offset)
        [[outcome]] = plan.answers
        result = Result()
        if outcome.error is not None:
            result.error.CopyFrom(outcome.error.to_proto())
        if outcome.entry is not None:
            result.cursor.CopyFrom(self._proto(outcome.entry))
        return result

    def _cursor(self, entry: Any) -> Cursor:
        return cursor_of(self._proto(entry))

    def _proto(self, entry: Any) -> pb.Cursor:
        cursor = pb.Cursor.FromString(entry.value)
        cursor.revision = entry.revision
        cursor.stream_id_now = STREAM.id
        return cursor

    @property
    def stored(self) -> tuple[int, str]:
        found = pb.Cursor.FromString(self.table.committed_entries[KEY].value)
        return found.offset, found.metadata


class KilledError(Exception):
    """The program is no more."""


class Streams:
    async def registered(self, ref: object, timeout: float) -> Any:
        return STREAM


def client_of(server: Server) -> Server:
    """Another client of the same server, with a connection of its own."""
    other = Server()
    other.arrived = server.arrived  # type: ignore[method-assign]
    other.table = server.table
    return other


def cursor(
    client: Server, *, auto_commit: bool = True, member: Callable[[], tuple[str, int]] | None = None
) -> ConsumerCursor:
    given: dict[str, Any] = {} if member is None else {"member": member}
    made: Any = ConsumerCursor
    found = made(
        client, Streams(), "billing", "orders", "error", auto_commit=auto_commit, timeout=1, **given
    )
    assert isinstance(found, ConsumerCursor)
    return found


async def killed_while_committing(server: Server, offset: int, opened_at: int | None) -> Commit:
    """The last commit of a program that opened the cursor and was killed; it has not arrived."""
    client = client_of(server)
    program = cursor(client)
    assert await program.open() == (None if opened_at is None else (opened_at, -1))
    client.held = []
    with pytest.raises(KilledError):
        await program.commit(offset, -1)
    return client.held[0]


async def committed(server: Server, offset: int, metadata: str = "") -> None:
    first = cursor(client_of(server))
    await first.open()
    await first.commit(offset, -1, metadata)


@pytest.mark.parametrize("auto_commit", [True, False])
@on_virtual_loop
async def test_a_commit_that_arrives_after_the_next_consumer_has_opened_is_refused(
    auto_commit: bool,
) -> None:
    server = Server()
    await committed(server, 3, "three")
    late = await killed_while_committing(server, 6, 3)
    successor = cursor(client_of(server), auto_commit=auto_commit)
    assert await successor.open() == (3, -1)
    assert server.stored == (3, "three")
    assert server.arrived(late).HasField("error")
    await successor.commit(4, -1)
    assert server.stored == (4, "")
    assert server.arrived(late).HasField("error")
    await successor.commit(5, -1)


@on_virtual_loop
async def test_one_that_arrives_while_it_opens_is_where_it_begins() -> None:
    server = Server()
    await committed(server, 3)
    late = await killed_while_committing(server, 6, 3)
    client = client_of(server)
    client.before_commit = lambda: server.arrived(late)
    successor = cursor(client)
    assert await successor.open() == (6, -1)
    await successor.commit(7, -1)
    assert server.stored == (7, "")


@on_virtual_loop
async def test_the_first_commit_of_a_new_cursor_may_come_late_too() -> None:
    server = Server()
    late = await killed_while_committing(server, 6, None)
    successor = cursor(client_of(server))
    assert await successor.open() is None
    server.arrived(late)
    await successor.commit(0, -1)
    await successor.commit(1, -1)
    assert server.stored == (1, "")
    assert server.arrived(late).HasField("error")


@on_virtual_loop
async def test_a_first_commit_by_hand_of_a_new_cursor_takes_nothing_back() -> None:
    """Who has not committed for days may be far behind another."""
    server = Server()
    slow = cursor(client_of(server), auto_commit=False)
    assert await slow.open() is None
    await committed(server, 1_000)
    with pytest.raises(PreconditionFailedError, match="one consumer at a time"):
        await slow.commit(5, -1)
    assert server.stored == (1_000, "")


@on_virtual_loop
async def test_of_two_consumers_the_one_that_opened_first_ends() -> None:
    server = Server()
    await committed(server, 3)
    first, second = cursor(client_of(server)), cursor(client_of(server))
    await first.open()
    await second.open()
    with pytest.raises(PreconditionFailedError, match="one consumer at a time"):
        await first.commit(5, -1)
    await second.commit(4, -1)
    assert server.stored == (4, "")


@on_virtual_loop
async def test_a_cursor_that_was_moved_by_hand_stays_there() -> None:
    server = Server()
    successor = cursor(client_of(server))
    assert await successor.open() is None
    server.arrived(Commit(name="billing", offset=9, expected_revision=-1))
    with pytest.raises(PreconditionFailedError, match="by hand"):
        await successor.commit(0, -1)
    assert server.stored == (9, "")


@pytest.mark.parametrize("error", [PermissionDeniedError("no"), NotEnoughReplicasError("no")])
@on_virtual_loop
async def test_who_cannot_commit_reads_nevertheless(error: JetstreamError) -> None:
    server = Server()
    await committed(server, 3)
    client = client_of(server)
    client.error = error
    reader = cursor(client)
    assert await reader.open() == (3, -1)
    client.error = None
    await reader.commit(4, -1)
    assert server.stored == (4, "")


@on_virtual_loop
async def test_a_member_takes_nothing_over_the_coordinator_decides() -> None:
    server = Server()
    await committed(server, 3)
    revision = server.table.committed_entries[KEY].revision
    member = cursor(client_of(server), member=lambda: ("m", 1))
    assert await member.open() == (3, -1)
    assert server.table.committed_entries[KEY].revision == revision


@pytest.mark.parametrize(("began", "is_passed_over"), [(3, False), (5, True)])
@on_virtual_loop
async def test_what_a_member_left_in_a_stream_that_began_at_latest_is_not_passed_over(
    began: int, is_passed_over: bool
) -> None:
    """It began at offset 3 and gave up before its first commit had arrived. When it begins again,
    the end of the stream is another."""
    server = Server()
    first, again = (cursor(server, member=lambda: ("m", 1)) for _ in range(2))
    assert await first.open() is None
    server.held = late = []
    with pytest.raises(KilledError):
        await first.commit(3, -1)
    server.held = None
    assert await again.open() is None
    again.began = began
    server.arrived(late[0])
    if is_passed_over:
        with pytest.raises(PreconditionFailedError):
            await again.commit(5, -1)
        assert server.stored == (3, "")
    else:
        await again.commit(5, -1)
        assert server.stored == (5, "")
