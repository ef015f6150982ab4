"""Pre-vote and check-quorum: who is cut off or comes back moves no term and ends no leadership.

The shipped cores in a simulated network, many seeds for each rule. Each rule of the pre-vote is
switched off once (MUTANTS): a scenario must see it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.electing import ElectingSyncObj
from jetstream_server.metadata.raft.messages import Message
from jetstream_server.metadata.raft.pre_vote import PreVote
from jetstream_server.metadata.raft.timings import RaftTimings
from tests.support.examples import scaled

from .raft_fabric import Fabric

SEEDS = scaled(12)
MUTANT_SEEDS = 12
TIMINGS = RaftTimings()
ELECTION_SECONDS_MAX = 6.0
"""An election is due within a second; each split vote costs another."""

Scenario = Callable[[Fabric], None]


def play(scenario: Scenario, seed: int, count: int, earlier: Collection[int] = ()) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as directory,
        Fabric.running(patch, Path(directory), seed, count, earlier) as fabric,
    ):
        scenario(fabric)


def settled(fabric: Fabric) -> NodeId:
    """The leader, once all follow it and have everything."""
    leader = fabric.run_until_led()
    text = fabric.submit(leader)
    fabric.run(0.6)
    assert all(text in node.machine.applied for node in fabric.nodes.values())
    return leader


def others(fabric: Fabric, *leaders: NodeId) -> list[NodeId]:
    return [node_id for node_id in fabric.ids if node_id not in leaders]


def still_leads(fabric: Fabric, leader: NodeId, term: int) -> None:
    """All follow the same leader in the same term, and it commits."""
    text = fabric.submit(leader)
    fabric.run(1.0)
    assert fabric.leader() == leader
    assert {node.core.raftCurrentTerm for node in fabric.nodes.values()} == {term}
    assert {node.core.leader_id() for node in fabric.nodes.values()} == {leader}
    assert all(text in node.machine.applied for node in fabric.nodes.values())


def term_of(fabric: Fabric, node_id: NodeId) -> int:
    return int(fabric.nodes[node_id].core.raftCurrentTerm)


def leads_again(fabric: Fabric, old: NodeId) -> float:
    """Seconds until another node leads all that can be led."""
    began = fabric.now
    while fabric.now - began < ELECTION_SECONDS_MAX:
        fabric.step()
        leader = fabric.leader()
        if leader not in (None, old) and all(
            node.core.leader_id() == leader for node in fabric.nodes.values() if node.node_id != old
        ):
            return fabric.now - began
    raise AssertionError("no election")


# Nobody is disturbed.


def an_isolated_member_returns(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    for _ in range(3):
        away = fabric.dice.choice(others(fabric, leader))
        if fabric.dice.random() < 0.5:
            fabric.cut_off(away)
        else:
            fabric.silence(away)  # As with packets that are lost: the links outlive that.
        fabric.run(fabric.dice.uniform(0.2, 6.0))
        if fabric.dice.random() < 0.5:
            fabric.submit(leader)  # It comes back with a shorter log.
        fabric.heal()
        fabric.run(fabric.dice.uniform(0.1, 1.0))
    still_leads(fabric, leader, term)


def a_member_without_a_link_to_the_leader_asks_in_vain(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    fabric.part(leader, fabric.dice.choice(others(fabric, leader)))
    fabric.run(6.0)
    fabric.heal()
    still_leads(fabric, leader, term)


def links_of_a_member_flap(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    flapping = fabric.dice.choice(others(fabric, leader))
    for _ in range(30):
        peer = fabric.dice.choice([peer for peer in fabric.ids if peer != flapping])
        fabric.part(flapping, peer)
        fabric.run(fabric.dice.uniform(0.02, 0.7))
        if fabric.dice.random() < 0.6:
            fabric.heal()
            fabric.run(fabric.dice.uniform(0.02, 0.3))
    fabric.heal()
    still_leads(fabric, leader, term)


def members_restart_in_a_network_that_hides_the_leader(fabric: Fabric) -> None:
    """A process that has just started may have promised the leader to follow it."""
    leader = settled(fabric)
    term = term_of(fabric, leader)
    hidden, restarted = fabric.dice.sample(others(fabric, leader), 2)
    fabric.part(hidden, leader)
    fabric.run(1.5)  # It asks and asks.
    for _ in range(4):
        fabric.crash(restarted)
        fabric.start(restarted)
        fabric.part(restarted, leader)  # A link takes a while.
        fabric.run(fabric.dice.uniform(0.1, 0.35))
        fabric.parted.discard((min(leader, restarted), max(leader, restarted)))
        fabric.run(1.0)
    fabric.heal()
    still_leads(fabric, leader, term)


def a_link_to_the_leader_breaks_while_another_member_asks(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    hidden, flapping = fabric.dice.sample(others(fabric, leader), 2)
    fabric.part(hidden, leader)
    fabric.run(1.5)
    for _ in range(30):
        fabric.part(flapping, leader)
        fabric.run(0.06)
        fabric.parted.discard((min(leader, flapping), max(leader, flapping)))
        fabric.run(fabric.dice.uniform(0.3, 0.6))
    fabric.heal()
    still_leads(fabric, leader, term)


def a_member_hears_nobody(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    deaf = fabric.dice.choice(others(fabric, leader))
    for peer in fabric.ids:
        if peer != deaf:
            fabric.mute(peer, deaf)
    fabric.run(fabric.dice.uniform(1.0, 4.0))
    fabric.heal()
    still_leads(fabric, leader, term)


def a_member_is_not_heard(fabric: Fabric) -> None:
    leader = settled(fabric)
    term = term_of(fabric, leader)
    mute = fabric.dice.choice(others(fabric, leader))
    for peer in fabric.ids:
        if peer != mute:
            fabric.mute(mute, peer)
    fabric.run(fabric.dice.uniform(1.0, 4.0))
    fabric.heal()
    still_leads(fabric, leader, term)


def a_late_request_for_a_vote_meets_a_leader(fabric: Fabric) -> None:
    """Granted before the leader was heard again, and overtaken by that."""
    leader = settled(fabric)
    term = term_of(fabric, leader)
    late = fabric.dice.choice(others(fabric, leader))
    last = fabric.nodes[leader].journal.held[-1]
    request: Message = {
        "type": "request_vote",
        "term": term + 1,
        "last_log_index": last.index,
        "last_log_term": last.term,
    }
    for node_id in others(fabric, late):
        fabric.nodes[node_id].core.receive(late, dict(request))
    still_leads(fabric, leader, term)


# Leaders that cannot lead step down.


def a_leader_that_is_not_heard_or_hears_nobody_steps_down(fabric: Fabric) -> None:
    leader = settled(fabric)
    core = fabric.nodes[leader].core
    is_deaf = fabric.dice.random() < 0.5
    for peer in others(fabric, leader):
        fabric.mute(*((peer, leader) if is_deaf else (leader, peer)))
    fabric.run(TIMINGS.election_max)
    assert core.role() != "leader"
    leads_again(fabric, leader)
    fabric.heal()
    fabric.run(1.0)
    assert fabric.leader() != leader, "it has come back as a follower"
    assert core.leader_id() == fabric.leader()


# Elections still happen.


def the_leader_dies(fabric: Fabric) -> None:
    leader = settled(fabric)
    fabric.crash(leader)
    leads_again(fabric, leader)


def the_leader_falls_silent(fabric: Fabric) -> None:
    leader = settled(fabric)
    fabric.silence(leader)
    leads_again(fabric, leader)


def the_leader_dies_and_a_bare_majority_is_left(fabric: Fabric) -> None:
    leader = settled(fabric)
    down = fabric.dice.sample(others(fabric, leader), (len(fabric.ids) - 1) // 2 - 1)
    for node_id in down:
        fabric.crash(node_id)
    fabric.run(1.0)
    fabric.crash(leader)
    leads_again(fabric, leader)


def the_leader_dies_beside_a_learner(fabric: Fabric) -> None:
    """Five voters: one has lost its folder, and one more is gone."""
    leader = settled(fabric)
    learner = fabric.dice.choice(others(fabric, leader))
    fabric.crash(learner)
    fabric.run(0.5)
    for file in fabric.directory(learner).iterdir():
        file.unlink()
    fabric.start(learner)
    fabric.run(1.0)
    assert not fabric.nodes[learner].core.votes(), "nothing registers its run"
    fabric.crash(leader)
    leads_again(fabric, leader)
    assert fabric.leader() != learner


def the_leader_hands_over_at_once(fabric: Fabric) -> None:
    leader = settled(fabric)
    assert fabric.nodes[leader].core.hand_over()
    fabric.run(0.5)  # Nobody's link has broken, and nobody has missed a heartbeat.
    assert fabric.leader() not in (None, leader)


def a_voter_of_a_later_term_gets_a_leader(fabric: Fabric) -> None:
    """It had won a pre-vote, and was cut off in its election."""
    leader = settled(fabric)
    later = fabric.dice.choice(others(fabric, leader))
    core: Any = fabric.nodes[later].core
    core._SyncObj__setCurrentTerm(core.raftCurrentTerm + 3, str(later))
    core._SyncObj__setState(1)
    fabric.run(ELECTION_SECONDS_MAX)
    leader = settled(fabric)
    assert term_of(fabric, leader) == term_of(fabric, later)


def the_only_one_that_can_lead_is_of_an_earlier_term(fabric: Fabric) -> None:
    """It has the longest log; the others are terms ahead."""
    leader = settled(fabric)
    best = fabric.dice.choice(others(fabric, leader))
    for node_id in others(fabric, leader, best):
        fabric.part(node_id, best)
        fabric.part(node_id, leader)
    text = fabric.submit(leader)
    while text not in (entry.data[1:].decode() for entry in fabric.nodes[best].journal.held):
        fabric.step()
    fabric.step()
    fabric.crash(leader)
    for node_id in others(fabric, leader, best):
        core: Any = fabric.nodes[node_id].core
        core._SyncObj__setCurrentTerm(core.raftCurrentTerm + 40, None)
    fabric.run(1.0)
    fabric.heal()
    began = fabric.now
    assert fabric.run_until_led() == best
    assert fabric.now - began < ELECTION_SECONDS_MAX / 2


UNDISTURBED = (
    an_isolated_member_returns,
    a_member_without_a_link_to_the_leader_asks_in_vain,
    links_of_a_member_flap,
    members_restart_in_a_network_that_hides_the_leader,
    a_link_to_the_leader_breaks_while_another_member_asks,
    a_member_hears_nobody,
    a_member_is_not_heard,
    a_late_request_for_a_vote_meets_a_leader,
)
LED = (
    a_leader_that_is_not_heard_or_hears_nobody_steps_down,
    the_leader_dies,
    the_leader_falls_silent,
    the_leader_hands_over_at_once,
    a_voter_of_a_later_term_gets_a_leader,
)


def name(parameter: Scenario | int | set[int]) -> str:
    return getattr(parameter, "__name__", str(parameter))


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("scenario", UNDISTURBED + LED, ids=name)
def test_a_scenario_holds(scenario: Scenario, count: int) -> None:
    for seed in range(SEEDS):
        play(scenario, seed, count)


@pytest.mark.parametrize(
    ("scenario", "count"),
    [
        (the_leader_dies_and_a_bare_majority_is_left, 5),
        (the_leader_dies_beside_a_learner, 5),
        (the_only_one_that_can_lead_is_of_an_earlier_term, 3),
    ],
    ids=name,
)
def test_a_scenario_of_few_holds(scenario: Scenario, count: int) -> None:
    for seed in range(SEEDS):
        play(scenario, seed, count)


# Mixed releases.


@pytest.mark.parametrize("earlier", [{0}, {2}, {0, 1}, {1, 2}], ids=str)
@pytest.mark.parametrize("scenario", LED, ids=name)
def test_a_group_with_members_of_the_earlier_release_is_led(
    scenario: Scenario, earlier: set[int]
) -> None:
    for seed in range(max(1, SEEDS // 3)):
        play(scenario, seed, 3, earlier)


@pytest.mark.parametrize(("count", "earlier"), [(3, {1}), (3, {0, 2}), (5, {3}), (5, {0, 1, 2})])
def test_mixed_releases_lose_nothing_and_come_to_rest(count: int, earlier: set[int]) -> None:
    def live(fabric: Fabric) -> None:
        fabric.live_through(600)
        fabric.recover()

    for seed in range(max(1, SEEDS // 2)):
        play(live, seed, count, earlier)


def test_a_group_is_updated_voter_by_voter() -> None:
    def update(fabric: Fabric) -> None:
        for node_id in fabric.ids:
            leader = settled(fabric)
            if leader == node_id:
                assert fabric.nodes[leader].core.hand_over()
                fabric.run(0.5)
            fabric.stop(node_id)
            fabric.earlier_releases.remove(node_id)
            fabric.run(0.5)
            fabric.start(node_id)
        leader = settled(fabric)
        term = term_of(fabric, leader)
        fabric.cut_off(others(fabric, leader)[0])
        fabric.run(3.0)
        fabric.heal()
        still_leads(fabric, leader, term)

    for seed in range(SEEDS):
        play(update, seed, 3, {0, 1, 2})


# Mutants.


def elects_without_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ElectingSyncObj, "_ask_first", lambda core: None)


def grants_pre_votes_while_it_hears_a_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ElectingSyncObj, "_hears_another_leader", lambda core, node: False)
    patch.setattr(ElectingSyncObj, "_must_refuse", lambda core, node, message: False)


def grants_votes_while_it_hears_a_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ElectingSyncObj, "_must_refuse", lambda core, node, message: False)


def grants_as_soon_as_it_has_started(patch: pytest.MonkeyPatch) -> None:
    begin = PreVote.__init__

    def begun(pre_vote: PreVote, timings: RaftTimings, now: float) -> None:
        begin(pre_vote, timings, now)
        pre_vote._hears_until = now

    patch.setattr(PreVote, "__init__", begun)


def grants_as_soon_as_its_link_breaks(patch: pytest.MonkeyPatch) -> None:
    def lost(pre_vote: PreVote, now: float) -> None:
        pre_vote._hears_until = now

    patch.setattr(PreVote, "lost_leader", lost)


def forgets_a_leader_whose_link_is_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "_await_heartbeat", lambda core: None)


def waits_for_a_leader_whose_link_is_broken(patch: pytest.MonkeyPatch) -> None:
    """And for one that steps down: it hears until it is silent for ever."""

    def heard(pre_vote: PreVote, now: float) -> None:
        pre_vote._hears_until = now + 60

    patch.setattr(PreVote, "heard_leader", heard)


def never_steps_down(patch: pytest.MonkeyPatch) -> None:
    begin = RaftCore.__init__

    def begun(core: Any, *arguments: Any) -> None:
        begin(core, *arguments)
        core._SyncObj__conf.leaderFallbackTimeout = 1e9

    patch.setattr(RaftCore, "__init__", begun)


def does_not_answer_a_leader_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    learn = ElectingSyncObj._learn_term

    def only_of_pre_votes(core: Any, node: Any, term: int) -> None:
        if not core._isLeader():
            learn(core, node, term)

    patch.setattr(ElectingSyncObj, "_learn_term", only_of_pre_votes)


def learns_no_term_from_answers(patch: pytest.MonkeyPatch) -> None:
    def take(core: Any, node: Any, message: Message) -> None:
        if message["granted"] and core._counts(node):
            core.core_pre_vote.granted(NodeId(int(node.id)), message["asked"])

    patch.setattr(ElectingSyncObj, "_take_pre_vote", take)


def refuses_whom_the_leader_asked_to_take_over(patch: pytest.MonkeyPatch) -> None:
    refuse = ElectingSyncObj._must_refuse

    def must_refuse(core: Any, node: Any, message: Message) -> bool:
        return refuse(core, node, {**message, "takes_over": False})

    patch.setattr(ElectingSyncObj, "_must_refuse", must_refuse)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Scenario, int]] = [
    (elects_without_asking, an_isolated_member_returns, 3),
    (grants_pre_votes_while_it_hears_a_leader, links_of_a_member_flap, 3),
    (grants_votes_while_it_hears_a_leader, a_late_request_for_a_vote_meets_a_leader, 3),
    (
        grants_as_soon_as_it_has_started,
        members_restart_in_a_network_that_hides_the_leader,
        3,
    ),
    (
        grants_as_soon_as_its_link_breaks,
        a_link_to_the_leader_breaks_while_another_member_asks,
        3,
    ),
    (
        forgets_a_leader_whose_link_is_back,
        a_link_to_the_leader_breaks_while_another_member_asks,
        3,
    ),
    (waits_for_a_leader_whose_link_is_broken, the_leader_falls_silent, 3),
    (never_steps_down, a_leader_that_is_not_heard_or_hears_nobody_steps_down, 3),
    (does_not_answer_a_leader_of_an_earlier_term, a_voter_of_a_later_term_gets_a_leader, 3),
    (learns_no_term_from_answers, the_only_one_that_can_lead_is_of_an_earlier_term, 3),
    (refuses_whom_the_leader_asked_to_take_over, the_leader_hands_over_at_once, 3),
]


@pytest.mark.parametrize(
    ("mutate", "scenario", "count"), MUTANTS, ids=[mutate.__name__ for mutate, *_ in MUTANTS]
)
def test_the_mutant_dies(
    mutate: Callable[[pytest.MonkeyPatch], None],
    scenario: Scenario,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            play(scenario, seed, count)
        except AssertionError as error:
            print(f"{mutate.__name__}: seed {seed}: {error}")
            return
    pytest.fail(f"{mutate.__name__} survived {MUTANT_SEEDS} seeds")
