"""One node's session driver, and the controller's half of it, message by message."""

from __future__ import annotations

import json

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.state.command_json import encode_command
from jetstream_server.metadata.state.commands import (
    ClaimController,
    FenceNode,
    RegisterNode,
    UnfenceNode,
)
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.sessions.driver import HURRY, SessionDriver
from jetstream_server.replication.sessions.lease import Heartbeat
from jetstream_server.replication.sessions.session_messages import (
    REPORTS_MAX,
    Echo,
    Grant,
    LogEnd,
    Message,
    Ping,
    Reports,
    decode,
    encode,
)
from tests.unit.metadata.cluster import ADDRESSES

from .session_fabric import SETTINGS, FakeCarrier, FakeServer

SECOND = 1_000_000
AGO_US = 100_000
"""So long ago the other voters have backed an earlier leader."""


class Bench:
    """Node 0 of three with its driver; the others are what the test sends and reads."""

    def __init__(self, voters: tuple[int, ...] = (0, 1, 2)) -> None:
        self.now_us = 50 * SECOND
        self.server = FakeServer()
        self.context = FakeCarrier(0, voters)
        self.granted = 0
        self.driver = SessionDriver(self.server, SETTINGS, lambda: self.now_us, self._count)
        for node_id in voters:
            self.context.apply(
                RegisterNode(node_id=NodeId(node_id), session=f"s{node_id}", addresses=ADDRESSES)
            )
        self.server.incarnation = self.incarnation(0)
        self.server.seen_revision = self.context.registry.revision

    def _count(self) -> None:
        self.granted += 1

    def incarnation(self, node_id: int) -> int:
        return self.context.registry.nodes[NodeId(node_id)].incarnation

    def turn(self, after_us: int = 0) -> list[tuple[int, Message]]:
        """What one turn says, later."""
        self.now_us += after_us
        self.driver.turn(self.context)
        return self.said()

    def said(self) -> list[tuple[int, Message]]:
        frames, self.context.sent = self.context.sent, []
        return [(peer, decode(NodeId(0), frame)) for peer, frame in frames]

    def hear(self, peer: int, message: Message) -> list[tuple[int, Message]]:
        self.driver.received(self.context, NodeId(peer), encode(message))
        return self.said()

    def follow(self, leader: int, term: int = 1) -> None:
        self.context.term, self.context.leader = term, NodeId(leader)

    def lead(self, term: int = 1) -> None:
        """Node 0 leads, has claimed, and is sure of its majority."""
        self.follow(0, term)
        epoch = self.context.apply(ClaimController(node_id=NodeId(0)))["epoch"]
        self.context.claim = (term, epoch)
        self.server.seen_revision = self.context.registry.revision
        for peer, message in self.turn():
            if isinstance(message, Ping):
                self.hear(peer, Echo(message.term, message.sent_at_us, AGO_US))
        self.turn()

    def heartbeat(self, node_id: int) -> Heartbeat:
        revision = self.context.registry.revision
        return Heartbeat(NodeId(node_id), self.incarnation(node_id), self.now_us, revision)

    def holds(self) -> bool:
        return self.driver.lease.holds(self.now_us)


class TestNode:
    def test_a_process_that_has_not_registered_sends_no_heartbeat(self) -> None:
        bench = Bench()
        bench.server.incarnation = None
        bench.follow(1)
        assert bench.turn() == []

    def test_without_a_metadata_leader_nobody_is_asked(self) -> None:
        assert Bench().turn() == []

    def test_a_heartbeat_says_what_the_server_has_applied_not_the_raft_thread(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.server.seen_revision = 2
        (heartbeat,) = bench.turn()
        assert heartbeat == (1, Heartbeat(NodeId(0), bench.incarnation(0), bench.now_us, 2))

    def test_a_grant_begins_a_lease_from_when_the_heartbeat_was_sent(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        sent_at_us = bench.now_us
        bench.now_us += SECOND
        bench.hear(1, Grant(bench.incarnation(0), sent_at_us, bench.now_us))
        assert (bench.holds(), bench.granted) == (True, 1)
        bench.now_us = sent_at_us + SETTINGS.lease_us - 1
        assert bench.holds()
        bench.now_us += 1
        assert not bench.holds()

    def test_the_controllers_clock_is_known_from_its_grants(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        assert bench.driver.controller_ahead_us is None
        bench.hear(1, Grant(bench.incarnation(0), bench.now_us, bench.now_us + 3600 * SECOND))
        assert bench.driver.controller_ahead_us == 3600 * SECOND

    def test_only_a_lease_that_was_not_held_is_told(self) -> None:
        bench = Bench()
        bench.follow(1)
        for _ in range(5):
            bench.turn(SETTINGS.heartbeat_us)
            bench.hear(1, Grant(bench.incarnation(0), bench.now_us, bench.now_us))
        assert bench.granted == 1

    def test_a_grant_for_another_incarnation_or_a_heartbeat_never_sent_counts_for_nothing(
        self,
    ) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        bench.hear(1, Grant(bench.incarnation(0) + 1, bench.now_us, bench.now_us))
        bench.hear(1, Grant(bench.incarnation(0), bench.now_us + 1, bench.now_us))
        assert not bench.holds()

    def test_a_new_incarnation_begins_without_a_lease(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        bench.hear(1, Grant(bench.incarnation(0), bench.now_us, bench.now_us))
        assert bench.holds()
        bench.server.incarnation = bench.incarnation(0) + 100
        assert len(bench.turn()) == 1
        assert not bench.holds()

    def test_heartbeats_go_out_each_period_and_more_often_without_a_lease(self) -> None:
        bench = Bench()
        bench.follow(1)
        assert len(bench.turn()) == 1
        assert bench.turn(SETTINGS.heartbeat_us // HURRY - 1) == []
        assert len(bench.turn(1)) == 1
        bench.hear(1, Grant(bench.incarnation(0), bench.now_us, bench.now_us))
        assert bench.turn(SETTINGS.heartbeat_us - 1) == []
        assert len(bench.turn(1)) == 1

    def test_a_new_metadata_leader_and_its_claim_are_greeted_at_once(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        bench.follow(2, term=2)
        assert [peer for peer, _ in bench.turn()] == [2]
        bench.context.apply(ClaimController(node_id=NodeId(2)))
        assert [peer for peer, _ in bench.turn()] == [2]
        assert bench.turn() == []

    def test_a_voter_echoes_only_its_leader_and_only_in_its_own_term(self) -> None:
        bench = Bench()
        bench.server.incarnation = None
        bench.follow(1, term=4)
        assert bench.hear(1, Ping(4, 123)) == [(1, Echo(4, 123, 0))]
        assert bench.hear(2, Ping(4, 123)) == []
        assert bench.hear(1, Ping(3, 123)) == []
        bench.context.term = 5  # It has voted, and knows of no leader yet but the old one.
        assert bench.hear(1, Ping(4, 123)) == []
        bench.context.leader = NO_NODE
        assert bench.hear(1, Ping(5, 123)) == []

    def test_a_voter_tells_how_long_ago_it_backed_an_earlier_leader(self) -> None:
        bench = Bench()
        bench.follow(1, term=4)
        bench.hear(1, Ping(4, 123))
        bench.now_us += 200_000
        bench.hear(1, Ping(4, 456))
        bench.now_us += 300_000
        bench.follow(2, term=6)
        assert bench.hear(2, Ping(6, 789)) == [(2, Echo(6, 789, 300_000))]
        bench.now_us += 100_000
        assert bench.hear(2, Ping(6, 790)) == [(2, Echo(6, 790, 400_000))]

    def test_bytes_that_are_no_message_are_refused(self) -> None:
        bench = Bench()
        with pytest.raises(InvalidRequestError):
            bench.driver.received(bench.context, NodeId(1), b"\x40\x00")


def log_end(stream_id: int, incarnation: int) -> LogEnd:
    return LogEnd(StreamId(stream_id), 3, ReplicaReport(incarnation, 2, 10 * stream_id, False))


class TestReports:
    def test_they_are_sent_when_they_change_to_a_new_controller_and_now_and_then(self) -> None:
        bench = Bench()
        bench.follow(1)
        bench.turn()
        bench.driver.log_ends = (log_end(1, bench.incarnation(0)),)
        wanted = (1, Reports(bench.incarnation(0), bench.driver.log_ends))
        assert wanted in bench.turn(SETTINGS.heartbeat_us)
        assert wanted not in bench.turn(SETTINGS.heartbeat_us)
        assert wanted in bench.turn(SECOND)
        bench.follow(2, term=2)
        assert (2, wanted[1]) in bench.turn()

    def test_many_go_in_parts_and_none_any_more_is_said_once(self) -> None:
        bench = Bench()
        bench.follow(1)
        incarnation = bench.incarnation(0)
        bench.driver.log_ends = tuple(log_end(each, incarnation) for each in range(REPORTS_MAX + 1))
        sizes = [len(said.log_ends) for _, said in bench.turn() if isinstance(said, Reports)]
        assert sizes == [REPORTS_MAX, 1]
        bench.driver.log_ends = ()
        assert (1, Reports(incarnation, ())) in bench.turn(SETTINGS.heartbeat_us)
        assert (1, Reports(incarnation, ())) not in bench.turn(2 * SECOND)

    def test_the_controller_keeps_the_parts_of_one_incarnation_its_own_included(self) -> None:
        bench = Bench()
        bench.lead()
        first, second = log_end(1, 70), log_end(2, 70)
        bench.hear(1, Reports(70, (first,)))
        bench.hear(1, Reports(70, (second,)))
        assert bench.driver.controller.log_ends[NodeId(1)] == {1: first, 2: second}
        later = log_end(1, 71)
        bench.hear(1, Reports(71, (later,)))
        assert bench.driver.controller.log_ends[NodeId(1)] == {1: later}
        bench.hear(1, Reports(71, ()))
        assert bench.driver.controller.log_ends[NodeId(1)] == {}
        own = log_end(5, bench.incarnation(0))
        bench.driver.log_ends = (own,)
        bench.turn(SETTINGS.heartbeat_us)
        assert bench.driver.controller.log_ends[NodeId(0)] == {5: own}


class TestController:
    def test_it_grants_itself_and_others_once_a_majority_has_echoed(self) -> None:
        bench = Bench()
        bench.lead()
        assert bench.hear(1, bench.heartbeat(1)) == [
            (1, Grant(bench.incarnation(1), bench.now_us, bench.now_us))
        ]
        bench.turn(SETTINGS.heartbeat_us // HURRY)
        assert bench.holds()

    def test_nobody_is_granted_anything_before_an_echo_or_long_after_one(self) -> None:
        bench = Bench()
        bench.follow(0)
        bench.context.claim = (1, bench.context.apply(ClaimController(node_id=NodeId(0)))["epoch"])
        bench.turn()
        assert bench.hear(1, bench.heartbeat(1)) == []
        bench.hear(2, Echo(1, bench.now_us, AGO_US))
        bench.turn()
        assert len(bench.hear(1, bench.heartbeat(1))) == 1
        bench.now_us += SETTINGS.authority_us
        assert bench.hear(1, bench.heartbeat(1)) == []

    def test_a_lease_is_shorter_by_the_age_of_the_controllers_certainty(self) -> None:
        bench = Bench()
        bench.lead()
        sure_at_us = bench.now_us
        bench.now_us += 60_000
        (granted,) = bench.hear(1, bench.heartbeat(1))
        assert granted == (1, Grant(bench.incarnation(1), sure_at_us, bench.now_us))

    def test_an_echo_of_an_earlier_term_does_not_make_it_sure(self) -> None:
        bench = Bench()
        bench.lead(term=1)
        bench.follow(0, term=3)
        bench.context.claim = (3, bench.context.apply(ClaimController(node_id=NodeId(0)))["epoch"])
        bench.turn()
        bench.hear(1, Echo(1, bench.now_us, AGO_US))
        bench.turn()
        assert bench.hear(1, bench.heartbeat(1)) == []

    def test_a_role_lost_since_the_last_turn_grants_nothing(self) -> None:
        bench = Bench()
        bench.lead()
        bench.follow(1, term=2)
        assert bench.hear(2, bench.heartbeat(2)) == []

    def test_a_node_that_registered_since_the_claim_must_have_seen_as_much(self) -> None:
        bench = Bench()
        bench.lead()
        bench.context.apply(RegisterNode(node_id=NodeId(1), session="new", addresses=ADDRESSES))
        bench.turn()
        late = bench.heartbeat(1)
        early = Heartbeat(
            late.node_id, late.incarnation, late.sent_at_us, late.applied_revision - 1
        )
        assert bench.hear(1, early) == []
        assert len(bench.hear(1, late)) == 1

    def test_the_silent_are_fenced_under_its_epoch_until_that_has_applied(self) -> None:
        bench = Bench()
        bench.lead()
        for _ in range(SETTINGS.timeout_us // 100_000 + 2):
            bench.turn(100_000)
            bench.hear(1, bench.heartbeat(1))
        fence = FenceNode(node_id=NodeId(2), node_incarnation=bench.incarnation(2))
        assert bench.context.commands
        assert all(command == fence for command in bench.context.commands)
        text = encode_command(fence, controller_epoch=bench.context.controller_epoch)
        assert bench.context.texts[-1] == text
        bench.context.apply_text(text)
        bench.context.commands.clear()
        bench.turn(100_000)
        assert bench.context.commands == []
        bench.hear(2, bench.heartbeat(2))
        bench.turn(100_000)
        assert [type(command) for command in bench.context.commands] == [UnfenceNode]

    def test_it_waits_a_timeout_from_when_an_earlier_leader_was_last_sure(self) -> None:
        bench = Bench()
        bench.now_us += SETTINGS.timeout_us  # Long since this process has begun.
        bench.lead()
        backed_us = bench.now_us - AGO_US
        while not bench.context.commands:
            assert bench.now_us <= backed_us + SETTINGS.timeout_us + 200_000
            bench.turn(10_000)
        assert bench.now_us > backed_us + SETTINGS.timeout_us

    def test_a_second_claim_in_one_term_waits_for_the_leases_of_the_first(self) -> None:
        bench = Bench()
        bench.now_us += SETTINGS.timeout_us
        bench.lead()
        for _ in range(10):
            bench.turn(100_000)
        bench.context.apply(ClaimController(node_id=NodeId(2)))  # Someone's late claim.
        bench.turn()
        again_us = bench.now_us
        bench.context.claim = (1, bench.context.apply(ClaimController(node_id=NodeId(0)))["epoch"])
        bench.turn()
        while not bench.context.commands:
            bench.turn(10_000)
        assert again_us + SETTINGS.timeout_us < bench.now_us

    def test_a_group_of_one_never_fences_itself(self) -> None:
        bench = Bench(voters=(0,))
        bench.server.incarnation = None  # As while its logs are still being recovered.
        bench.lead()
        for _ in range(100):
            bench.turn(100_000)
        assert bench.context.commands == []
        assert not bench.context.registry.nodes[NodeId(0)].fenced

    def test_its_commands_apply_as_they_are(self) -> None:
        bench = Bench()
        bench.lead()
        for _ in range(40):
            bench.turn(100_000)
        assert {json.loads(text)["node_id"] for text in bench.context.texts} == {1, 2}
        for text in bench.context.texts[:2]:
            assert "error" not in bench.context.apply_text(text)
