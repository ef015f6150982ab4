"""pysyncobj's Raft algorithm with our log, snapshots, messages and state machine around it.

pysyncobj decides which node leads and what is committed. Here it uses no disk, socket or pickle,
and calls no replicated methods: commands are bytes, and `apply` gets them in order. corrections.py
corrects its errors, electing.py adds a pre-vote, changing.py lets the voters change. What they use
of its private state is in library.py; therefore the version is pinned and checked.

Log, vote and term are durable before any message is sent and before an entry of this node counts:
the driver calls `tick` and `receive`, syncs the journal, then sends the outbox.

Not thread-safe: all calls come from one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pysyncobj
import pysyncobj.pickle
from pysyncobj.config import FAIL_REASON

from jetstream_protocol.logfiles.metadata_records import FIRST_INDEX, Entry, Snapshot
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft.catching_up import CatchingUp
from jetstream_server.metadata.raft.changing import ChangingSyncObj
from jetstream_server.metadata.raft.corrections import StateMachine
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.library import (
    Outbox,
    Peer,
    check_version,
    configuration,
)
from jetstream_server.metadata.raft.messages import REGULAR, Message
from jetstream_server.metadata.raft.pre_vote import PreVote
from jetstream_server.metadata.raft.raft_log import RaftLog
from jetstream_server.metadata.raft.snapshot_transfer import SnapshotReceiver, SnapshotSender
from jetstream_server.metadata.raft.status import Role
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.raft.voters import VoterLog, Voters
from jetstream_server.metadata.raft.voting import Voting

_ROLES: tuple[Role, ...] = ("follower", "candidate", "leader")
"""Indexed by pysyncobj's states."""

SURELY_NOT_APPLIED = (
    FAIL_REASON.QUEUE_FULL,
    FAIL_REASON.MISSING_LEADER,
    FAIL_REASON.DISCARDED,
    FAIL_REASON.NOT_LEADER,
    FAIL_REASON.REQUEST_DENIED,
)
"""Failures after which an attempt cannot take effect any more. After any other one it may."""


class RaftCore(ChangingSyncObj):
    """One member's Raft. initial: the voters as `group.json` has them; snapshot and log may name
    later ones."""

    def __init__(
        self,
        node_id: NodeId,
        initial: Voters,
        journal: Journal,
        machine: StateMachine,
        timings: RaftTimings,
    ) -> None:
        check_version()
        # pysyncobj reads every attribute while it starts, so ours must exist before.
        self.core_journal = journal
        self.core_machine = machine
        self.core_node_id = node_id
        self.core_voting = Voting(())
        self.core_voters = VoterLog(initial)
        self.core_catching_up = CatchingUp(timings)
        self.core_is_certain = lambda: True
        self.core_wishes = []
        self.core_log = RaftLog(
            journal, self._check_removal, self.core_voting.registrations, self.core_voters
        )
        self.core_outbox = Outbox(lambda: int(self.raftCurrentTerm))
        others = [voter for voter in self.voters.ids if voter != node_id]
        self.core_voting.use(others)
        self.core_was_member = self.is_member()
        self.core_nodes = {voter: Peer(str(voter)) for voter in others}
        self.core_sender = SnapshotSender(journal.directory)
        self.core_receiver = SnapshotReceiver()
        self.core_bound: list[tuple[int, bytes, Callable[[int], None]]] = []
        self.core_sent = (0, 0)
        self.core_may_lead = False
        self.core_refused_until = 0.0
        self.core_timings = timings
        self.core_pre_vote = PreVote(timings, pysyncobj.syncobj.monotonicTime())
        super().__init__(
            Peer(str(node_id)),
            list(self.core_nodes.values()),
            conf=configuration(timings),
            transport=self.core_outbox,
        )
        self._begin_from_journal(initial.term_min)

    def _begin_from_journal(self, term_min: int) -> None:
        log, journal = self.core_log, self.core_journal
        term = max(journal.term, log[-1].term, term_min)
        voted_for = log.getVotedForNodeId() if term == journal.term else None
        self._begin(log, self.core_sender, term, voted_for)
        if not self.core_nodes:
            self._election_deadline = 0  # A group of one need not wait for others.

    # For the driver.

    def tick(self) -> None:
        """Let time pass: elections, commits, applying, heartbeats. The journal must be synced."""
        assert self.core_journal.is_synced, "an entry counts only once it is durable"
        self._found()
        self._hold_back()
        self._let_time_pass()
        self.core_voting.registrations.applied(self.raftLastApplied)
        self._follow_registration()
        self._append_bound()
        self._change_voters()
        # Otherwise pysyncobj would send new entries and commits only with the next heartbeat.
        now = (self.core_journal.last_index, self.raftCommitIndex)
        if now != self.core_sent and self._isLeader():
            self._send_entries()
        self.core_sent = now

    def receive(self, sender: NodeId, message: Message) -> None:
        """Process a peer's message. Raises StorageError, with the log unchanged, when the peer's
        history differs from what this node has applied, or changes the voters as no leader may: the
        two cannot be linked then."""
        node = self._peer(sender)
        if node is None or not self._is_current(node, message):
            return
        try:
            self.core_outbox._onMessageReceived(node, message)
        finally:
            self.core_log.settle()
            self._use_voters()

    def submit(
        self, command: bytes, on_failure: Callable[[int], None], *, term: int | None = None
    ) -> None:
        """Propose a command, here or at the leader. It has succeeded when it is applied.

        term: the command enters the log of this node as leader of that term, or not at all.
        """
        if term is not None:
            self.core_bound.append((term, bytes([REGULAR]) + command, on_failure))
            return
        self._applyCommand(command, _done(on_failure), REGULAR)

    def heartbeats(self) -> list[tuple[NodeId, Message]]:
        """As leader: heartbeats that promise nothing, to be sent while the journal is synced."""
        journal = self.core_journal
        messages = []
        for node in sorted(
            filter(self.isNodeConnected, self.core_nodes.values()), key=attrgetter("id")
        ):
            matched = journal.entries(self._match_index.get(node, 0), 1)
            message: Message = {
                "type": "append_entries",
                "term": self.raftCurrentTerm,
                "commit_index": self.raftCommitIndex,
            }
            if matched and matched[0].index == self._match_index.get(node):
                of = {"entries": [], "prevLogIdx": matched[0].index, "prevLogTerm": matched[0].term}
                message |= of
            else:
                message["serialized"] = None
            messages.append((NodeId(int(node.id)), message))
        return messages

    def connected(self, peer: NodeId, *, has_pre_vote: bool) -> None:
        """Note a new connection to a peer. Its acknowledgements are collected anew. has_pre_vote:
        it understands the messages of the pre-vote."""
        node = self.core_nodes.get(peer)
        self.core_pre_vote.linked(peer, has_pre_vote=has_pre_vote)
        if node is not None and node == self._getLeader():
            self._await_heartbeat()
        self._report_status(peer)
        if node is None:
            node = self.core_nodes[peer] = Peer(str(peer))
            self.core_outbox._onReadonlyNodeConnected(node)
            return
        if node in self._match_index:
            self._match_index[node] = 0
        self.core_outbox._onNodeConnected(node)

    def _await_heartbeat(self) -> None:
        """Give the leader, whose link is back, time for its next heartbeats."""
        timings, now = self.core_timings, pysyncobj.syncobj.monotonicTime()
        self.core_pre_vote.found_leader(now)
        patience = random.uniform(2 * timings.heartbeat, timings.gone_max)
        self._election_deadline = max(self._election_deadline, now + patience)

    def disconnected(self, peer: NodeId) -> None:
        node = self.core_nodes[peer]
        self.core_catching_up.gone(peer)
        self.core_sender.cancelTransmisstion(node)
        self.core_pre_vote.unlinked(peer)
        if node == self._getLeader():
            timings, now = self.core_timings, pysyncobj.syncobj.monotonicTime()
            self.core_pre_vote.lost_leader(now)
            self._fail_forwarded()  # It does not answer what was forwarded to it.
            patience = random.uniform(timings.gone_min, timings.gone_max)
            self._election_deadline = min(self._election_deadline, now + patience)
        if node in self.otherNodes:
            self.core_outbox._onNodeDisconnected(node)
        else:
            del self.core_nodes[peer]
            self.core_outbox._onReadonlyNodeDisconnected(node)

    def undeliverable(self, message: Message) -> None:
        """Note that a message could not be sent: a forwarded command then fails at once, not after
        a timeout."""
        if message["type"] == "apply_command":
            answer = {"type": "apply_command_response", "request_id": message.get("request_id")}
            failed = answer | {"error": FAIL_REASON.MISSING_LEADER}
            self.core_outbox._onMessageReceived(self.selfNode, failed)

    def take_messages(self) -> list[tuple[NodeId, Message]]:
        """Messages to send once the journal is synced."""
        messages, self.core_outbox.messages = self.core_outbox.messages, []
        return messages

    def hand_over(self) -> bool:
        """As leader, ask the follower with the longest log to take over. Returns whether one was
        asked."""
        self.core_hand_over_requested = False

        def asked(_: object, reason: int) -> None:
            self.core_hand_over_requested = reason == FAIL_REASON.SUCCESS

        self.transferLeadership(None, asked)
        return self.core_hand_over_requested

    def compacted(self) -> None:
        """Note that the journal has a new snapshot. Transfers of the old one may finish."""
        self.core_voters.restart(
            self.core_journal.snapshot_index, self.core_journal.snapshot_voters
        )
        self.core_sender.renew()

    def snapshot(self, data: bytes, base: tuple[Entry, ...]) -> Snapshot:
        """A snapshot of the state `data` after these entries, which have been applied."""
        last = base[-1]
        voters = self.core_voters.named_at(last.index)
        named = b"" if voters is None else voters.encode()
        return Snapshot(last.index, last.term, data, base, named)

    def election_in(self) -> float:
        """Seconds until a follower that hears nothing more would want an election."""
        return self._election_deadline - float(pysyncobj.syncobj.monotonicTime())

    def role(self) -> Role:
        return _ROLES[self._state]

    def leader_id(self) -> NodeId:
        """The leader that this node can reach, itself included; otherwise NO_NODE."""
        node = self._getLeader()
        if node is None or not (self._isLeader() or self.isNodeConnected(node)):
            return NO_NODE
        return NodeId(int(node.id))

    def applied_entries(self) -> tuple[Entry, ...]:
        """The last two applied entries, as far as they are held: a log must begin with them."""
        last = self.raftLastApplied
        return tuple(self.core_journal.entries(last - 1, 2)) if last > FIRST_INDEX else ()

    def needs_turn(self) -> bool:
        """Whether something is due before the next tick: a commit, now or soon."""
        alone = not self.otherNodes
        unapplied = self.raftCommitIndex > self.raftLastApplied
        uncommitted = self.raftCommitIndex < self.core_log[-1].index
        return unapplied or (alone and uncommitted)

    def _append_bound(self) -> None:
        """Append commands that are bound to a term, or fail them."""
        bound, self.core_bound = self.core_bound, []
        for term, data, on_failure in bound:
            if not self._isLeader() or term != self.raftCurrentTerm:
                on_failure(FAIL_REASON.NOT_LEADER)
                continue
            index = self.core_log[-1].index + 1
            self.core_log.add(data, index, term)
            self._await_commit(index, term, _done(on_failure))

    def _peer(self, peer: NodeId) -> Any:
        return self.core_nodes.get(peer)


def _done(on_failure: Callable[[int], None]) -> Callable[[object, int], None]:
    def done(_: object, reason: int) -> None:
        if reason != FAIL_REASON.SUCCESS:
            on_failure(reason)

    return done
