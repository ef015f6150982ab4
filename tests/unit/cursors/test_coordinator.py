"""The coordinator: leases, changes that are written before members are told, and a new leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    QuotaExceededError,
    UnavailableError,
)
from jetstream_protocol.types import MonotonicUs
from jetstream_server.cursors import coordinator as coordinators
from jetstream_server.cursors.coordinator import Coordinator, Heartbeat
from jetstream_server.cursors.groups import Group, Member
from jetstream_server.cursors.records import group_from_proto, group_to_proto
from tests.support.loops import eventually, on_loop


class World:
    """What is written takes as long as the test says; time passes when it says."""

    def __init__(self) -> None:
        self.now_us = 0
        self.written: list[Group] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.failing = False
        self.streams = [1, 2, 3, 4]
        self.coordinator = self.another()

    def another(self) -> Coordinator:
        return Coordinator(self.save, lambda _: self.streams, lambda: MonotonicUs(self.now_us))

    async def save(self, group: Group) -> None:
        await self.writable.wait()
        if self.failing:
            raise UnavailableError("too few replicas")
        self.written.append(group)

    async def beat(self, member: str, held: set[int], generation: int = 0) -> Group:
        return await self.coordinator.heartbeat(
            Heartbeat("g", "s", Member(member), generation, frozenset(held), 0.0)
        )

    async def pass_time(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)
        await asyncio.sleep(3 * coordinators.LOOK_SECONDS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "LOOK_SECONDS", 0.005)


@on_loop
async def test_nobody_is_told_before_it_is_written() -> None:
    world = World()
    world.writable.clear()
    joining = asyncio.ensure_future(world.beat("a", set()))
    await asyncio.sleep(0.01)
    assert not joining.done()
    assert world.coordinator.groups()[0].members == ()
    world.writable.set()
    assert (await joining).assigned("a") == {1, 2, 3, 4}
    assert world.written[-1].has("a")


@on_loop
async def test_while_a_change_is_written_neither_owner_commits() -> None:
    world = World()
    group = await world.beat("a", set())
    group = await world.beat("b", set())
    moving = group.owned("a") - group.assigned("a")
    world.writable.clear()
    letting_go = asyncio.ensure_future(world.beat("a", set(group.assigned("a")), 1))
    await asyncio.sleep(0.01)
    for number in moving:
        for member in ("a", "b"):
            assert world.coordinator.why_not("g", number, member, group.generation)
    for number in group.assigned("a"):
        assert not world.coordinator.why_not("g", number, "a", group.generation)
    world.writable.set()
    group = await letting_go
    for number in moving:
        assert world.coordinator.why_not("g", number, "a", group.generation)
        assert not world.coordinator.why_not("g", number, "b", group.generation)


@on_loop
async def test_a_change_that_cannot_be_written_has_not_happened() -> None:
    world = World()
    group = await world.beat("a", set())
    world.failing = True
    with pytest.raises(UnavailableError):
        await world.beat("b", set())
    assert [member.id for member in world.coordinator.groups()[0].members] == ["a"]
    assert not world.coordinator.why_not("g", 1, "a", group.generation)


@on_loop
async def test_members_that_wait_for_news_are_told_when_another_node_leads() -> None:
    world = World()
    group = await world.beat("a", set())
    heartbeat = Heartbeat("g", "s", Member("a"), group.generation, group.assigned("a"), 600.0)
    waiting = asyncio.ensure_future(world.coordinator.heartbeat(heartbeat))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    world.coordinator.end()
    for each in (waiting, world.coordinator.heartbeat(heartbeat)):
        with pytest.raises(UnavailableError, match="leader of the cursors changes"):
            await asyncio.wait_for(each, 60.0)


@on_loop
async def test_a_silent_member_is_given_up_and_told_so_when_it_comes_back() -> None:
    world = World()
    group = await world.beat("a", set())
    watching = asyncio.ensure_future(world.coordinator.watch())
    await world.pass_time(9.0)
    assert world.coordinator.groups()[0].has("a")
    await world.pass_time(2.0)
    await eventually(lambda: not world.coordinator.groups()[0].members)
    with pytest.raises(PreconditionFailedError, match="must join again"):
        await world.beat("a", {1}, group.generation)
    watching.cancel()


@on_loop
async def test_a_member_that_does_not_let_go_is_given_up() -> None:
    world = World()
    await world.beat("a", set())
    await world.beat("b", set())
    watching = asyncio.ensure_future(world.coordinator.watch())
    for _ in range(7):
        await world.beat("a", {1, 2, 3, 4}, 1)
        group = await world.beat("b", set(), 2)
        await world.pass_time(9.0)
    await eventually(
        lambda: [member.id for member in world.coordinator.groups()[0].members] == ["b"]
    )
    assert (await world.beat("b", set(), group.generation)).assigned("b") == {1, 2, 3, 4}
    watching.cancel()


@on_loop
async def test_a_new_leader_goes_on_and_gives_every_member_a_whole_session() -> None:
    world = World()
    await world.beat("a", set())
    group = await world.beat("b", set())
    later = world.another()
    later.load([group_from_proto(group_to_proto(world.written[-1]))])
    assert later.groups() == [world.written[-1]] == [group]
    watching = asyncio.ensure_future(later.watch())
    await world.pass_time(9.0)
    assert len(later.groups()[0].members) == 2
    await world.pass_time(2.0)
    await eventually(lambda: later.groups()[0].members == ())
    watching.cancel()


@on_loop
async def test_streams_that_appear_are_shared_out() -> None:
    world = World()
    await world.beat("a", set())
    watching = asyncio.ensure_future(world.coordinator.watch())
    world.streams = [1, 2, 3, 4, 5]
    await eventually(lambda: world.coordinator.groups()[0].assigned("a") == {1, 2, 3, 4, 5})
    watching.cancel()


@on_loop
async def test_a_group_reads_one_source_and_a_refused_one_leaves_nothing() -> None:
    world = World()
    await world.beat("a", set())
    other = Heartbeat("g", "another", Member("b"), 0, frozenset(), 0.0)
    with pytest.raises(InvalidRequestError, match=r"reads 's', not 'another': .* stop its members"):
        await world.coordinator.heartbeat(other)
    with pytest.raises(PreconditionFailedError):
        await world.coordinator.heartbeat(replace(other, group="new", generation=3))
    assert [group.name for group in world.coordinator.groups()] == ["g"]


@on_loop
async def test_a_principal_begins_so_many_groups_and_those_without_members_do_not_count() -> None:
    world = World()

    async def begin(group: str, member: str, principal: str = "user:x", most: int = 2) -> Group:
        beat = Heartbeat(group, "s", Member(member), 0, frozenset(), 0.0, principal, most)
        return await world.coordinator.heartbeat(beat)

    assert (await begin("one", "a")).creator == "user:x"
    await begin("two", "b")
    with pytest.raises(QuotaExceededError, match="user:x has begun 2 consumer groups"):
        await begin("three", "c")
    assert [group.name for group in world.coordinator.groups()] == ["one", "two"]
    await begin("two", "d")  # Members of a group that is there do not count.
    assert (await begin("three", "c", principal="user:y")).creator == "user:y"
    await begin("three", "e")
    await world.coordinator.leave("one", "s", "a")
    await begin("four", "f")
    with pytest.raises(QuotaExceededError):
        await begin("one", "a2")
    await begin("five", "g", most=0)


@on_loop
async def test_groups_that_are_being_written_count_and_a_new_leader_knows_whose_they_are() -> None:
    world = World()
    first = Heartbeat("one", "s", Member("a"), 0, frozenset(), 0.0, "user:x", 1)
    world.writable.clear()
    joining = asyncio.ensure_future(world.coordinator.heartbeat(first))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError):
        await world.coordinator.heartbeat(replace(first, group="two"))
    world.writable.set()
    await joining
    next_leader = world.another()
    next_leader.load([group_from_proto(group_to_proto(group)) for group in world.written])
    with pytest.raises(QuotaExceededError):
        await next_leader.heartbeat(replace(first, group="two"))
