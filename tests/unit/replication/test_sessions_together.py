"""Sessions as a whole: the real drivers of three nodes, with everything around them failing."""

from __future__ import annotations

import pytest

from jetstream_protocol.types import NO_NODE, BootUs, NodeId
from jetstream_server.metadata.state.commands import ClaimController
from jetstream_server.replication.sessions.controller_sessions import (
    PINGS_PER_AUTHORITY,
    ControllerSessions,
)
from jetstream_server.replication.sessions.lease import Heartbeat, SessionSettings
from jetstream_server.replication.sessions.quorum import LeaderSupport, Quorum
from jetstream_server.replication.sessions.session_messages import Echo
from jetstream_server.replication.sessions.session_table import Sessions

from .session_fabric import SETTINGS, Fabric, FakeCarrier, Violation

SEEDS = 40
RARE_SEED = 32
"""It shows what most do not."""


def started(seed: int = 1) -> Fabric:
    """Three nodes that hold leases, led by node 0, whose grace has passed."""
    fabric = Fabric(seed)
    assert fabric.elect(0)
    fabric.run(3)
    assert all(holds(fabric, node_id) for node_id in fabric.ids)
    return fabric


def holds(fabric: Fabric, node_id: int) -> bool:
    return fabric.nodes[node_id].driver.lease.holds(fabric.now_us)


def is_fenced(fabric: Fabric, node_id: int) -> bool:
    return fabric.truth.nodes[NodeId(node_id)].fenced


def test_all_nodes_hold_leases_soon_after_the_first_election() -> None:
    fabric = Fabric(1)
    fabric.elect(0)
    fabric.run(0.5)
    assert all(holds(fabric, node_id) for node_id in fabric.ids)


def test_a_silent_node_is_fenced_a_timeout_after_it_was_last_heard() -> None:
    fabric = started()
    fabric.parted = {frozenset((0, 2)), frozenset((1, 2))}
    began_us = fabric.now_us
    fabric.run(3)
    (node_id, at_us), *_ = fabric.fenced_at_us
    assert node_id == 2
    assert SETTINGS.timeout_us - SETTINGS.heartbeat_us < at_us - began_us
    assert at_us - began_us < SETTINGS.timeout_us + 200_000
    assert not holds(fabric, 2)
    assert holds(fabric, 0)
    assert holds(fabric, 1)


def test_a_node_that_is_heard_again_is_unfenced_and_granted_a_lease() -> None:
    fabric = started()
    fabric.parted = {frozenset((0, 2)), frozenset((1, 2))}
    fabric.run(3)
    fabric.parted = set()
    fabric.run(1)
    assert not is_fenced(fabric, 2)
    assert holds(fabric, 2)


def test_leases_outlive_a_planned_change_of_the_metadata_leader() -> None:
    fabric = started()
    fabric.elect(1)
    for _ in range(150):
        fabric.step()
        assert all(holds(fabric, node_id) for node_id in fabric.ids)
    assert fabric.fenced_at_us == []


@pytest.mark.parametrize("election_seconds", [0.1, 0.4, 0.9])
def test_an_old_controller_is_fenced_as_soon_as_any_other_node(election_seconds: float) -> None:
    fabric = started()
    frozen_us = fabric.now_us
    fabric.nodes[0].frozen_until_us = frozen_us + 10_000_000
    fabric.run(election_seconds)
    fabric.elect(1)
    fabric.run(3)
    (node_id, at_us), *_ = fabric.fenced_at_us
    assert node_id == 0
    soonest_us = SETTINGS.timeout_us - SETTINGS.authority_us // PINGS_PER_AUTHORITY
    assert soonest_us <= at_us - frozen_us < SETTINGS.timeout_us + 200_000
    fabric.run(10)
    assert not is_fenced(fabric, 0)
    assert holds(fabric, 0)


def test_after_a_long_election_everybody_has_time_to_say_that_he_is_alive() -> None:
    fabric = started()
    fabric.nodes[0].frozen_until_us = fabric.now_us + 10_000_000
    fabric.run(5)
    began_us = fabric.now_us
    fabric.elect(1)
    fabric.run(1)
    ((node_id, at_us),) = fabric.fenced_at_us
    assert node_id == 0
    assert SETTINGS.greeting_us <= at_us - began_us < SETTINGS.greeting_us + 200_000
    assert holds(fabric, 1)
    assert holds(fabric, 2)


def test_an_isolated_controller_grants_nothing_and_fences_nobody() -> None:
    fabric = started()
    fabric.parted = {frozenset((0, 1)), frozenset((0, 2))}
    fabric.run((SETTINGS.authority_us + SETTINGS.lease_us) / 1e6 + 0.1)
    assert not any(holds(fabric, node_id) for node_id in fabric.ids)
    fabric.run(5)
    assert fabric.fenced_at_us == []


def torment(seed: int) -> Fabric:
    """Half a minute of freezes, cuts, elections and restarts; then peace."""
    fabric = started(seed)
    dice = fabric.dice
    for _ in range(40):
        fabric.run(dice.choice((0.06, 0.3, 0.7, 1.3)))
        node_id = dice.choice(fabric.ids)
        match dice.randrange(6):
            case 0:
                length_us = dice.choice((100_000, 900_000, 2_500_000))
                fabric.nodes[node_id].frozen_until_us = fabric.now_us + length_us
            case 1:
                fabric.parted = {frozenset((node_id, other)) for other in fabric.ids}
            case 2:
                fabric.parted = {frozenset((node_id, dice.choice(fabric.ids)))}
            case 3:
                fabric.parted = set()
            case 4:
                fabric.restart(node_id)
            case 5:
                fabric.elect(node_id)
        if fabric.current_leader() == NO_NODE and dice.random() < 0.7:
            fabric.elect(dice.choice(fabric.ids))
    fabric.parted = set()
    fabric.run(3)
    while fabric.current_leader() == NO_NODE:
        fabric.elect(dice.choice(fabric.ids))
    fabric.run(3)
    return fabric


def torment_all(seeds: int) -> None:
    for seed in (RARE_SEED, *range(seeds)):
        torment(seed)


def test_nobody_is_ever_fenced_while_holding_a_lease() -> None:
    fenced = 0
    for seed in range(SEEDS):
        fabric = torment(seed)
        fenced += len(fabric.fenced_at_us)
        assert all(holds(fabric, node_id) for node_id in fabric.ids), f"seed {seed}"
        assert not any(is_fenced(fabric, node_id) for node_id in fabric.ids), f"seed {seed}"
    assert fenced > SEEDS


def always_sure(_: Quorum, now_us: int) -> int:
    return now_us


def one_echo_for_ever(self: Quorum, now_us: int) -> int:
    return now_us if max(self._echoed_us.values()) >= 0 else -1


def greets_only(_: Quorum) -> int:
    """Whatever leases there may be."""
    return 0


def asks_nobody(self: Quorum) -> int:
    """All backing came from this node itself."""
    return self._backed_before_us


def hears_only_others(self: Quorum) -> int | None:
    """What this node itself has backed does not count."""
    known = sorted(self._reported_us.values())
    return known[self._needed - 1] if len(known) >= self._needed else None


def waits_less(self: Quorum) -> int | None:
    """By what a lease is shorter than a timeout, and a little more."""
    if len(self._reported_us) < self._needed:
        return None
    reported_us = max(self._backed_before_us, sorted(self._reported_us.values())[self._needed - 1])
    return reported_us - (SETTINGS.timeout_us - SETTINGS.lease_us) - 200_000


def forgets_whom_it_backed(self: LeaderSupport, term: int) -> int:
    return 0


class _AsVoterOnly(LeaderSupport):
    """Somebody else's backing: a leader does not count as backing itself."""

    def __init__(self, backing: LeaderSupport) -> None:
        self._of_voter = backing

    def back(self, term: int, now_us: int) -> None:
        self._of_voter.back(term, self._of_voter._latest_us)

    def before_us(self, term: int) -> int:
        return self._of_voter.before_us(term)


init = ControllerSessions.__init__
heard = Sessions.heard


def backs_only_others(
    self: ControllerSessions, settings: SessionSettings, backing: LeaderSupport
) -> None:
    init(self, settings, _AsVoterOnly(backing))


def grants_whole_leases(self: Sessions, heartbeat: Heartbeat, now_us: int) -> int | None:
    """However long ago the controller was sure of its role."""
    return None if heard(self, heartbeat, now_us) is None else heartbeat.sent_at_us


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Quorum, "sure_at_us", always_sure),
        (Quorum, "sure_at_us", one_echo_for_ever),
        (Quorum, "earlier_sure_at_us", greets_only),
        (Quorum, "earlier_sure_at_us", asks_nobody),
        (Quorum, "earlier_sure_at_us", hears_only_others),
        (Quorum, "earlier_sure_at_us", waits_less),
        (LeaderSupport, "before_us", forgets_whom_it_backed),
        (ControllerSessions, "__init__", backs_only_others),
        (Sessions, "heard", grants_whole_leases),
    ],
)
def test_without_the_rule_somebody_is(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: object
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(Violation):
        torment_all(10 * SEEDS)


# Voters that change.


def torment_voters(seed: int) -> None:
    """New leaders change the voters as fast as they may; earlier ones are cut off."""
    fabric = Fabric(seed, 7, 3)
    dice = fabric.dice
    assert fabric.elect(0)
    fabric.run(3)
    for _ in range(25):
        leader = fabric.current_leader()
        if leader != NO_NODE:
            fabric.parted = {frozenset((leader, other)) for other in fabric.ids}
        for candidate in dice.sample(fabric.ids, len(fabric.ids)):
            if candidate != leader and fabric.elect(candidate):
                change_fast(fabric, candidate)
                break
        fabric.run(dice.choice((0.1, 0.5, 1.0)))
        if dice.random() < 0.5:
            fabric.parted = set()
        fabric.run(dice.choice((0.1, 2.0)))


def change_fast(fabric: Fabric, leader: int) -> None:
    """To three voters of which the others were none before, and hand over to one of them."""
    now = set(fabric.sets[fabric.nodes[leader].changes])
    reachable = [each for each in fabric.ids if each not in now and fabric.reaches(leader, each)]
    wanted = {leader, *fabric.dice.sample(reachable, min(3, len(reachable)))}
    for _ in range(60):
        if now == wanted:
            break
        missing, surplus = sorted(wanted - now), sorted(now - wanted)
        fabric.change_voters(leader, next(each for each in (*surplus, *missing) if each != leader))
        now = set(fabric.sets[fabric.nodes[leader].changes])
        fabric.step()
    heir = fabric.dice.choice(sorted(wanted))
    fabric.elect(heir)


def torment_all_voters(seeds: int, *, first: int = 0) -> None:
    for seed in range(first, first + seeds):
        torment_voters(seed)


def test_nobody_is_fenced_while_holding_a_lease_though_the_voters_change() -> None:
    torment_all_voters(SEEDS // 6)


def test_without_certainty_between_changes_somebody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed shows it before the first one here, and several do soon after."""
    monkeypatch.setattr(ControllerSessions, "is_certain", lambda sessions, context: True)
    with pytest.raises(Violation):
        torment_all_voters(2 * SEEDS, first=16)


def test_with_the_echoes_of_those_that_vote_no_more_somebody_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The quorum stays that of the set with which the term began."""
    ping = ControllerSessions._ping

    def keep(sessions: ControllerSessions, context: FakeCarrier, now_us: int) -> None:
        quorum = sessions._quorum
        if quorum is not None and quorum.term == context.term:
            quorum.voters = context.voters
        ping(sessions, context, now_us)  # type: ignore[arg-type]

    monkeypatch.setattr(ControllerSessions, "_ping", keep)
    with pytest.raises(Violation):
        torment_all_voters(2 * SEEDS)


def test_a_leader_leaves_the_voters_that_elected_it_once_they_have_told_of_earlier_leaders() -> (
    None
):
    """Of those that come later none need have backed one. It is told before its sessions begin."""
    now_us = BootUs(1_000_000_000)
    context = FakeCarrier(0, (0, 1, 2))
    context.term, context.leader = 5, NodeId(0)
    controller = ControllerSessions(SETTINGS, LeaderSupport(now_us))

    def turn_and_echo(voter: int, backed_ago_us: int) -> bool:
        controller.turn(context, now_us)  # type: ignore[arg-type]
        controller.echoed(NodeId(voter), Echo(5, now_us, backed_ago_us), now_us)
        controller.turn(context, now_us)  # type: ignore[arg-type]
        return controller.is_certain(context)  # type: ignore[arg-type]

    assert not turn_and_echo(1, 0), "its claim is not applied"
    context.apply(ClaimController(node_id=NodeId(0)))
    context.claim = (5, context.registry.controller.epoch)
    assert turn_and_echo(1, 0)
    # Two that have never backed anybody.
    context.voters = (NodeId(0), NodeId(3), NodeId(4))
    controller.turn(context, now_us)  # type: ignore[arg-type]
    assert not controller.is_certain(context)  # type: ignore[arg-type]
    assert turn_and_echo(3, 900_000_000)
    # Its claim is applied once more: what the first ones have told holds.
    context.apply(ClaimController(node_id=NodeId(0)))
    context.claim = (5, context.registry.controller.epoch)
    controller._granted_until_us = BootUs(-1)
    controller.turn(context, now_us)  # type: ignore[arg-type]
    assert controller._earlier_sure_at_us == now_us
