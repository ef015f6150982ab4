"""Voters that change while the group runs: one at a time, without a loss or a stop.

The shipped cores in a simulated network. Each rule is switched off once (MUTANTS): a scenario or a
random walk must see it.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import voter_change
from jetstream_server.metadata.raft.catching_up import CatchingUp
from jetstream_server.metadata.raft.changing import ChangingSyncObj
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.messages import VOTERS
from jetstream_server.metadata.raft.voter_change import Situation, Verdict
from jetstream_server.metadata.raft.voters import VoterLog, Voters

from .raft_fabric import Fabric
from .raft_voters import walk

SEEDS = 3
SEEDS_MAX = 150
Scenario = Callable[[Fabric], None]
Patch = pytest.MonkeyPatch


def play(scenario: Scenario, seed: int) -> None:
    count, spare = SIZES.get(scenario, (3, 2))
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as directory,
        Fabric.running(patch, Path(directory), seed, count, spare=spare) as fabric,
    ):
        fabric.registers = True
        settle(fabric)
        scenario(fabric)


def settle(fabric: Fabric) -> NodeId:
    """The leader of a group at rest: all that run are registered and have everything."""
    leader = fabric.run_until_led()
    for _ in range(500):
        fabric.step()
        if fabric.is_at_rest():
            return leader
    raise AssertionError("the group does not come to rest")


def others(fabric: Fabric, *nodes: int) -> list[NodeId]:
    """The running voters but these."""
    voters = fabric.nodes[next(iter(fabric.nodes))].core.voters.ids
    return [node_id for node_id in voters if node_id not in nodes]


def verdict(fabric: Fabric, leader: NodeId, wanted: Collection[int]) -> tuple[Verdict, str]:
    """What that leader decides at once."""
    fabric.change_voters(leader, wanted)
    fabric.step()
    _, decided, reason = fabric.verdicts[-1]
    return decided, reason


def commits(fabric: Fabric, *, seconds: float = 6.0) -> None:
    """The group takes a command: whoever leads."""
    for _ in range(round(seconds / 0.5)):
        leader = fabric.leader()
        text = "" if leader is None else fabric.submit(leader)
        fabric.run(0.5)
        if text in fabric.committed:
            return
    raise AssertionError("nothing is committed")


def holds(fabric: Fabric, node_id: NodeId, voters: Collection[int]) -> bool:
    return set(fabric.nodes[node_id].core.voters.ids) == set(voters)


# What operators do.


def voters_grow_and_shrink(fabric: Fabric) -> None:
    for wanted in ((0, 1, 2, 3, 4), (3,), (3, 1), (0,), (0, 1, 2)):
        fabric.vote_with(*wanted)
        commits(fabric)
    fabric.recover()
    assert all(holds(fabric, node_id, {0, 1, 2}) for node_id in fabric.ids)


def a_dead_voter_is_replaced(fabric: Fabric) -> None:
    dead = NodeId(2)
    fabric.crash(dead)
    fabric.run(2.0)
    leader = fabric.vote_with(0, 1, 3)
    # The new one makes a majority.
    fabric.crash(NodeId(1 - leader) if leader < 2 else NodeId(0))
    commits(fabric)


def a_leader_removes_itself(fabric: Fabric) -> None:
    """It hands over, and whoever leads then is asked again."""
    leader = fabric.run_until_led()
    wanted = set(others(fabric, leader))
    assert verdict(fabric, leader, wanted)[0] == Verdict.HAND_OVER
    successor = fabric.vote_with(*wanted)
    assert successor != leader
    fabric.recover()
    assert not fabric.nodes[leader].core.is_member()


def a_removed_voter_that_has_not_heard_of_it_disturbs_nobody(fabric: Fabric) -> None:
    leader = fabric.run_until_led()
    removed, *_ = others(fabric, leader)
    fabric.cut_off(removed)
    fabric.run(0.1)
    stays = set(others(fabric, removed)) | {3}
    change_among(fabric, stays, without=removed)
    leader = led_without(fabric, removed)
    term = fabric.nodes[leader].core.raftCurrentTerm
    fabric.run(3.0)  # It asks, and asks.
    fabric.heal()
    fabric.run(2.0)
    assert fabric.leader() == leader
    assert {node.core.raftCurrentTerm for node in fabric.nodes.values()} == {term}
    assert holds(fabric, removed, stays), "it has heard of its removal"
    assert fabric.nodes[removed].core.leader_id() == leader, "and follows"


def led_without(fabric: Fabric, *cut_off: NodeId) -> NodeId:
    for _ in range(500):
        leader = fabric.leader()
        there = [node for node in fabric.nodes.values() if node.node_id not in cut_off]
        if leader is not None and all(node.core.leader_id() == leader for node in there):
            return leader
        fabric.step()
    raise AssertionError("no leader within ten seconds")


def change_among(fabric: Fabric, wanted: Collection[int], without: NodeId) -> None:
    """As Fabric.vote_with, while one node is cut off."""
    for _ in range(1500):
        leader = led_without(fabric, without)
        core = fabric.nodes[leader].core
        now = set(core.voters.ids)
        if now == set(wanted) and core.committed_voters == core.voters:
            return
        added, removed = set(wanted) - now, now - set(wanted)
        if now != set(wanted):
            fabric.change_voters(leader, now | added if added else now - set(sorted(removed)[:1]))
        fabric.step()
    raise AssertionError(f"the voters do not become {wanted}: {fabric.verdicts[-3:]}")


def a_voter_s_lost_disk_does_not_vote_though_it_was_added_later(fabric: Fabric) -> None:
    """It is taken back by the others, as one of the first voters is."""
    leader = fabric.vote_with(0, 1, 2, 3)
    fabric.run(0.5)
    fabric.crash(NodeId(3))
    shutil.rmtree(fabric.directory(NodeId(3)))
    fabric.disks[NodeId(3)] = 1
    node = fabric.start(NodeId(3))
    assert not node.core.votes()
    fabric.run(0.1)
    assert not node.core.votes()
    fabric.recover()
    assert node.core.votes()
    assert node.core.is_member()
    assert leader in fabric.nodes


# When a change is not appended.


def nobody_is_added_that_is_behind(fabric: Fabric) -> None:
    leader = fabric.run_until_led()
    late = NodeId(3)
    fabric.crash(late)
    for _ in range(20):
        fabric.submit(leader)
        fabric.step()
    fabric.run(0.5)
    assert verdict(fabric, leader, {0, 1, 2, 3}) == (
        Verdict.WAIT,
        "node 3 has not caught up with the metadata leader",
    )
    fabric.start(late)
    fabric.run(0.1)
    assert verdict(fabric, leader, {0, 1, 2, 3})[0] == Verdict.WAIT, "after one heartbeat"
    fabric.run(2.0)
    assert verdict(fabric, leader, {0, 1, 2, 3})[0] == Verdict.APPEND


def nobody_is_added_whose_run_is_not_registered(fabric: Fabric) -> None:
    """Its journal might be a copy of an older one."""
    leader = fabric.run_until_led()
    fabric.registers = False
    fabric.crash(NodeId(3))
    shutil.rmtree(fabric.directory(NodeId(3)))
    fabric.start(NodeId(3))
    fabric.run(3.0)
    assert verdict(fabric, leader, {0, 1, 2, 3})[0] == Verdict.WAIT
    fabric.registers = True
    fabric.run(3.0)
    assert verdict(fabric, leader, {0, 1, 2, 3})[0] == Verdict.APPEND


def nobody_is_removed_who_is_needed(fabric: Fabric) -> None:
    leader = fabric.run_until_led()
    down, there = others(fabric, leader)
    fabric.crash(down)
    fabric.run(0.5)
    decided, reason = verdict(fabric, leader, {leader, down})
    assert decided == Verdict.WAIT
    assert f"does not hear {down}: no majority would be left" in reason
    assert verdict(fabric, leader, {leader, there})[0] == Verdict.APPEND


def the_last_voter_stays(fabric: Fabric) -> None:
    leader = fabric.vote_with(1)
    fabric.run(0.5)
    assert verdict(fabric, leader, set())[0] == Verdict.REFUSE
    assert verdict(fabric, leader, {2})[0] == Verdict.REFUSE, "two changes"
    assert verdict(fabric, leader, {1})[0] == Verdict.REFUSE, "no change"


def one_change_waits_for_the_other(fabric: Fabric) -> None:
    leader = fabric.run_until_led()
    fabric.run(1.0)
    for peer in others(fabric, leader):
        fabric.mute(peer, leader)
    assert verdict(fabric, leader, {0, 1, 2, 3})[0] == Verdict.APPEND
    assert verdict(fabric, leader, {0, 1, 2, 3, 4}) == (
        Verdict.WAIT,
        "the last change of the voters is not committed yet",
    )


# What may happen in the middle of a change.


def a_change_that_a_later_leader_does_not_know_is_taken_back(fabric: Fabric) -> None:
    """The set before it is in force again, with the vote of the one that was removed."""
    leader = fabric.run_until_led()
    fabric.run(1.0)
    removed, there = others(fabric, leader)
    fabric.cut_off(leader)
    fabric.nodes[leader].core._append_voters(Voters.of(dict.fromkeys({leader, there}, "")))
    assert holds(fabric, leader, {leader, there})
    fabric.run(2.0)
    fabric.heal()
    settle(fabric)
    assert holds(fabric, leader, {0, 1, 2})
    assert fabric.nodes[removed].core.is_member()
    fabric.crash(there)
    commits(fabric)


def the_second_voter_is_asked_although_it_has_not_heard_that_it_votes(fabric: Fabric) -> None:
    """The first one dies right after it has appended the change, and comes back."""
    fabric.run(1.0)
    first, second = NodeId(0), NodeId(1)
    fabric.part(first, second)
    fabric.nodes[first].core._append_voters(Voters.of(dict.fromkeys((first, second), "")))
    fabric.nodes[first].journal.sync()
    fabric.crash(first)
    fabric.heal()
    fabric.start(first)
    assert holds(fabric, first, {0, 1})
    assert holds(fabric, second, {0})
    commits(fabric)
    assert holds(fabric, second, {0, 1})


def who_is_removed_does_not_hold_up_those_that_stay(fabric: Fabric) -> None:
    """Four voters; the leader reaches only the one that it removes, and dies."""
    leader = fabric.vote_with(0, 1, 2, 3)
    settle(fabric)
    _, *stay = others(fabric, leader)
    for peer in stay:
        fabric.part(leader, peer)
    wanted = {leader, *stay}
    fabric.nodes[leader].core._append_voters(Voters.of(dict.fromkeys(wanted, "")))
    fabric.run(0.3)
    assert fabric.nodes[leader].core.role() == "leader"
    fabric.crash(leader)
    commits(fabric)


def the_new_voter_is_elected_by_one_that_has_not_heard_that_it_votes(fabric: Fabric) -> None:
    """Two voters; the leader adds a third one, commits with that one alone, and dies."""
    leader = fabric.run_until_led()
    (behind,) = others(fabric, leader)
    fabric.run(1.0)
    fabric.part(leader, behind)
    fabric.change_voters(leader, {0, 1, 2})
    text = fabric.submit(leader)
    fabric.run(0.5)
    assert text in fabric.committed
    assert holds(fabric, behind, {0, 1})
    fabric.crash(leader)
    fabric.heal()
    commits(fabric)
    assert fabric.leader() == 2


def two_leaders_change_the_voters_one_after_the_other(fabric: Fabric) -> None:
    """What was wrong in Raft's dissertation, and corrected in 2015: the first one adds a voter and
    is cut off; the second one removes the first before it has committed anything; and the first one
    is elected again, by voters that have heard of neither."""
    first = fabric.run_until_led()
    fabric.run(1.0)
    rest, spare = others(fabric, first), NodeId(4)
    fabric.change_voters(first, {0, 1, 2, 3, 4})
    fabric.step()
    for peer in rest:
        fabric.part(first, peer)  # With what is under way.
        fabric.part(spare, peer)
    fabric.run(0.2)
    assert holds(fabric, spare, {0, 1, 2, 3, 4})
    leading: list[NodeId] = []
    for _ in range(300):
        leading = [node_id for node_id in rest if fabric.nodes[node_id].core.role() == "leader"]
        if leading:
            break
        fabric.step()
    (second,) = leading
    third, fourth = others(fabric, first, second)
    fabric.part(second, fourth)
    for _ in range(20):
        fabric.change_voters(second, {second, third, fourth})
        fabric.step()
    fabric.submit(second)
    fabric.run(0.4)
    fabric.cut_off(second)
    fabric.cut_off(third)
    fabric.parted.discard((min(first, fourth), max(first, fourth)))
    fabric.run(6.0)
    assert fabric.leader() in (first, spare), "it had all it needs"
    fabric.recover()


def a_leader_that_is_cut_off_adds_no_majority_of_its_own(fabric: Fabric) -> None:
    """Two voters, before the first of them is agreed on: with itself they would be three of five,
    and two of the old three would know nothing of them."""
    first = fabric.run_until_led()
    fabric.run(1.0)
    rest = others(fabric, first)
    fabric.change_voters(first, {0, 1, 2, 3})
    fabric.step()
    for peer in rest:
        fabric.cut_off(peer)
    fabric.parted.discard((min(rest), max(rest)))
    for _ in range(20):
        fabric.change_voters(first, {0, 1, 2, 3, 4})
        fabric.submit(first)
        fabric.step()
    for _ in range(100):
        fabric.submit(first)
        for peer in rest:
            fabric.submit(peer)
        fabric.step()
    fabric.heal()
    fabric.recover()


def a_snapshot_names_the_voters(fabric: Fabric) -> None:
    leader = fabric.vote_with(0, 1, 2, 3)
    late = next(node_id for node_id in (0, 1, 2, 3) if node_id != leader)
    fabric.crash(NodeId(late))
    leader = change_among_running(fabric, {0, 1, 2, 3, 4})
    for _ in range(30):
        fabric.submit(leader)
        fabric.step()
    fabric.run(0.5)
    for node_id in tuple(fabric.nodes):
        fabric.compact(node_id)
    fabric.start(NodeId(late))
    settle(fabric)
    for node_id in fabric.ids:
        fabric.crash(node_id)
    for node_id in fabric.ids:
        assert set(fabric.start(node_id).core.voters.ids) == {0, 1, 2, 3, 4}
    settle(fabric)


def change_among_running(fabric: Fabric, wanted: Collection[int]) -> NodeId:
    leader = fabric.vote_with(*wanted)
    fabric.run(0.5)
    return leader


def a_snapshot_takes_a_change_back(fabric: Fabric) -> None:
    """As an entry does. The one who was cut off has written much that nobody else has."""
    old = fabric.run_until_led()
    fabric.run(1.0)
    stay = others(fabric, old)
    there = stay[0]
    fabric.cut_off(old)
    for _ in range(25):
        fabric.submit(old)
        fabric.submit(old)
        fabric.submit(old)
        fabric.step()
    fabric.nodes[old].core._append_voters(Voters.of(dict.fromkeys({old, there}, "")))
    fabric.run(2.0)
    leader = fabric.leader()
    assert leader is not None
    for _ in range(30):
        fabric.submit(leader)
        fabric.step()
    fabric.run(0.5)
    last = fabric.nodes[old].journal.last_index
    for node_id in stay:
        fabric.compact(node_id)
    fabric.heal()
    fabric.run(3.0)
    assert 1 < fabric.nodes[old].journal.snapshot_index < last
    assert holds(fabric, old, {0, 1, 2})


def a_recovery_outvotes_the_log(fabric: Fabric) -> None:
    """Two of three voters are lost for ever; the log has named all three."""
    fabric.vote_with(0, 1, 2, 3)
    fabric.vote_with(0, 1, 2)
    settle(fabric)
    left = NodeId(0)
    for node_id in fabric.ids:
        fabric.crash(node_id)
    fabric.initial = Voters.of({left: "node-0:1"}, recoveries=1)
    node = fabric.start(left)
    assert node.core.voters == fabric.initial
    commits(fabric)
    assert node.core.committed_voters == fabric.initial
    assert not node.core.has_overruled_voters
    # A node that begins anew learns from the log who votes, not whom the group has lost.
    late = NodeId(4)
    shutil.rmtree(fabric.directory(late))
    fabric.disks[late] = 1
    fabric.initial = Voters.of(dict.fromkeys(fabric.ids[:3], ""))
    joined = fabric.start(late)
    fabric.run(2.0)
    assert joined.core.voters == node.core.voters


SIZES: dict[Scenario, tuple[int, int]] = {
    the_second_voter_is_asked_although_it_has_not_heard_that_it_votes: (1, 1),
    the_new_voter_is_elected_by_one_that_has_not_heard_that_it_votes: (2, 1),
    two_leaders_change_the_voters_one_after_the_other: (4, 1),
}
SCENARIOS = (
    voters_grow_and_shrink,
    a_dead_voter_is_replaced,
    a_leader_removes_itself,
    a_removed_voter_that_has_not_heard_of_it_disturbs_nobody,
    a_voter_s_lost_disk_does_not_vote_though_it_was_added_later,
    nobody_is_added_that_is_behind,
    nobody_is_added_whose_run_is_not_registered,
    nobody_is_removed_who_is_needed,
    the_last_voter_stays,
    one_change_waits_for_the_other,
    a_change_that_a_later_leader_does_not_know_is_taken_back,
    the_second_voter_is_asked_although_it_has_not_heard_that_it_votes,
    the_new_voter_is_elected_by_one_that_has_not_heard_that_it_votes,
    who_is_removed_does_not_hold_up_those_that_stay,
    two_leaders_change_the_voters_one_after_the_other,
    a_leader_that_is_cut_off_adds_no_majority_of_its_own,
    a_snapshot_names_the_voters,
    a_snapshot_takes_a_change_back,
    a_recovery_outvotes_the_log,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_holds(scenario: Scenario) -> None:
    for seed in range(SEEDS):
        play(scenario, seed)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_while_the_voters_change(seed: int) -> None:
    """More seeds: python -m tests.unit.metadata.raft_voters."""
    walk(seed)


def test_a_log_in_which_two_voters_change_at_once_is_refused() -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as directory,
        Fabric.running(patch, Path(directory), 1, 3, spare=2) as fabric,
    ):
        fabric.registers = True
        settle(fabric)
        leader = fabric.vote_with(0, 1, 2, 3)
        fabric.run(0.5)
        follower = fabric.nodes[others(fabric, leader)[0]]
        last = follower.journal.held[-1]
        held = list(follower.journal.held)

        def append(*ids: int) -> dict[str, Any]:
            voters = Voters.of({NodeId(node_id): "" for node_id in ids})
            data = bytes([VOTERS]) + voters.encode()
            return {
                "type": "append_entries",
                "term": follower.core.raftCurrentTerm,
                "commit_index": last.index,
                "prevLogIdx": last.index,
                "prevLogTerm": last.term,
                "entries": [Entry(data, last.index + 1, last.term)],
            }

        for wrong in ((0, 1), (0, 1, 2, 4), (0, 1, 2, 3)):
            with pytest.raises(StorageError, match="one at a time may change"):
                follower.core.receive(leader, append(*wrong))
            assert follower.journal.held == held
        follower.core.receive(leader, append(0, 1, 2))
        assert set(follower.core.voters.ids) == {0, 1, 2}


# Mutants.


def in_another_situation(patch: Patch, **values: Any) -> None:
    situation = ChangingSyncObj._situation
    patch.setattr(
        ChangingSyncObj,
        "_situation",
        lambda core: dataclasses.replace(situation(core), **values),
    )


def changes_before_it_has_committed_anything(patch: Patch) -> None:
    in_another_situation(patch, has_committed_own=True)


def changes_before_the_last_change_is_committed(patch: Patch) -> None:
    in_another_situation(patch, is_committed=True)


def changes_several_voters_at_once(patch: Patch) -> None:
    decide = voter_change.judge

    def judge(situation: Situation, wanted: Voters) -> tuple[Verdict, str]:
        changed = situation.in_force.changed_to(wanted)
        if len(changed) > 1 and situation.leader in wanted and situation.has_committed_own:
            return Verdict.APPEND, ""
        return decide(situation, wanted)

    patch.setattr("jetstream_server.metadata.raft.changing.judge", judge)
    patch.setattr(Voters, "may_become", lambda voters, wanted: True)


def adds_whoever_is_linked(patch: Patch) -> None:
    patch.setattr(CatchingUp, "is_done", lambda catching_up, peer, term: True)


def adds_whoever_follows(patch: Patch) -> None:
    """Whether its run is registered or not."""

    def has_caught_up(core: RaftCore, peer: NodeId) -> bool:
        return core.core_catching_up.is_done(peer, core.raftCurrentTerm)

    patch.setattr(ChangingSyncObj, "_has_caught_up", has_caught_up)


def removes_whoever_is_to_be_removed(patch: Patch) -> None:
    in_another_situation(patch, heard=frozenset(range(10)))


def removes_itself(patch: Patch) -> None:
    in_another_situation(patch, leader=NodeId(99))


def uses_voters_once_they_are_committed(patch: Patch) -> None:
    def committed(core: Any) -> Voters:
        known: Voters = core.core_voters.at(getattr(core, "_SyncObj__raftCommitIndex", 0))
        return known

    pass_time = ChangingSyncObj._let_time_pass

    def let_time_pass(core: Any) -> None:
        pass_time(core)
        core._use_voters()

    patch.setattr(ChangingSyncObj, "voters", property(committed))
    patch.setattr(ChangingSyncObj, "_let_time_pass", let_time_pass)


def votes_for_voters_only(patch: Patch) -> None:
    """For those of the set in force on the voter."""
    is_current = ChangingSyncObj._is_current

    def judge(core: Any, node: Any, message: dict[str, Any]) -> bool:
        if message["type"] in ("request_vote", "request_pre_vote"):
            return NodeId(int(node.id)) in core.voters and is_current(core, node, message)
        return is_current(core, node, message)

    patch.setattr(ChangingSyncObj, "_is_current", judge)


def votes_only_if_it_knows_that_it_is_a_voter(patch: Patch) -> None:
    votes = RaftCore.votes
    patch.setattr(RaftCore, "votes", lambda core: core.is_member() and votes(core))


def tells_who_is_removed_at_once(patch: Patch) -> None:
    patch.delattr(ChangingSyncObj, "_SyncObj__sendAppendEntries")


def keeps_a_set_whose_entry_is_gone(patch: Patch) -> None:
    patch.setattr(VoterLog, "truncated", lambda voters, index: None)


def writes_snapshots_without_voters(patch: Patch) -> None:
    snapshot = RaftCore.snapshot
    patch.setattr(
        RaftCore,
        "snapshot",
        lambda core, data, base: dataclasses.replace(snapshot(core, data, base), voters=b""),
    )


def takes_the_log_s_word_after_a_recovery(patch: Patch) -> None:
    def valid_at(voters: VoterLog, count: int) -> Voters | None:
        return voters._named[count - 1][1] if count else None

    patch.setattr(VoterLog, "_valid_at", valid_at)


def leaves_the_lost_voters_in_the_log(patch: Patch) -> None:
    patch.setattr(VoterLog, "is_overruled", False)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario | None]] = [
    (
        changes_before_it_has_committed_anything,
        two_leaders_change_the_voters_one_after_the_other,
    ),
    (
        changes_before_the_last_change_is_committed,
        a_leader_that_is_cut_off_adds_no_majority_of_its_own,
    ),
    (changes_several_voters_at_once, None),
    (uses_voters_once_they_are_committed, None),
    (adds_whoever_is_linked, nobody_is_added_that_is_behind),
    (adds_whoever_follows, nobody_is_added_whose_run_is_not_registered),
    (removes_whoever_is_to_be_removed, nobody_is_removed_who_is_needed),
    (removes_itself, a_leader_removes_itself),
    (
        votes_for_voters_only,
        the_new_voter_is_elected_by_one_that_has_not_heard_that_it_votes,
    ),
    (
        votes_only_if_it_knows_that_it_is_a_voter,
        the_second_voter_is_asked_although_it_has_not_heard_that_it_votes,
    ),
    (tells_who_is_removed_at_once, who_is_removed_does_not_hold_up_those_that_stay),
    (keeps_a_set_whose_entry_is_gone, a_change_that_a_later_leader_does_not_know_is_taken_back),
    (writes_snapshots_without_voters, a_snapshot_names_the_voters),
    (takes_the_log_s_word_after_a_recovery, a_recovery_outvotes_the_log),
    (leaves_the_lost_voters_in_the_log, a_recovery_outvotes_the_log),
]


@pytest.mark.parametrize(
    ("mutate", "scenario"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS]
)
def test_the_mutant_dies(
    mutate: Callable[[Patch], None], scenario: Scenario | None, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    for seed in range(SEEDS_MAX if scenario is None else SEEDS):
        try:
            if scenario is None:
                walk(seed)
            else:
                play(scenario, seed)
        except (AssertionError, StorageError) as error:
            print(f"{mutate.__name__}: seed {seed}: {error}")
            return
    pytest.fail(f"{mutate.__name__} survived")
