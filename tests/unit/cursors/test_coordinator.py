"""The coordinator: leases, changes that are written before members are told, and a new leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetstream_protocol.errors import (
    FencedInstanceError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionFailedError,
    QuotaExceededError,
    UnavailableError,
)
from jetstream_protocol.types import MonotonicUs
from jetstream_server.cursors import coordinator as coordinators
from jetstream_server.cursors.coordinator import Coordinator, Heartbeat, _Live
from jetstream_server.cursors.groups import GONE_MIN, Group, Member, last_of
from jetstream_server.cursors.records import group_from_proto, group_to_proto
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop


class World:
    """What is written takes as long as the test says; time passes when it says."""

    def __init__(self) -> None:
        self.now_us = 0
        self.written: list[Group] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.failing = 0
        self.streams = [1, 2, 3, 4]
        self.coordinator = self.another()

    def another(self) -> Coordinator:
        return Coordinator(self.save, lambda _: self.streams, lambda: MonotonicUs(self.now_us))

    async def save(self, group: Group) -> None:
        await self.writable.wait()
        if self.failing:
            self.failing -= 1
            raise UnavailableError("too few replicas")
        self.written.append(group)

    async def beat(
        self,
        member: str,
        held: set[int],
        generation: int = 0,
        group: str = "g",
        session: int = 10_000,
        instance: str = "",
        replaces: str | None = None,
        source: str = "s",
    ) -> Group:
        return await self.coordinator.heartbeat(
            Heartbeat(
                group,
                source,
                Member(member, instance, session),
                generation,
                frozenset(held),
                0.0,
                replaces=replaces,
            )
        )

    async def pass_time(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)
        await asyncio.sleep(3 * coordinators.LOOK_SECONDS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "LOOK_SECONDS", 0.005)


@on_virtual_loop
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


@on_virtual_loop
async def test_a_group_that_is_about_to_begin_names_its_newest_stream() -> None:
    """Its first write takes long, and a stream comes meanwhile: the next member begins that one at
    its beginning, also if the group was of another source before."""
    world = World()
    for source in ("s", "t"):
        world.writable.clear()
        joining = asyncio.ensure_future(world.beat(source, set(), source=source))
        await asyncio.sleep(0.01)
        newest = world.streams[-1]
        world.streams = [*world.streams, newest + 1]
        (group,) = world.coordinator.groups()
        assert (group.source, group.newest_at_first, group.members) == (source, newest, ())
        world.writable.set()
        assert (await joining).newest_at_first == newest
        await world.coordinator.leave("g", source, source)


def test_it_would_not_if_only_what_is_written_were_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds what that breaks, in one seed of 500."""
    monkeypatch.setattr(_Live, "listed", property(lambda self: self.state))
    with pytest.raises(AssertionError):
        test_a_group_that_is_about_to_begin_names_its_newest_stream()


@on_virtual_loop
async def test_while_a_change_is_written_neither_owner_commits() -> None:
    world = World()
    group = await world.beat("a", set())
    group = await world.beat("b", set())
    moving = group.owned("a") - group.assigned("a")
    world.writable.clear()
    letting_go = asyncio.ensure_future(world.beat("a", set(group.assigned("a")), group.generation))
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


@on_virtual_loop
async def test_a_change_that_cannot_be_written_has_not_happened() -> None:
    world = World()
    group = await world.beat("a", set())
    world.failing = 1
    with pytest.raises(UnavailableError):
        await world.beat("b", set())
    assert [member.id for member in world.coordinator.groups()[0].members] == ["a"]
    assert not world.coordinator.why_not("g", 1, "a", group.generation)


@on_virtual_loop
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


@on_virtual_loop
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


@on_virtual_loop
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


@on_virtual_loop
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


@on_virtual_loop
async def test_streams_that_appear_are_shared_out() -> None:
    world = World()
    await world.beat("a", set())
    watching = asyncio.ensure_future(world.coordinator.watch())
    world.streams = [1, 2, 3, 4, 5]
    await eventually(lambda: world.coordinator.groups()[0].assigned("a") == {1, 2, 3, 4, 5})
    watching.cancel()


@on_virtual_loop
async def test_a_group_remembers_which_streams_it_began_with() -> None:
    world = World()
    world.streams = [7, 9]
    await world.beat("a", set())
    world.streams = [7, 9, 12]
    await world.beat("b", set())
    written = group_from_proto(group_to_proto(world.written[-1]))
    assert (sorted(written.shares), written.newest_at_first) == ([7, 9, 12], 9)
    for member in ("a", "b"):
        await world.coordinator.leave("g", "s", member)
    other = Heartbeat("g", "another", Member("c"), 0, frozenset(), 0.0)
    assert (await world.coordinator.heartbeat(other)).newest_at_first == 12


@on_virtual_loop
async def test_also_where_all_of_these_are_deleted_and_others_created() -> None:
    """Else a member that is to begin at "latest" would pass over what the new ones hold."""
    world = World()
    for world.streams in ([7, 9], [], [12]):
        await world.beat(f"after {len(world.written)}", set())
    assert world.written[-1].newest_at_first == 9


@on_virtual_loop
async def test_a_group_reads_one_source_and_a_refused_one_leaves_nothing() -> None:
    world = World()
    await world.beat("a", set())
    other = Heartbeat("g", "another", Member("b"), 0, frozenset(), 0.0)
    with pytest.raises(InvalidRequestError, match=r"reads 's', not 'another': .* stop its members"):
        await world.coordinator.heartbeat(other)
    with pytest.raises(PreconditionFailedError):
        await world.coordinator.heartbeat(replace(other, group="new", generation=3))
    assert [group.name for group in world.coordinator.groups()] == ["g"]


@on_virtual_loop
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


@on_virtual_loop
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


@on_virtual_loop
async def test_a_member_that_does_not_release_is_removed_also_after_a_failover() -> None:
    world = World()
    group = await world.beat("a", set())
    group = await world.beat("b", set())
    assert group.owned("a") == {1, 2, 3, 4}, "a holds all, two of them are to go to b"
    # The leader of the cursors dies; the next one loads what was written.
    world.coordinator = world.another()
    world.coordinator.load([world.written[-1]])
    watching = asyncio.ensure_future(world.coordinator.watch())
    for _ in range(100):  # 200 s: a handles one record for ever; both send their heartbeats
        group = await world.beat("a", {1, 2, 3, 4}, 2)
        group = await world.beat("b", set(), 2)
        await world.pass_time(2)
        if not world.coordinator.groups()[0].has("a"):
            break
    watching.cancel()
    assert not world.coordinator.groups()[0].has("a"), "60 s have passed, and b has no stream"


@on_virtual_loop
async def test_a_member_whose_heartbeats_wait_for_a_slow_write_is_not_given_up() -> None:
    """session 2 s. Another member joins, and the write takes 1.6 s (a slow follower). `a` sends its
    heartbeats all the time, each 0.6 s."""
    world = World()
    world.streams = [1, 2]
    await world.beat("a", set(), session=2_000)
    await world.beat("a", {1, 2}, 1, session=2_000)
    watching = asyncio.ensure_future(world.coordinator.watch())
    await world.pass_time(0.6)
    world.writable.clear()
    joining = asyncio.ensure_future(world.beat("b", set()))
    await asyncio.sleep(0)
    beating = asyncio.ensure_future(
        world.beat("a", {1, 2}, 1, session=2_000)
    )  # 0.6 s after its last
    await asyncio.sleep(0)
    await world.pass_time(1.6)  # the write takes that long; the last heartbeat came 1.6 s ago
    world.writable.set()
    await asyncio.gather(joining, return_exceptions=True)
    await asyncio.gather(beating, return_exceptions=True)
    await asyncio.sleep(0.05)
    watching.cancel()
    assert world.coordinator.groups()[0].has("a"), "its heartbeat was there after 0.6 s of 2"


@on_virtual_loop
async def test_two_that_join_a_new_group_whose_first_write_fails_do_not_read_the_same_streams() -> (
    None
):
    world = World()
    world.writable.clear()
    world.failing = 1
    first = asyncio.ensure_future(world.beat("a", set()))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(world.beat("b", set()))
    await asyncio.sleep(0)
    world.writable.set()
    with pytest.raises(UnavailableError):
        await first  # and its client tries again:
    told_b = (await second).assigned("b")
    told_a = (await world.beat("a", set())).assigned("a")
    assert not told_a & told_b, f"both were told to read {sorted(told_a & told_b)}"


@on_virtual_loop
async def test_a_heartbeat_from_before_the_assignment_releases_nothing() -> None:
    """`a` sent it before it was told of its streams; it is late on the way (its node was frozen).
    Meanwhile it asked another node, was told, and reads."""
    world = World()
    await world.beat("a", set())  # generation 1
    told = await world.beat("a", set(), 1)
    reads = set(told.assigned("a"))
    assert reads == {1, 2, 3, 4}
    await world.beat("a", reads, 1)
    told_b = await world.beat("b", set())
    # The late copy of the first heartbeat: it held nothing then, and knew of no generation.
    await world.beat("a", set(), 0)
    told_b = await world.beat("b", set(), told_b.generation)
    assert not told_b.assigned("b") & reads, f"a still reads {sorted(told_b.assigned('b') & reads)}"


@on_virtual_loop
async def test_a_group_that_nobody_uses_is_forgotten_some_day() -> None:
    world = World()
    watching = asyncio.ensure_future(world.coordinator.watch())
    for number in range(20):
        await world.beat("a", set(), group=f"run-{number}")
        await world.coordinator.leave(f"run-{number}", "s", "a")
    for _ in range(5):
        await world.pass_time(86_400 * 30)
    watching.cancel()
    assert len(world.coordinator.groups()) < 20, "kept for ever, and no call removes one"


@on_virtual_loop
async def test_what_may_have_been_written_is_written_before_anything_else() -> None:
    """A write that failed may be in the log all the same, and the next leader would read it."""
    world = World()
    await world.beat("a", set())
    world.failing = 1
    with pytest.raises(UnavailableError):
        await world.beat("b", set())
    await world.beat("c", set())
    assert [[each.id for each in group.members] for group in world.written[-2:]] == [
        ["a", "b"],
        ["a", "b", "c"],
    ]


@on_virtual_loop
async def test_the_time_to_release_counts_for_each_stream_by_itself() -> None:
    """A member that releases one stream late is not removed for one that it has just lost."""
    world = World()
    watching = asyncio.ensure_future(world.coordinator.watch())
    await world.beat("a", set())
    group = await world.beat("b", set())
    first = group.owned("a") - group.assigned("a")
    for _ in range(10):  # 50 s
        await world.beat("a", {1, 2, 3, 4}, group.generation)
        await world.beat("b", set(), group.generation)
        await world.pass_time(5)
    group = await world.beat("c", set())
    held = {1, 2, 3, 4} - first
    for _ in range(10):
        group = await world.beat("a", held, group.generation)
        await world.beat("b", set(group.owned("b")), group.generation)
        await world.beat("c", set(group.owned("c")), group.generation)
        await world.pass_time(5)
    assert world.coordinator.groups()[0].has("a")
    watching.cancel()


@on_virtual_loop
async def test_a_process_whose_instance_another_one_has_taken_is_told_so() -> None:
    world = World()
    group = await world.beat("a", set(), instance="worker")
    later = await world.beat("b", set(), instance="worker")
    assert later.assigned("b") == {1, 2, 3, 4}
    with pytest.raises(FencedInstanceError, match="'worker'"):
        await world.beat("a", {1, 2, 3, 4}, group.generation, instance="worker")


@on_virtual_loop
async def test_a_late_copy_of_the_first_heartbeat_brings_nobody_back() -> None:
    """Else the copy would take the name from the process that has it now."""
    world = World()
    await world.beat("a", set(), instance="worker")
    group = await world.beat("b", set(), instance="worker")
    with pytest.raises(FencedInstanceError):
        await world.beat("a", set(), instance="worker")
    held = set(group.assigned("b"))
    assert (await world.beat("b", held, group.generation, instance="worker")).has("b")


@on_virtual_loop
async def test_nor_does_one_that_arrives_after_a_failover() -> None:
    world = World()
    await world.beat("a", set(), instance="worker")
    group = await world.beat("b", set(), instance="worker")
    await world.beat("c", set())
    world.coordinator = world.another()
    world.coordinator.load([group_from_proto(group_to_proto(world.written[-1]))])
    with pytest.raises(FencedInstanceError):
        await world.beat("a", set(), instance="worker")
    assert (await world.beat("b", set(), group.generation, instance="worker")).has("b")


@on_virtual_loop
async def test_only_a_first_run_takes_a_name_from_another_process() -> None:
    """It had asked whether its name was taken, and the other one came only then."""
    world = World()
    await world.beat("a", set(), instance="worker")
    await world.beat("a.1", set(), instance="worker")
    await world.beat("b", set(), instance="worker")
    with pytest.raises(FencedInstanceError, match="'worker'"):
        await world.beat("a.2", set(), instance="worker")
    group = await world.beat("b.1", set(), instance="worker")
    assert group.assigned("b.1") == {1, 2, 3, 4}
    assert (await world.beat("a.3", set(), instance="another")).has("a.3")
    assert (await world.beat("c", set(), instance="another")).has("c")


@on_virtual_loop
async def test_a_name_is_taken_by_the_second_heartbeat() -> None:
    """And a new one by the first. Who joins without a name asks once."""
    world = World()
    assert (await world.beat("a", set(), instance="worker", replaces="")).has("a")
    told = await world.beat("b", set(), instance="worker", replaces="")
    assert (told.has("a"), told.has("b")) == (True, False)
    assert last_of(told, "worker") == "a"
    taken = await world.beat("b", set(), instance="worker", replaces="a")
    assert taken.assigned("b") == {1, 2, 3, 4}
    assert (await world.beat("c", set(), replaces="")).has("c")


@on_virtual_loop
async def test_late_heartbeats_of_a_dead_process_take_no_name_from_the_living() -> None:
    """Its first one, or its second one, or both."""
    world = World()
    await world.beat("a", set(), instance="worker", replaces="")
    await world.beat("b", set(), instance="worker", replaces="a")
    for late in ("", "a"):
        told = await world.beat("dead", set(), instance="worker", replaces=late)
        assert (told.has("b"), told.has("dead")) == (True, False)
    written = len(world.written)
    assert (await world.beat("b", set(), told.generation, instance="worker")).has("b")
    assert len(world.written) == written


@on_virtual_loop
async def test_nor_while_the_living_one_is_being_removed_for_silence() -> None:
    """It joins again, and would be told that another process has its name."""
    world = World()
    watching = asyncio.ensure_future(world.coordinator.watch())
    await world.beat("a", set(), instance="worker", replaces="")
    await world.pass_time(11.0)
    await eventually(lambda: not world.coordinator.groups()[0].members)
    watching.cancel()
    assert not (await world.beat("dead", set(), instance="worker", replaces="")).members
    told = await world.beat("a.1", set(), instance="worker", replaces="")
    assert last_of(told, "worker") == "a"
    assert (await world.beat("a.1", set(), instance="worker", replaces="a")).has("a.1")


@on_virtual_loop
async def test_who_has_to_ask_again_is_told_first_what_is_wrong() -> None:
    world = World()
    await world.beat("a", set(), instance="worker", replaces="")
    await world.beat("b", set(), instance="worker", replaces="a")
    with pytest.raises(FencedInstanceError):
        await world.beat("a", set(), instance="worker", replaces="")
    with pytest.raises(FencedInstanceError):
        await world.beat("a.1", set(), instance="worker", replaces="b")


@on_virtual_loop
async def test_who_has_gone_is_known_for_long_and_not_for_ever() -> None:
    world = World()
    for number in range(GONE_MIN + 10):
        await world.beat(f"m{number}", set(), instance="worker")
    (group,) = world.coordinator.groups()
    assert group.gone == tuple(f"m{number}" for number in range(9, GONE_MIN + 9))


@on_virtual_loop
async def test_a_group_is_deleted_once_it_has_no_members() -> None:
    world = World()
    with pytest.raises(NotFoundError):
        await world.coordinator.delete("g")
    await world.beat("a", set())
    with pytest.raises(PreconditionFailedError, match="stop them first"):
        await world.coordinator.delete("g")
    await world.coordinator.leave("g", "s", "a")
    await world.coordinator.delete("g")
    assert world.written[-1].is_deleted
    assert (await world.beat("b", set())).assigned("b") == {1, 2, 3, 4}


@on_virtual_loop
async def test_a_look_at_all_groups_forgets_none_that_was_made_anew_meanwhile() -> None:
    world = World()
    await world.beat("a", set(), group="f", session=1_000)
    await world.beat("a", set())
    await world.coordinator.leave("g", "s", "a")
    save, stuck = world.save, asyncio.Event()

    async def slow_for_f(group: Group) -> None:
        if group.name == "f":
            stuck.set()
            await world.writable.wait()
        else:
            world.written.append(group)

    world.coordinator._save = slow_for_f
    world.writable.clear()
    watching = asyncio.ensure_future(world.coordinator.watch())
    world.now_us += 2_000_000  # The member of "f" is silent.
    await stuck.wait()
    await world.coordinator.delete("g")
    group = await world.beat("b", set())
    world.coordinator._save = save
    world.writable.set()
    await asyncio.sleep(0.02)
    watching.cancel()
    assert not world.coordinator.why_not("g", 1, "b", group.generation)


@on_virtual_loop
async def test_heartbeats_of_those_who_are_no_members_leave_nothing() -> None:
    world = World()
    await world.beat("a", set())
    for number in range(100):
        with pytest.raises(PreconditionFailedError):
            await world.beat(f"stranger{number}", set(), generation=5)
    assert world.coordinator._groups["g"].leases.heard.keys() == {"a"}


@on_virtual_loop
async def test_a_heartbeat_for_another_source_keeps_no_member_in_the_group() -> None:
    """Whoever may use the name on streams of its own may not have those of a dead member kept."""
    world = World()
    watching = asyncio.ensure_future(world.coordinator.watch())
    await world.beat("a", set())
    for _ in range(3):
        await world.pass_time(4)
        forged = Heartbeat(
            "g", "mine", Member("a", "", 10_000), 0, frozenset(), 0.0, may_take=lambda _: False
        )
        with pytest.raises((PermissionDeniedError, PreconditionFailedError)):
            await world.coordinator.heartbeat(forged)
    watching.cancel()
    assert world.coordinator.groups()[0].members == ()


@on_virtual_loop
async def test_a_refusal_says_nothing_of_an_earlier_attempt_to_write() -> None:
    """The first one may be committed yet: until then neither state alone decides."""
    world = World()
    group = await world.beat("a", set())
    save = world.coordinator._save
    answers = [UnavailableError("too few replicas"), QuotaExceededError("too many groups")]

    async def saving(group: Group) -> None:
        if answers:
            raise answers.pop(0)
        await save(group)

    world.coordinator._save = saving
    for error in (UnavailableError, QuotaExceededError):
        with pytest.raises(error):
            await world.coordinator.leave("g", "s", "a")
    assert world.coordinator.why_not("g", 1, "a", group.generation), "it may have left"
    await world.beat("b", set())
    assert not world.coordinator.groups()[0].has("a"), "what may be valid is written first"
