"""Consumer groups at work (group_work.py): no seed breaks a promise, and each rule is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetstream_server.cursors import groups
from jetstream_server.cursors.coordinator import Coordinator
from jetstream_server.cursors.groups import NOBODY, Group, Share
from jetstream_server.cursors.table import CursorTable
from tests.simulation import group_work

SEEDS = 40
MUTANT_SEEDS = 400


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
        lambda self, write, planned, plan: decide(
            self, replace(write, expected_revision=None), planned, plan
        ),
    )


def a_stream_moves_before_its_owner_has_let_go(patch: Patch) -> None:
    rebalanced = groups._rebalanced

    def at_once(group: Group) -> Group:
        after = rebalanced(group)
        shares = {
            number: share if share.owner == share.target else Share(share.target, share.target)
            for number, share in after.shares.items()
        }
        return replace(after, shares=shares)

    patch.setattr(groups, "_rebalanced", at_once)


def members_are_told_before_it_is_written(patch: Patch) -> None:
    async def change(self: Coordinator, live: Any, decide: Callable[[Group], Group]) -> None:
        after = decide(live.state)
        if after != live.state:
            self._applied(live, after)
            self.writing = asyncio.ensure_future(self._save(after))  # type: ignore[attr-defined]

    patch.setattr(Coordinator, "_change", change)


def who_is_gone_keeps_its_streams(patch: Patch) -> None:
    rebalanced = groups._rebalanced

    def kept(group: Group) -> Group:
        after = rebalanced(group)
        shares = {
            number: replace(share, owner=group.shares[number].owner)
            if group.shares[number].owner != NOBODY
            else share
            for number, share in after.shares.items()
        }
        return replace(after, shares=shares)

    patch.setattr(groups, "_rebalanced", kept)


def the_next_coordinator_begins_anew(patch: Patch) -> None:
    patch.setattr(Coordinator, "load", lambda self, states: None)


def everybody_stops_until_all_is_settled(patch: Patch) -> None:
    assigned = Group.assigned
    patch.setattr(
        Group,
        "assigned",
        lambda self, member: assigned(self, member) if self.is_settled else frozenset(),
    )


MUTANTS = [
    a_change_that_is_being_written_does_not_count,
    revisions_are_not_looked_at,
    a_stream_moves_before_its_owner_has_let_go,
    members_are_told_before_it_is_written,
    who_is_gone_keeps_its_streams,
    the_next_coordinator_begins_anew,
    everybody_stops_until_all_is_settled,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_dies(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            group_work.run(seed)
        except AssertionError:
            return
    raise AssertionError("it lives")
