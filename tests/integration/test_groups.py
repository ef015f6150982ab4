"""Consumer groups with a real server: sharing, moving, members that die, freeze and come back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest

from jetstream_client import (
    AsyncClient,
    AsyncGroupConsumer,
    Client,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_client.cli.main import run as run_command
from jetstream_client.transport.groups import Groups
from jetstream_protocol.generated.groups_pb2 import GroupHeartbeatRequest, GroupHeartbeatResponse
from tests.support.loops import eventually as until
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

SESSION = 1.0
"""Of who is to be given up."""
LONG = 60.0
"""Of all others: no machine stands still for so long."""
STREAMS = 4


async def prepare(client: AsyncClient, name: str, records: int = 40) -> None:
    """A group of streams on one subject, with records in each."""
    for number in range(STREAMS):
        await client.create_stream(f"{name}-{number}", f"{name}.>", group=name)
    for number in range(records):
        await client.publish(f"{name}.x", b"%d" % number, acks="any")


class Worker:
    """A member that reads on, and notes what it was told."""

    def __init__(
        self, client: AsyncClient, name: str, session: float = LONG, **options: object
    ) -> None:
        self.values: list[bytes | None] = []
        self.events: list[tuple[str, int]] = []
        self.consumer: AsyncGroupConsumer = client.consume_group(
            name,
            f"{name}-workers",
            session_timeout=session,
            on_assigned=lambda names: self.events.append(("assigned", len(names))),
            on_revoked=lambda names: self.events.append(("revoked", len(names))),
            **options,  # type: ignore[arg-type]
        )
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        async with self.consumer as consumer:
            async for message in consumer:
                self.values.append(message.value)

    @property
    def count(self) -> int:
        return len(self.consumer.streams)

    async def end(self) -> None:
        await self.consumer.aclose()
        await asyncio.gather(self.task, return_exceptions=True)


@on_loop
async def test_members_share_the_streams_and_only_what_moves_stops(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "shared")
        first = Worker(client, "shared")
        await until(lambda: len(first.values) == 40)
        second = Worker(client, "shared")
        await until(lambda: first.count == second.count == 2)
        assert first.events == [("assigned", 4), ("revoked", 2)]
        found = await client.describe_group("shared-workers")
        assert (found.source, len(found.members), len(found.streams)) == ("shared", 2, STREAMS)
        assert [len(member.streams) for member in found.members] == [2, 2]
        assert found.is_settled
        for number in range(40, 80):
            await client.publish("shared.x", b"%d" % number, acks="any")
        await until(lambda: len(first.values) + len(second.values) == 80)
        await first.end()
        await until(lambda: second.count == STREAMS)
        assert second.events == [("assigned", 2), ("assigned", 2)]
        await second.end()
        # Nothing twice: who leaves commits before anybody else begins.
        assert sorted(first.values + second.values) == sorted(b"%d" % n for n in range(80))
        cursors = await client.describe_cursors("shared-workers")
        assert [(each.lag, each.state) for each in cursors] == [(0, "current")] * STREAMS
        assert (await client.describe_group("shared-workers")).members == ()


@on_loop
async def test_a_member_that_falls_silent_is_given_up_and_cannot_commit(
    server: ServerProcess,
) -> None:
    async with (
        AsyncClient(server.grpc, timeout=60) as frozen_client,
        AsyncClient(server.grpc, timeout=60) as client,
    ):
        await prepare(client, "silent")
        zombie = frozen_client.consume_group(
            "silent", "silent-workers", session_timeout=SESSION, auto_commit=False
        )
        await anext(zombie)
        beating = zombie._membership._beating
        assert beating is not None
        beating.cancel()  # Its process stands still.
        heir = Worker(client, "silent")
        await until(lambda: heir.count == STREAMS and len(heir.values) == 40)
        with pytest.raises(PreconditionFailedError, match="does not own the stream any more"):
            await zombie.commit()
        await heir.end()
        cursors = await client.describe_cursors("silent-workers")
        assert [each.lag for each in cursors] == [0] * STREAMS


@on_loop
async def test_a_member_that_was_given_up_joins_anew(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "again")
        member = Worker(client, "again")
        await until(lambda: len(member.values) == 40)
        await client.describe_group("again-workers")
        groups = member.consumer._membership._groups
        await groups.leave("again-workers", "again", member.consumer._membership.id)
        await until(lambda: member.events[-2:] == [("revoked", 4), ("assigned", 4)])
        await member.end()


@on_loop
async def test_a_named_member_takes_its_place_again_and_nothing_moves(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "named")
        other = Worker(client, "named")
        first = Worker(client, "named", instance="a")
        await until(lambda: first.count == other.count == 2)
        streams = sorted(first.consumer.streams)
        events = list(other.events)
        await first.end()  # As if it were restarted: its place is kept.
        second = Worker(client, "named", instance="a")
        await until(lambda: second.count == 2)
        assert sorted(second.consumer.streams) == streams
        assert other.events == events
        await second.end()
        third = Worker(client, "named", SESSION, instance="a")
        await until(lambda: third.count == 2)
        await third.end()
        await until(lambda: other.count == STREAMS)  # Its session has ended.
        await other.end()


@on_loop
async def test_only_members_commit_while_there_are_any(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "owned", 4)
        member = Worker(client, "owned")
        await until(lambda: len(member.values) == 4)
        with pytest.raises(PreconditionFailedError, match="only they commit"):
            await client.seek_cursor("owned-workers", "owned-0", "earliest")
        await member.end()
        await client.seek_cursor("owned-workers", "owned-0", "earliest")
        with pytest.raises(InvalidRequestError, match="session_timeout"):
            client.consume_group("owned", "owned-workers", session_timeout=0.1)
        with pytest.raises(StreamNotFoundError):
            await client.consume_group("nowhere", "workers").begin()


def test_a_client_without_asyncio_alike(client: Client) -> None:
    for number in range(2):
        client.create_stream(f"plain-{number}", "plain.>", group="plain")
    for number in range(10):
        client.publish("plain.x", b"%d" % number, acks="any")
    told: list[tuple[str, ...]] = []
    with client.consume_group(
        "plain", "plain-workers", session_timeout=LONG, on_assigned=lambda n: told.append((*n,))
    ) as consumer:
        values = [next(consumer).value for _ in range(7)]
        consumer.commit()
    with client.consume_group("plain", "plain-workers", session_timeout=LONG) as consumer:
        batches = consumer.batches(max_records=1)
        values += [value for _ in range(3) for value in next(batches).values()]
    assert sorted(values) == [b"%d" % number for number in range(10)]
    assert told == [("plain-0@plain.>", "plain-1@plain.>")]
    assert [group.name for group in client.list_groups()].count("plain-workers") == 1


@pytest.fixture
def moving(client: Client, name: str) -> str:
    """Two streams with records, to be shared out."""
    name = name[:40]
    for number in range(2):
        client.create_stream(f"{name}-{number}", f"{name}.>", group=name)
        while client.offset_at(f"{name}-{number}", "latest") < 3:
            client.publish(f"{name}.x", b"", acks="any")
    return name


def committed(client: Client, group: str) -> int:
    return sum(each.offset for each in client.list_cursors(group))


def test_a_listener_commits_what_goes_to_another_member(client: Client, moving: str) -> None:
    told: list[tuple[str, ...]] = []

    def revoked(names: Sequence[str]) -> None:
        told.append(tuple(names))
        member.commit()

    options = {"session_timeout": LONG, "auto_commit": False}
    member = client.consume_group(moving, moving, on_revoked=revoked, **options)  # type: ignore[arg-type]
    read = 0
    with member, client.consume_group(moving, moving, **options) as other:  # type: ignore[arg-type]
        while len(told) < 1:
            next(member)
            read += 1
            assert committed(client, moving) in (0, read - 1)
            client.publish(f"{moving}.x", b"", acks="any")
        before = committed(client, moving)
        assert before == read - 1  # All but the one that was handed out after it.
        next(other)
        assert committed(client, moving) == before
    assert len(told) == 2
    assert committed(client, moving) == read


def test_a_listener_closes_the_client_that_is_being_closed(client: Client, moving: str) -> None:
    told: list[int] = []

    def revoked(names: Sequence[str]) -> None:
        own.close()
        told.append(len(names))

    own = Client.from_config(client.config)
    member = own.consume_group(moving, moving, on_revoked=revoked)
    next(member)
    closing = threading.Thread(target=own.close, daemon=True)
    closing.start()
    closing.join(60)  # It would hang for ever.
    assert not closing.is_alive()
    assert told == [2]


def test_after_an_error_a_listener_does_not_commit_what_was_being_handled(
    client: Client, moving: str
) -> None:
    def handle_some() -> None:
        with client.consume_group(
            moving, moving, auto_commit=False, on_revoked=lambda _: member.commit()
        ) as member:
            for number, _ in enumerate(member):
                _ = 1 // (2 - number)

    with pytest.raises(ZeroDivisionError):
        handle_some()
    assert committed(client, moving) == 2


def test_a_listener_of_a_member_that_was_removed_cannot_commit_and_it_reads_on(
    client: Client, moving: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def revoked(names: Sequence[str]) -> None:
        told.append(len(names))
        member.commit()

    with client.consume_group(
        moving, moving, session_timeout=LONG, auto_commit=False, on_revoked=revoked
    ) as member:
        next(member)
        membership = member._consumer._membership
        client._thread.run(membership._groups.leave(moving, moving, membership.id))
        while not told:
            next(member)
            client.publish(f"{moving}.x", b"", acks="any")
        assert committed(client, moving) == 0
        next(member)
    assert told == [2, 2]
    assert any("join" in each or "own" in each for each in caplog.messages)


def test_listeners_of_a_processing_use_the_client_for_as_long_as_they_want(
    client: Client, moving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, told = threading.Event(), []
    answered = threading.Semaphore(0)
    heartbeat = Groups.heartbeat

    async def counted(own: Groups, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        answer = await heartbeat(own, request)
        answered.release()
        return answer

    monkeypatch.setattr(Groups, "heartbeat", counted)

    def assigned(names: Sequence[str]) -> None:
        while answered.acquire(blocking=False):
            pass
        for _ in range(2):
            assert answered.acquire(timeout=60), "its heartbeats do not go on"
        told.append(len(client.describe_group(moving).members))

    client.process(
        moving,
        lambda _: stop.set(),
        group=moving,
        session_timeout=6.0,
        stop_event=stop,
        on_assigned=assigned,
        on_revoked=lambda names: told.append(len(client.list_streams(moving))),
    )
    assert told == [1, 0]


def test_an_error_of_a_listener_is_raised_and_nothing_is_committed(
    client: Client, moving: str
) -> None:
    def read() -> None:
        with client.consume_group(moving, moving, on_revoked=lambda _: 1 // 0) as member:  # type: ignore[arg-type, return-value]
            next(member), next(member), next(member)

    with pytest.raises(ZeroDivisionError):
        read()
    assert committed(client, moving) == 0


@on_loop
async def test_a_listener_of_an_asynchronous_client_commits(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "listening")

        async def revoked(names: Sequence[str]) -> None:
            await member.commit()

        member = client.consume_group(
            "listening", "listening-workers", auto_commit=False, on_revoked=revoked
        )
        async with member:
            for _ in range(5):
                await anext(member)
        cursors = await client.list_cursors("listening-workers")
        assert sum(each.offset for each in cursors) == 5


def test_the_command_line_shows_who_reads_what(
    server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str, code: int = 0) -> str:
        assert run_command(["--server", server.grpc, "group", *arguments]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    for number in range(2):
        client.create_stream(f"told-{number}", "told.>", group="told")
    for number in range(4):
        client.publish("told.x", b"%d" % number, acks="any")
    with client.consume_group("told", "told-workers", instance="one") as consumer:
        for _ in range(4):
            next(consumer)
        consumer.commit()
        row = next(line for line in command("list").splitlines() if "told-workers" in line)
        assert row.split()[1:2] + row.split()[3:] == ["told", "1", "2", "0", "stable"]
        shown = command("describe", "told-workers")
        assert "stable" in shown
        assert shown.count(" one ") == 2
        found = json.loads(command("describe", "told-workers", "--json"))
        assert [member["instance"] for member in found["members"]] == ["one"]
        assert sum(cursor["offset"] for cursor in found["cursors"]) == 4
    assert "no consumer group" in command("describe", "nobody", code=3)


def test_the_command_names_streams_that_no_member_has_committed_in(
    client: Client, server: ServerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    client.create_group("unread", "unread.>", streams=2)
    for number in range(20):
        client.publish("unread.x", b"1", key=f"{number}")
    client.seek_cursor("unread-workers", "unread-0", "latest")
    with client.consume_group("unread", "unread-workers", auto_commit=False) as member:
        next(member)  # It has joined; it commits nothing.
        assert run_command(["--server", server.grpc, "group", "describe", "unread-workers"]) == 0
    lines = capfd.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[2:] for line in lines if line.startswith("unread-")}
    held = client.describe_stream("unread-1").high_watermark
    assert rows["unread-0@unread.>"][1] == "0"
    assert rows["unread-1@unread.>"] == ["-", str(held), "-"]


@on_loop
async def test_streams_that_join_a_group_are_read_from_their_beginning_whatever_its_start(
    server: ServerProcess,
) -> None:
    """`start` is for the streams that were there: while a member reads, and after all had ended."""
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_group("grows", "grows.>", streams=1)
        await client.publish("grows.x", b"before", key="k")
        got: list[bytes | None] = []

        async def read_until(count: int, streams: int, published: asyncio.Event) -> None:
            async with client.consume_group(
                "grows", "g", start="latest", session_timeout=LONG
            ) as member:
                reading = asyncio.ensure_future(_read(member))
                await until(lambda: bool(member.streams))
                published.set()
                await until(lambda: len(got) >= count and len(member.streams) == streams)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

        async def _read(member: AsyncGroupConsumer) -> None:
            async for message in member:
                got.append(message.value)

        joined = asyncio.Event()
        reader = asyncio.ensure_future(read_until(21, 4, joined))
        await joined.wait()
        await client.publish("grows.x", b"while", key="k")
        await until(lambda: got == [b"while"])
        await client.create_group("grows", "grows.>", streams=4)
        for number in range(20):  # The member has not heard of the new streams yet.
            await client.publish("grows.x", b"%d" % number, key=f"k{number}")
        await reader
        assert sorted(filter(None, got[1:])) == sorted(b"%d" % number for number in range(20))
        await client.create_group("grows", "grows.>", streams=8)
        for number in range(20, 60):
            await client.publish("grows.x", b"%d" % number, key=f"k{number}")
        await read_until(61, 8, asyncio.Event())
    assert sorted(filter(None, got[1:])) == sorted(b"%d" % number for number in range(60))


@on_loop
async def test_a_group_is_deleted_with_its_positions_once_its_members_have_left(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "deleted")
        member = Worker(client, "deleted")
        await until(lambda: len(member.values) == 40)
        with pytest.raises(PreconditionFailedError, match="members"):
            await client.delete_group("deleted-workers")
        await member.end()
        await client.delete_group("deleted-workers")
        with pytest.raises(NotFoundError):
            await client.describe_group("deleted-workers")
        assert await client.list_cursors("deleted-workers") == []
        with pytest.raises(NotFoundError):
            await client.delete_group("deleted-workers")
        again = Worker(client, "deleted")
        await until(lambda: len(again.values) == 40)  # It begins anew.
        await again.end()
