"""Consumer groups at work (group_work.py): no seed breaks a promise, and each rule is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_server.cursors import coordinator, groups
from jetstream_server.cursors.coordinator import Coordinator, Heartbeat
from jetstream_server.cursors.groups import NO_MEMBER, Group, Share
from jetstream_server.cursors.leases import Leases
from jetstream_server.cursors.table import CursorTable
from tests.simulation import group_work

SEEDS = 40
MUTANT_SEEDS = 8_000


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_seed_breaks_a_promise(seed: int) -> None:
    group_work.run(seed)


def test_a_seed_replays_exactly() -> None:
    with group_work.a_loop() as first, group_work.a_loop() as second:
        worlds = [group_work.World(7, loop) for loop in (first, second)]
        for world in worlds:
            world.run(200)
    assert worlds[0].log == worlds[1].log
    assert worlds[0].log


def test_who_was_replaced_may_be_heard_of_after_its_successor_has_gone() -> None:
    """It has not heard yet that it was replaced; that is no removal."""
    with group_work.a_loop() as loop:
        world = group_work.World(1, loop)
        world.calm = True
        for name in ("m1", "m2"):
            world.workers.append(group_work.Worker(name, "a"))
            world.ask(world.workers[-1])
            world.high_watermark = len(world.log)
            world.commit_some()
        first, second = world.workers
        world.hear(first)
        world.workers.remove(second)
        for _ in range(3):
            world.pass_time(600_000)
            world.ask(first)
            world.commit_some()
        (group,) = world.coordinator.groups()
        assert not group.has("m1")
        assert not group.has("m2")


Patch = pytest.MonkeyPatch


def a_change_that_is_being_written_does_not_count(patch: Patch) -> None:
    def why_not(self: Coordinator, name: str, stream: int, member: str, generation: int) -> str:
        live = self._groups.get(name)
        if live is not None and live.state.may_commit(member, generation, stream):
            return ""
        return "not its own"

    patch.setattr(Coordinator, "why_not", why_not)


def revisions_are_not_looked_at(patch: Patch) -> None:
    decide = CursorTable._decide
    patch.setattr(
        CursorTable,
        "_decide",
        lambda self, write, *more: decide(self, replace(write, expected_revision=None), *more),
    )


def a_stream_moves_before_its_owner_has_let_go(patch: Patch) -> None:
    rebalanced = groups._rebalance

    def at_once(group: Group) -> Group:
        after = rebalanced(group)
        shares = {
            number: share if share.owner == share.target else Share(share.target, share.target)
            for number, share in after.shares.items()
        }
        return replace(after, shares=shares)

    patch.setattr(groups, "_rebalance", at_once)


def members_are_told_before_it_is_written(patch: Patch) -> None:
    async def change(self: Coordinator, live: Any, decide: Callable[[Group], Group]) -> None:
        after = decide(live.state)
        if after != live.state:
            self._applied(live, after)
            self.writing = asyncio.ensure_future(self._save(after))  # type: ignore[attr-defined]

    patch.setattr(Coordinator, "_change", change)


def who_is_gone_keeps_its_streams(patch: Patch) -> None:
    rebalanced = groups._rebalance

    def kept(group: Group) -> Group:
        after = rebalanced(group)
        shares = {
            number: replace(share, owner=group.shares[number].owner)
            if group.shares[number].owner != NO_MEMBER
            else share
            for number, share in after.shares.items()
        }
        return replace(after, shares=shares)

    patch.setattr(groups, "_rebalance", kept)


def the_next_coordinator_begins_anew(patch: Patch) -> None:
    patch.setattr(Coordinator, "load", lambda self, *states: None)


def everybody_stops_until_all_is_settled(patch: Patch) -> None:
    assigned = Group.assigned
    patch.setattr(
        Group,
        "assigned",
        lambda self, member: assigned(self, member) if self.is_settled else frozenset(),
    )


def any_heartbeat_releases(patch: Patch) -> None:
    decide = Coordinator._next

    def released(self: Coordinator, group: Group, heartbeat: Heartbeat) -> Group:
        return decide(self, group, replace(heartbeat, generation=group.generation))

    def as_it_says(self: Coordinator, group: Group, heartbeat: Heartbeat) -> Group:
        known = group.has(heartbeat.member.id)
        return released(self, group, heartbeat) if known else decide(self, group, heartbeat)

    patch.setattr(Coordinator, "_next", as_it_says)


def a_heartbeat_counts_once_it_is_answered(patch: Patch) -> None:
    arrived, applied = Leases.arrived, Coordinator.heartbeat
    patch.setattr(Leases, "arrived", lambda *_: None)

    async def heartbeat(self: Coordinator, heartbeat: Heartbeat) -> Group:
        group = await applied(self, heartbeat)
        live = self._groups[heartbeat.group]
        arrived(live.leases, heartbeat.member.id, self._now())
        return group

    patch.setattr(Coordinator, "heartbeat", heartbeat)


def a_failed_write_is_forgotten(patch: Patch) -> None:
    write = Coordinator._write

    async def forgotten(self: Coordinator, live: Any, after: Group) -> None:
        try:
            await write(self, live, after)
        finally:
            live.coming = None

    patch.setattr(Coordinator, "_write", forgotten)


def nobody_is_removed_for_what_moved_before_a_failover(patch: Patch) -> None:
    observe = Leases.observe

    def without_moves(self: Leases, group: Group, now: float, **more: Any) -> None:
        observe(self, group, now, **more)
        self.moving = {key: at for key, at in self.moving.items() if key not in known}

    known: set[tuple[int, str]] = set()
    load = Coordinator.load

    def loaded(self: Coordinator, states: Any) -> None:
        states = list(states)
        known.clear()
        for state in states:
            known.update((n, share.owner) for n, share in state.shares.items())
        load(self, states)

    patch.setattr(Leases, "observe", without_moves)
    patch.setattr(Coordinator, "load", loaded)


def a_group_that_was_not_written_is_dropped(patch: Patch) -> None:
    patch.setattr(coordinator._Live, "is_unused", property(lambda self: not self.state.generation))


def a_process_whose_name_was_taken_joins_again(patch: Patch) -> None:
    patch.setattr(coordinator, "FencedInstanceError", PreconditionFailedError)


def who_has_gone_is_forgotten_at_a_failover(patch: Patch) -> None:
    load = Coordinator.load
    patch.setattr(
        Coordinator,
        "load",
        lambda self, states: load(self, [replace(state, gone=()) for state in states]),
    )


def who_has_gone_joins_again(patch: Patch) -> None:
    patch.setattr(groups, "_without", lambda group, member_ids: group)


def a_first_heartbeat_takes_a_name(patch: Patch) -> None:
    patch.setattr(Heartbeat, "must_ask_again", lambda self, group: False)


def a_member_goes_on_for_two_sessions(patch: Patch) -> None:
    def lapse(self: group_work.World) -> None:
        for worker in self.alive():
            if worker.told and self.now - worker.heard >= 2 * group_work.SESSION_MS * 1000:
                self.lost(worker)

    def check(self: group_work.World) -> None:
        held = [
            stream
            for worker in self.alive()
            if not worker.instance and worker.keeps_since is None
            for stream in worker.held
        ]
        assert len(held) == len(set(held)), "two members read one stream"

    patch.setattr(group_work.World, "lapse", lapse)
    patch.setattr(group_work.World, "check_readers", check)


MUTANTS: dict[Callable[[Patch], None], int] = {
    any_heartbeat_releases: 162,
    a_heartbeat_counts_once_it_is_answered: 701,
    a_failed_write_is_forgotten: 53,
    a_group_that_was_not_written_is_dropped: 39,
    a_process_whose_name_was_taken_joins_again: 1,
    who_has_gone_is_forgotten_at_a_failover: 171,
    who_has_gone_joins_again: 129,
    a_first_heartbeat_takes_a_name: 148,
    a_member_goes_on_for_two_sessions: 819,
    a_change_that_is_being_written_does_not_count: 45,
    revisions_are_not_looked_at: 98,
    a_stream_moves_before_its_owner_has_let_go: 0,
    members_are_told_before_it_is_written: 7,
    who_is_gone_keeps_its_streams: 2,
    the_next_coordinator_begins_anew: 2,
    everybody_stops_until_all_is_settled: 2,
}
"""With the recorded seed, in which it dies, tried first."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the recorded seed, or, once a change has moved what happens in it, by another."""
    mutant(monkeypatch)
    for seed in (MUTANTS[mutant], *range(MUTANT_SEEDS)):
        try:
            group_work.run(seed)
        except AssertionError:
            return
    raise AssertionError("it lives")


def run_a_move_that_outlives_its_coordinator() -> None:
    """A member never releases what it was told to release by the coordinator before."""
    with group_work.a_loop() as loop:
        world = group_work.World(1, loop)
        world.calm = True
        keeper, other = (group_work.Worker(world.name()) for _ in range(2))
        world.workers.append(keeper)
        for _ in range(2):
            world.work(keeper)
        assert keeper.held.keys() == set(world.streams)
        keeper.is_stuck = True
        world.workers.append(other)
        world.work(other)
        world.work(keeper)
        assert keeper.held.keys() - keeper.told
        world.lead()
        world.ends = dict.fromkeys(world.ends, 3)
        world.finish(keeper)


def test_a_move_that_outlives_its_coordinator_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_a_move_that_outlives_its_coordinator()
    nobody_is_removed_for_what_moved_before_a_failover(monkeypatch)
    with pytest.raises(AssertionError, match="not everything is handled"):
        run_a_move_that_outlives_its_coordinator()
