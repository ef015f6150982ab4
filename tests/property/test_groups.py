"""Consumer groups: whatever members do, a stream has one owner, all is shared out, little moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_server.cursors.groups import (
    NO_MEMBER,
    Group,
    Member,
    Share,
    join,
    leave,
    release,
    spread,
    with_streams,
)

MEMBERS = [f"m{number}" for number in range(6)]


@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from([*MEMBERS, NO_MEMBER, "gone"])),
    st.sets(st.sampled_from(MEMBERS)),
)
def test_shares_are_even_and_no_stream_moves_that_need_not(
    before: dict[int, str], members: set[str]
) -> None:
    after = spread(before, members)
    if not members:
        assert after == {}
        return
    assert after.keys() == before.keys()
    counts = Counter(dict.fromkeys(members, 0))
    counts.update(after.values())
    assert set(counts) == members
    assert max(counts.values()) - min(counts.values()) <= 1
    least, extra = divmod(len(before), len(members))
    held = sorted((sum(b == m for b in before.values()) for m in members), reverse=True)
    kept_at_most = sum(min(n, least + (place < extra)) for place, n in enumerate(held))
    assert sum(before[number] == member for number, member in after.items()) == kept_at_most


class Groups(RuleBasedStateMachine):
    """Members that are told what to read, let go, die, freeze and come back; and the commits that
    each believes it may make."""

    def __init__(self) -> None:
        super().__init__()
        self.group = with_streams(Group("workers", "orders"), range(5))
        self.holding: dict[str, set[int]] = {}  # by member, also of those that are gone
        self.seen: dict[str, int] = {}  # generations
        self.instances: dict[str, str] = {}
        self.number = 0

    def told(self, member: str) -> None:
        """The member hears of the present state, lets go, and takes what it is given."""
        if self.group.has(member):
            assigned = self.group.assigned(member)
            self.holding[member] &= assigned
            self.group = release(self.group, member, self.holding[member])
            self.holding[member] |= self.group.assigned(member)
            self.seen[member] = self.group.generation

    @rule(instance=st.sampled_from(["", "", "a", "b"]))
    def joins(self, instance: str) -> None:
        self.number += 1
        member = f"m{self.number}"
        generation = self.group.generation
        self.group = join(self.group, Member(member, instance))
        assert self.group.generation == generation + 1
        self.holding[member] = set()
        self.told(member)

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def hears(self, data: st.DataObject) -> None:
        self.told(data.draw(st.sampled_from(sorted(self.holding))))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leaves_or_is_given_up(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.group.members))
        self.group = leave(self.group, {member.id})  # It still believes that it holds its streams.

    @rule(streams=st.sets(st.integers(0, 8)))
    def streams_come_and_go(self, streams: set[int]) -> None:
        self.group = with_streams(self.group, streams)

    @invariant()
    def a_stream_has_one_owner_at_most_who_may_commit(self) -> None:
        for number in self.group.shares:
            able = [
                member
                for member in self.holding
                if self.group.may_commit(member, self.seen.get(member, 0), number)
            ]
            assert len(able) <= 1
            if able:
                assert self.group.shares[number].owner == able[0]

    @invariant()
    def two_members_in_good_standing_never_hold_the_same_stream(self) -> None:
        held = [
            number
            for member in self.group.members
            for number in self.holding[member.id]
            if number in self.group.owned(member.id)
        ]
        assert len(held) == len(set(held))

    @invariant()
    def owners_and_targets_are_members_and_instances_are_one_each(self) -> None:
        ids = {member.id for member in self.group.members} | {NO_MEMBER}
        assert all({share.owner, share.target} <= ids for share in self.group.shares.values())
        named = [member.instance for member in self.group.members if member.instance]
        assert len(named) == len(set(named))

    def teardown(self) -> None:
        """Once all members have heard twice, everything is with its target."""
        for _ in range(2):
            for member in self.group.members:
                self.told(member.id)
        assert self.group.is_settled
        if self.group.members:
            assert all(share.owner != NO_MEMBER for share in self.group.shares.values())


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_static_member_that_comes_back_takes_its_place_and_its_last_run_is_fenced() -> None:
    group = with_streams(Group("workers", "orders"), range(4))
    group = join(join(group, Member("a1", "a")), Member("b1", "b"))
    group = release(group, "a1", group.assigned("a1"))
    before = group.owned("a1")
    assert len(before) == 2
    group = join(group, Member("a2", "a"))
    assert group.owned("a2") == group.assigned("a2") == before
    for number in before:
        assert group.may_commit("a2", group.generation, number)
        assert not group.may_commit("a1", group.generation, number)


def test_a_late_commit_of_an_earlier_ownership_is_refused() -> None:
    group = Group("workers", "orders", 9, (Member("a"),), {1: Share("a", "a", 7)})
    assert group.may_commit("a", 7, 1)
    assert not group.may_commit("a", 6, 1)
    assert not replace(group, members=()).may_commit("a", 9, 1)


def test_only_what_moves_is_stopped() -> None:
    group = join(with_streams(Group("workers", "orders"), range(8)), Member("a"))
    assert len(group.assigned("a")) == 8
    group = join(group, Member("b"))
    assert len(group.assigned("a")) == 4
    assert group.owned("a") == frozenset(range(8))
    assert group.assigned("b") == frozenset()
    group = release(group, "a", group.assigned("a"))
    assert len(group.assigned("b")) == 4
