"""Sessions as a whole: the real drivers of three nodes, with everything around them failing."""

from __future__ import annotations

import pytest

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.replication.quorum import Quorum
from jetstream_server.replication.sessions import Sessions

from .session_fabric import SETTINGS, Fabric, Violation

SEEDS = 60


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


def test_a_new_controller_fences_the_old_one_after_its_grace() -> None:
    fabric = started()
    fabric.nodes[0].frozen_until_us = fabric.now_us + 10_000_000
    fabric.run(0.7)
    began_us = fabric.now_us
    fabric.elect(1)
    fabric.run(3)
    (node_id, at_us), *_ = fabric.fenced_at_us
    assert node_id == 0
    grace_us = SETTINGS.authority_us + SETTINGS.timeout_us
    assert grace_us <= at_us - began_us < grace_us + 300_000
    fabric.run(10)
    assert not is_fenced(fabric, 0)
    assert holds(fabric, 0)


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
    for seed in range(seeds):
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


def no_grace(self: Sessions, sure_at_us: int) -> None:
    self._sure_until_us = max(self._sure_until_us, sure_at_us + SETTINGS.authority_us)
    for session in self._sessions.values():
        session.heard_at_us = min(session.heard_at_us, sure_at_us)


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Quorum, "sure_at_us", always_sure),
        (Quorum, "sure_at_us", one_echo_for_ever),
        (Sessions, "renew", no_grace),
    ],
)
def test_without_the_rule_somebody_is(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: object
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(Violation):
        torment_all(10 * SEEDS)
