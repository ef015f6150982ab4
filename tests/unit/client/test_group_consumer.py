"""A member of a consumer group: what it hands out, commits and is told when something fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import (
    AsyncConsumer,
    AsyncGroupConsumer,
    FencedInstanceError,
    InternalError,
    JetstreamError,
    Messages,
    Position,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_client._loop_thread import LoopThread
from jetstream_client.reading import beginnings, membership
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.membership import Membership
from jetstream_protocol.generated import groups_pb2 as pb
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.batches import messages_of, numbered

AS_STORED = Deserializers()


class Coordinator:
    """Assigns streams to whoever joins. failures: of the next heartbeats; None: no answer comes.
    answers: once it is set. left: the ids of members that have left."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.heartbeats = 0
        self.left: list[str] = []
        self.generation = 1
        self.assigned = [1]
        self.failures: list[JetstreamError | None] = []

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        self.heartbeats += 1
        if self.failures:
            await fails_with(self.failures.pop(0))
        await self.answers.wait()
        await asyncio.sleep(request.wait_ms / 1000)
        return pb.GroupHeartbeatResponse(generation=self.generation, assigned=self.assigned)

    async def leave(self, group: str, source: str, member_id: str) -> None:
        self.left.append(member_id)


async def fails_with(failure: JetstreamError | None) -> None:
    if failure is not None:
        raise failure
    await asyncio.Event().wait()


class Cursor:
    """Notes what is committed. failures: of the next times that it is opened. opens: once it is
    set. is_asked: to open."""

    auto_commit = True
    reset_to = None

    def __init__(self, stream_id: int) -> None:
        self.stream = SimpleNamespace(id=stream_id, full_name=f"orders-{stream_id}")
        self.committed: int | None = None
        self.failures: list[JetstreamError | None] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.is_asked = False

    async def open(self) -> None:
        self.is_asked = True
        await self.opens.wait()
        if self.failures:
            await fails_with(self.failures.pop(0))

    async def commit(self, offset: int, last_epoch: int) -> None:
        self.committed = offset


class Member:
    """Reads the streams 1 to 3, with ten numbered records each. events: what its listeners were
    told; on_assigned: what the next ones of them do then."""

    def __init__(self, deserializers: Deserializers = AS_STORED) -> None:
        self.cursors = {number: Cursor(number) for number in (1, 2, 3)}
        self.events: list[tuple[str, list[str]]] = []
        self.on_assigned: list[JetstreamError | None] = []
        self.coordinator = Coordinator()
        self._deserializers = deserializers
        groups: Any = self.coordinator
        self.membership = Membership(groups, "workers", "orders", "", 10.0)
        self.consumer = AsyncGroupConsumer(
            self.membership, self._make, self._assigned, self._revoked
        )

    def has_failed(self) -> bool:
        """As often as it was to."""
        failures = [self.coordinator.failures, self.on_assigned]
        return not any([*failures, *(each.failures for each in self.cursors.values())])

    async def _assigned(self, names: Sequence[str]) -> None:
        self.events.append(("assigned", list(names)))
        if self.on_assigned:
            await fails_with(self.on_assigned.pop(0))

    def _revoked(self, names: Sequence[str]) -> None:
        self.events.append(("revoked", list(names)))

    def _make(self, stream_id: int, membership: Membership) -> AsyncConsumer:
        cursor: Any = self.cursors[stream_id]
        return AsyncConsumer(
            fetch, resolve, "earliest", None, deserializers=self._deserializers, cursor=cursor
        )


async def fetch(offset: int, last_epoch: int, stop: int | None, max_wait: float) -> Messages:
    if offset >= 10:
        await asyncio.sleep(max_wait)
    return messages_of(numbered(10), offset)


async def resolve(start: Position, stop: Position | None) -> tuple[int, None]:
    return 0, None


@on_virtual_loop
async def test_a_record_that_cannot_be_deserialised_is_neither_passed_over_nor_committed() -> None:
    def below_two(value: bytes) -> int:
        if int(value) >= 2:
            raise ValueError("too large")
        return int(value)

    member = Member(Deserializers(value=below_two))
    async with member.consumer as consumer:
        assert [(await anext(consumer)).value for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="too large") as raised:
                await anext(consumer)
            assert raised.value.__notes__ == [
                "deserialising the value of record 2 of stream 'orders'"
            ]
    assert member.cursors[1].committed == 2


async def next_fails(member: Member, failure: JetstreamError | None) -> None:
    """Ask for a record. failure: what that ends with; None: it hangs, and is given up."""
    asking = asyncio.ensure_future(anext(member.consumer))
    if failure is not None:
        with pytest.raises(type(failure)):
            await asking
        return
    await eventually(member.has_failed)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


FAILURES = pytest.mark.parametrize("failure", [UnavailableError("for a moment"), None])


@on_virtual_loop
async def test_a_member_whose_first_join_fails_joins_at_the_next_call() -> None:
    member = Member()
    failure = UnavailableError("for a moment")
    member.coordinator.failures.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0


@FAILURES
@on_virtual_loop
async def test_streams_that_began_before_one_failed_are_told_as_assigned(
    failure: JetstreamError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is not begun anew by the next call."""
    monkeypatch.setattr(beginnings, "LONG_SECONDS", 1.0)
    member = Member()
    member.coordinator.assigned = [1, 2, 3]
    member.cursors[2].failures.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0
    names = ["orders-1", "orders-3"] if failure is None else ["orders-1", "orders-2", "orders-3"]
    assert [(what, sorted(told)) for what, told in member.events] == [
        ("assigned", names),
        ("revoked", names),
    ]


@on_virtual_loop
async def test_a_stream_that_was_never_assigned_is_not_revoked() -> None:
    member = Member()
    member.coordinator.assigned = [1, 2]
    member.cursors[2].failures.append(UnavailableError("for a moment"))
    await next_fails(member, UnavailableError(""))
    member.membership.assigned_since = {2: 1}
    async with member.consumer as consumer:
        await anext(consumer)
        assert consumer.streams == ["orders-2"]
    assert member.events == [("assigned", ["orders-2"]), ("revoked", ["orders-2"])]


@FAILURES
@on_virtual_loop
async def test_no_record_comes_before_its_stream_is_told_as_assigned(
    failure: JetstreamError | None,
) -> None:
    member = Member()
    member.on_assigned.append(failure)
    await next_fails(member, failure)
    async with member.consumer as consumer:
        assert (await anext(consumer)).offset == 0
        assert member.events == [("assigned", ["orders-1"])] * 2


@on_virtual_loop
async def test_a_stream_whose_assignment_the_listener_refused_is_told_as_revoked() -> None:
    member = Member()
    member.on_assigned.append(UnavailableError("no room"))
    with pytest.raises(UnavailableError, match="no room"):
        async with member.consumer as consumer:
            await anext(consumer)
    assert member.events == [("assigned", ["orders-1"]), ("revoked", ["orders-1"])]


@on_virtual_loop
async def test_a_member_that_is_closed_while_it_joins_is_a_member_no_more() -> None:
    member = Member()
    member.coordinator.answers.clear()
    joining = asyncio.create_task(anext(member.consumer, None))
    await eventually(lambda: member.coordinator.heartbeats == 1)
    await member.consumer.aclose()
    member.coordinator.answers.set()
    assert await joining is None
    assert member.coordinator.left == [member.membership.id]
    heartbeats = member.coordinator.heartbeats
    assert await anext(member.consumer, None) is None
    assert member.coordinator.heartbeats == heartbeats


@on_virtual_loop
async def test_a_stream_that_begins_while_its_member_is_closed_is_not_read() -> None:
    member = Member()
    cursor = member.cursors[1]
    cursor.opens.clear()
    reading = asyncio.create_task(anext(member.consumer, None))
    await eventually(lambda: cursor.is_asked)
    await member.consumer.aclose()
    cursor.opens.set()
    assert await reading is None
    assert member.consumer.streams == []
    assert member.events == []


@on_virtual_loop
async def test_no_record_comes_after_it_was_closed() -> None:
    member = Member()
    await anext(member.consumer)
    await member.consumer.aclose()
    assert await anext(member.consumer, None) is None


@on_virtual_loop
async def test_no_record_comes_after_its_stream_was_told_as_revoked_because_it_is_closed() -> None:
    member = Member()
    listening = asyncio.Event()

    async def on_revoked(names: Sequence[str]) -> None:
        await listening.wait()

    member.consumer._on_revoked = on_revoked
    await anext(member.consumer)
    closing = asyncio.create_task(member.consumer.aclose())
    await asyncio.sleep(0)
    assert await anext(member.consumer, None) is None
    listening.set()
    await closing


@on_virtual_loop
async def test_a_stream_that_was_given_away_while_others_begin_is_not_begun_nor_read() -> None:
    """It is told to read 1, 2, 3. Beginning stream 1 takes long (its node is slow), and meanwhile
    the coordinator says: only 1; it gives 2 and 3 to another member, which reads them."""
    member = Member()
    member.membership._session = 0.3  # heartbeats each 0.1 s
    member.coordinator.assigned = [1, 2, 3]
    member.cursors[1].opens.clear()
    held: list[list[int]] = []
    heartbeat = member.coordinator.heartbeat

    async def noted(request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        held.append(list(request.held))
        return await heartbeat(request)

    member.coordinator.heartbeat = noted  # type: ignore[method-assign]
    consumer = member.consumer
    await consumer.begin()
    first = asyncio.ensure_future(anext(consumer))
    await eventually(lambda: member.cursors[1].is_asked)
    member.coordinator.assigned = [1]  # another member has joined
    await eventually(lambda: member.membership.told == {1})
    assert held[-1] == [], "so it has released 2 and 3, and the coordinator has given them away"
    member.cursors[1].opens.set()
    await first
    asked = [number for number in (2, 3) if member.cursors[number].is_asked]
    await consumer.aclose()
    assert not asked, f"it began the streams {asked}, and told its listener {member.events}"


@on_virtual_loop
async def test_a_record_of_a_stream_that_is_anothers_is_not_handed_out() -> None:
    """The same; what comes first is a record of stream 2, which another member reads."""
    member = Member()
    member.membership._session = 0.3
    member.coordinator.assigned = [1, 2]
    member.cursors[1].opens.clear()
    make = member._make

    async def nothing(*_: Any) -> Any:
        await asyncio.Event().wait()

    def made(stream_id: int, membership: Membership) -> Any:
        consumer = make(stream_id, membership)
        if stream_id == 1:
            consumer._fetch = nothing  # stream 1 is idle
        return consumer

    consumer = AsyncGroupConsumer(member.membership, made, None, None)
    await consumer.begin()
    first = asyncio.ensure_future(anext(consumer.batches()))
    await eventually(lambda: member.cursors[1].is_asked)
    member.coordinator.assigned = [1]
    await eventually(lambda: member.membership.told == {1})
    member.cursors[1].opens.set()
    await asyncio.wait([first], timeout=1.0)
    got = first.result() if first.done() else None
    part = consumer._current
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await consumer.aclose()
    assert got is None, f"records {got.offsets()} of {part and part.name} were handed out"


@on_virtual_loop
async def test_a_member_stops_after_its_session_without_an_answer() -> None:
    """docs/consumers.md: "A member that reaches no coordinator for its `session_timeout` stops
    reading". A call of the control plane lasts as long as transport/groups.py says."""
    session = 1.0
    silent = False

    class Groups:
        async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
            wait = request.wait_ms / 1000
            if silent:
                await asyncio.sleep(2 * (wait + min(2.0, max(0.5 * wait, 0.5))))
                raise UnavailableError("no answer in time")
            await asyncio.sleep(wait)
            return pb.GroupHeartbeatResponse(generation=1, assigned=[1])

        async def leave(self, group: str, source: str, member_id: str) -> None: ...

    member = Member()
    groups: Any = Groups()
    member.membership = Membership(groups, "workers", "orders", "", session)
    consumer = AsyncGroupConsumer(member.membership, member._make, None, None)
    await consumer.begin()
    await anext(consumer)
    await asyncio.sleep(0.5)
    silent = True
    loop = asyncio.get_running_loop()
    await eventually(lambda: member.membership.is_lost)
    took = loop.time() - member.membership._heard
    await consumer.aclose()
    assert took < session * 1.2, f"it took {took:.2f} s after the last heartbeat that was answered"


@on_virtual_loop
async def test_a_member_reads_nothing_more_after_its_machine_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loop's clock has stood still."""
    suspended = 0.0
    monkeypatch.setattr(membership, "_boot_clock", lambda: time.monotonic() + suspended)
    member = Member()
    await member.consumer.begin()
    await anext(member.consumer)
    assert not member.membership.must_adjust
    suspended = member.membership._session + 1
    member.membership.check_lease()
    assert member.membership.is_lost
    await member.consumer.aclose()


@on_virtual_loop
async def test_a_member_whose_instance_was_taken_ends() -> None:
    member = Member()
    member.membership._session = 0.3
    await member.consumer.begin()
    await anext(member.consumer)
    member.coordinator.failures = [FencedInstanceError("another process has joined")]
    with pytest.raises(FencedInstanceError):
        await asyncio.wait_for(collect(member.consumer), 10.0)
    beats = member.coordinator.heartbeats
    await asyncio.sleep(0.5)
    assert member.coordinator.heartbeats == beats, "it joins again"
    await member.consumer.aclose()


@on_virtual_loop
@pytest.mark.parametrize("is_taken", [True, False])
async def test_who_was_unheard_for_a_session_does_not_take_its_instance_back(
    is_taken: bool,
) -> None:
    """Another process has taken it meanwhile, and no coordinator could tell this one."""
    refusal: JetstreamError | None = None
    members: list[str] = []
    joined: list[str] = []

    class Groups:
        async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
            await asyncio.sleep(0.02)
            if refusal is not None:
                raise refusal
            if request.generation and request.member.id not in members:
                error = FencedInstanceError if is_taken else PreconditionFailedError
                raise error("no member")
            if not request.generation:
                joined.append(request.member.id)
                members.append(request.member.id)
            return pb.GroupHeartbeatResponse(generation=1, assigned=[1])

    member = Member()
    groups: Any = Groups()
    member.membership = Membership(groups, "workers", "orders", "twin", 1.0)
    consumer = AsyncGroupConsumer(member.membership, member._make, None, None)
    await consumer.begin()
    await anext(consumer)
    reading = asyncio.ensure_future(collect(consumer))
    refusal = UnavailableError("no coordinator")
    await eventually(lambda: member.membership.id not in joined)
    members.clear()
    refusal = None
    if is_taken:
        with pytest.raises(FencedInstanceError):
            await asyncio.wait_for(reading, 10.0)
        assert len(joined) == 1, "it takes the name back"
    else:
        await eventually(lambda: len(joined) == 2)
        first, again = joined
        assert again.partition(".")[0] == first, "by which the coordinator knows its process"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await consumer.aclose()


class Named:
    """A coordinator that tells who has the name. holders: who has it at each heartbeat by which
    somebody joins; the last one gets it."""

    def __init__(self, holders: list[str]) -> None:
        self.holders = holders
        self.asked: list[str | None] = []

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        if not request.generation:
            self.asked.append(request.replaces if request.HasField("replaces") else None)
            if self.holders:
                return pb.GroupHeartbeatResponse(replaces=self.holders.pop(0))
        await asyncio.sleep(request.wait_ms / 1000)
        return pb.GroupHeartbeatResponse(generation=7, assigned=[1])

    async def leave(self, group: str, source: str, member_id: str) -> None: ...


@pytest.mark.parametrize(
    ("instance", "holders", "asked"),
    [
        ("twin", ["a"], ["", "a"]),
        ("twin", ["a", "b", "c"], ["", "a", "b", "c"]),
        ("twin", [], [""]),  # A new name, or an older coordinator.
        ("", [], [None]),
    ],
)
@on_virtual_loop
async def test_a_member_says_whose_name_it_takes(
    instance: str, holders: list[str], asked: list[str | None]
) -> None:
    groups: Any = Named(holders)
    membership = Membership(groups, "workers", "orders", instance, 10.0)
    await membership.begin(frozenset)
    assert (membership.generation, membership.told) == (7, {1})
    assert groups.asked == asked
    await membership.end()


@on_virtual_loop
async def test_who_is_removed_again_and_again_joins_ever_more_rarely() -> None:
    member = Member()
    member.membership._session = 0.3
    consumer = member.consumer
    await consumer.begin()
    reading = asyncio.ensure_future(collect(consumer))
    removed = [PreconditionFailedError("it was removed") for _ in range(1000)]
    member.coordinator.failures = list(removed)
    await asyncio.sleep(3.0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await consumer.aclose()
    assert len(removed) - len(member.coordinator.failures) < 12


async def collect(consumer: AsyncGroupConsumer) -> None:
    async for _ in consumer:
        pass


def frozen_once_records_have_come(member: Member) -> None:
    """Its process is frozen then, until its session is over."""
    consumer, next_ = member.consumer, member.consumer._next

    async def frozen() -> Any:
        part = await next_()
        if part is not None and member.membership.generation:
            consumer._next = next_  # type: ignore[method-assign]
            member.membership._heard -= 60.0
        return part

    consumer._next = frozen  # type: ignore[method-assign]


@on_virtual_loop
async def test_a_process_that_was_frozen_hands_out_no_batch_of_its_last_session() -> None:
    """Its streams may be another member's by then."""
    member = Member()
    frozen_once_records_have_come(member)
    before = member.membership.id
    async with member.consumer as consumer:
        assert len(await anext(consumer.batches()))
        assert member.membership.id != before, "it has not joined again"


def test_nor_does_one_without_asyncio() -> None:
    thread = LoopThread()

    async def begun() -> tuple[Member, str]:
        member = Member()
        await member.consumer.begin()
        frozen_once_records_have_come(member)
        return member, member.membership.id

    member, before = thread.run(begun())
    with GroupConsumer(thread, member.consumer) as consumer:
        assert len(next(consumer.batches()))
        assert member.membership.id != before, "it has not joined again"
    thread.close()


@on_virtual_loop
async def test_a_bug_in_a_heartbeat_ends_the_member_with_an_error() -> None:
    member = Member()
    member.membership._session = 0.03
    await anext(member.consumer)

    async def breaks(request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        raise ValueError("a bug")

    member.coordinator.heartbeat = breaks  # type: ignore[method-assign]

    async def read_on() -> None:
        while True:
            await anext(member.consumer)

    with pytest.raises(InternalError, match="a bug"):
        await asyncio.wait_for(read_on(), 5)
    await member.consumer.aclose()
