"""Sessions of three nodes as processes: killed, frozen, cut off, kept busy."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.metadata_group import WAIT_SECONDS_MAX, Event, Group, NodeProcess

from .session_node import SESSION_SECONDS


class SessionNode(NodeProcess):
    program = "tests.integration.session_node"


class Sessions(Group):
    """Three nodes, and what each is waited for."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.nodes = [
            SessionNode(node_id, self.voters, directory, 20_000) for node_id in self.voters
        ]

    def controller(self) -> NodeProcess:
        """Once it may fence: no grant of an earlier one is outstanding."""
        leader = self.leader()
        while time.monotonic() - leader.leader_at < SESSION_SECONDS + 0.1:
            time.sleep(0.05)
        assert self.leader() is leader
        return leader

    def others(self, node: NodeProcess) -> list[NodeProcess]:
        return [other for other in self.nodes if other is not node]

    def mend(self) -> None:
        """Every node runs, holds a lease, is fenced by nobody, and has said all it had to say."""
        for node in self.nodes:
            if node.is_running:
                node.signal(signal.SIGCONT)
        self.start_missing()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not all(self._is_well(node) for node in self.nodes):
            assert time.monotonic() < deadline, "the group does not recover"
            time.sleep(0.05)
        for node in self.nodes:
            seen_already(node)

    def _is_well(self, node: NodeProcess) -> bool:
        node.say("state")
        state = see(node, "state")
        return bool(state["held"]) and state["unfenced"] == [each.node_id for each in self.nodes]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    group = Sessions(tmp_path_factory.mktemp("sessions"))
    group.start_missing()
    try:
        yield group
    finally:
        group.close()


@pytest.fixture
def group(nodes: Sessions) -> Sessions:
    """Three nodes that all hold a lease. The tests share them, and may leave them as they like."""
    nodes.mend()
    return nodes


def see(node: NodeProcess, event: str, /, **fields: Any) -> Event:
    """The next such event of that node."""

    def is_it(seen: Event) -> bool:
        return seen["event"] == event and all(seen[key] == value for key, value in fields.items())

    return node.wait_for(is_it)


def see_told(node: NodeProcess, *, held: bool) -> tuple[Event, Event]:
    """The lease's next change, as asked for and as told; in either order."""
    event = "held" if held else "lost"
    seen: dict[str, Event] = {}
    while len(seen) < 2:
        found = node.wait_for(
            lambda found: (
                found["event"] == event or found == {**found, "event": "told", "held": held}
            )
        )
        seen[found["event"]] = found
    return seen[event], seen["told"]


def seen_already(node: NodeProcess) -> list[Event]:
    """Everything the node has said and nobody has asked for."""
    events = []
    while not node.events.empty():
        events.append(node.events.get())
    return events


def test_a_killed_node_is_fenced_and_unfenced_as_another_incarnation(group: Sessions) -> None:
    controller = group.controller()
    victim, witness = group.others(controller)
    controller.say("create s 0 1 2")
    victim.kill()
    fenced = see(witness, "node", node=victim.node_id, fenced=True)
    victim.start()
    registered = see(victim, "registered")
    assert registered["incarnation"] > fenced["incarnation"]
    back = see(witness, "node", node=victim.node_id, fenced=False)
    assert back["incarnation"] == registered["incarnation"]
    see(victim, "held")
    # Nobody else was touched by any of it.
    for node in (controller, witness):
        assert not [event for event in seen_already(node) if event["event"] == "lost"]


def test_a_frozen_node_holds_no_lease_from_its_fencing_until_it_is_unfenced(
    group: Sessions,
) -> None:
    controller = group.controller()
    victim, witness = group.others(controller)
    seen_already(victim)
    victim.signal(signal.SIGSTOP)
    see(witness, "node", node=victim.node_id, fenced=True)
    thawed_at = time.monotonic()
    victim.signal(signal.SIGCONT)
    said: list[Event] = []
    for event in ("lost", "held"):
        while not said or said[-1]["event"] != event:
            said.append(victim.wait_for(lambda _: True))
    (lost,) = (each for each in said if each["event"] == "lost")
    assert lost["at"] >= thawed_at
    # A heartbeat gets a lease once its sender knows of its unfencing.
    known = [each["fenced"] for each in said if each.get("node") == victim.node_id]
    assert known == [True, False]
    for node in (controller, witness):
        see(node, "node", node=victim.node_id, fenced=False)


def test_a_frozen_node_that_wakes_just_in_time_is_not_fenced(group: Sessions) -> None:
    controller = group.controller()
    victim, witness = group.others(controller)
    seen_already(witness)
    victim.signal(signal.SIGSTOP)
    time.sleep(SESSION_SECONDS / 4)
    victim.signal(signal.SIGCONT)
    time.sleep(SESSION_SECONDS)
    assert not [event for event in seen_already(witness) if event["event"] == "node"]


def test_a_killed_metadata_leader_is_fenced_by_the_next_one_as_soon_as_any_other_node(
    group: Sessions,
) -> None:
    controller = group.controller()
    survivors = group.others(controller)
    for node in survivors:
        seen_already(node)
    killed_at = controller.kill()
    for node in survivors:
        fenced = see(node, "node", node=controller.node_id, fenced=True)
        print(f"fenced after {fenced['at'] - killed_at:.2f} s")
        # The others' leases have outlived the change of the metadata leader.
        assert not [event for event in seen_already(node) if event["event"] == "lost"]


def test_an_isolated_metadata_leader_grants_nothing_not_even_to_itself(group: Sessions) -> None:
    leader = group.controller()
    seen_already(leader)
    for node in group.others(leader):
        node.signal(signal.SIGSTOP)
    see_told(leader, held=False)
    time.sleep(1.0)
    assert not [event for event in seen_already(leader) if event["event"] == "held"]
    for node in group.others(leader):
        node.signal(signal.SIGCONT)
    see(leader, "held")


def test_a_busy_loop_costs_no_session_and_no_failover(group: Sessions) -> None:
    controller = group.controller()
    victim, witness = group.others(controller)
    seen_already(controller)
    seen_already(witness)
    controller.say(f"block {2 * SESSION_SECONDS}")
    see(controller, "blocking")
    victim.kill()
    fenced = see(witness, "node", node=victim.node_id, fenced=True)
    assert see(controller, "unblocked")["at"] > fenced["at"]
    see(controller, "node", node=victim.node_id, fenced=True)
    for node in (controller, witness):
        events = seen_already(node)
        assert not [event for event in events if event["event"] == "lost"]
        assert not [event for event in events if event.get("node") == controller.node_id]


@pytest.mark.parametrize("who", ["a follower", "the metadata leader"])
def test_a_disk_that_stands_still_costs_no_lease_and_no_leadership(
    group: Sessions, who: str
) -> None:
    """Longer than a lease, an election timeout and a session last: what leaves a node meanwhile
    promises nothing that the disk would have to hold."""
    controller = group.controller()
    victim = controller if who == "the metadata leader" else group.others(controller)[0]
    for node in group.nodes:
        seen_already(node)
    stream = who.replace(" ", "-")
    victim.say(f"stall {SESSION_SECONDS + 1.0}")
    see(victim, "stalling")  # Before there is anything to flush.
    controller.say(f"create {stream} 0 1 2")
    see(victim, "stalled")
    said = [victim.wait_for(lambda _: True)]
    while said[-1]["event"] != "unstalled":
        said.append(victim.wait_for(lambda _: True))
    time.sleep(1.0)
    for node in group.nodes:
        events = (said if node is victim else []) + seen_already(node)
        names = {event["event"] for event in events}
        assert not names & {"lost", "node", "leader"}, (node.node_id, names)
    victim.say("streams")
    assert stream in see(victim, "streams")["leaders"]
