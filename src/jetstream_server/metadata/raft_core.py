"""pysyncobj's Raft algorithm with our log, snapshots, messages and state machine around it.

pysyncobj decides who leads and what is committed. It neither touches a disk, a socket or a pickle
here, nor calls a replicated method: commands are bytes, and `apply` gets them in order. This is
the only file that touches its private names (`_SyncObj__…`), which is why the version is pinned
and asserted.

Corrected on the way, each with a test in tests/unit/metadata/test_raft_core.py:

* an append removes only entries that conflict (raft_log.py);
* an answer from an earlier term is dropped; a follower's next index never moves behind what it
  has acknowledged (one that reconnects starts afresh) nor past the leader's own log;
* the commit index beside a snapshot's pieces is not applied to a log that was not compared;
* log, vote and term are durable before any message leaves and before an own entry counts: the
  driver calls `tick` and `receive`, then syncs the journal, then sends the outbox.

Not thread-safe: everything is called from one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import pysyncobj
import pysyncobj.pickle
from pysyncobj import SyncObj
from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import FIRST_INDEX, Entry
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.journal import Journal
from jetstream_server.metadata.raft_library import Outbox, RaftTimings, check_version, configuration
from jetstream_server.metadata.raft_log import RaftLog
from jetstream_server.metadata.raft_messages import REGULAR, Message, is_command
from jetstream_server.metadata.snapshot_transfer import SnapshotReceiver, SnapshotSender
from jetstream_server.metadata.status import Role

_ROLES: tuple[Role, ...] = ("follower", "candidate", "leader")
"""In the order of pysyncobj's states."""

SURELY_NOT_APPLIED = (
    FAIL_REASON.QUEUE_FULL,
    FAIL_REASON.MISSING_LEADER,
    FAIL_REASON.DISCARDED,
    FAIL_REASON.NOT_LEADER,
    FAIL_REASON.REQUEST_DENIED,
)
"""Reasons after which this attempt cannot take effect any more. After any other it still may."""


class StateMachine(Protocol):
    """What commands are applied to."""

    def apply(self, command: bytes) -> None:
        """Apply a committed command. Raising ends this node's part in the group, at this entry."""

    def restore(self, snapshot: bytes) -> bool:
        """Replace the state; False, with nothing changed, when the bytes are no snapshot."""


class RaftCore(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """One member's Raft. `voters` includes this node, unless it only follows."""

    def __init__(
        self,
        node_id: NodeId,
        voters: tuple[NodeId, ...],
        journal: Journal,
        machine: StateMachine,
        timings: RaftTimings,
    ) -> None:
        check_version()
        # pysyncobj looks at every attribute while it starts: ours must be there before.
        self.core_journal = journal
        self.core_machine = machine
        self.core_log = RaftLog(journal, self._check_removal)
        self.core_outbox = Outbox(lambda: int(self.raftCurrentTerm))
        self.core_nodes = {voter: Node(str(voter)) for voter in voters}
        self.core_sender = SnapshotSender(journal.directory)
        self.core_receiver = SnapshotReceiver()
        self.core_sent = (0, 0)
        self.core_timings = timings
        own = self.core_nodes.get(node_id)
        others = [node for voter, node in self.core_nodes.items() if voter != node_id]
        super().__init__(own, others, conf=configuration(timings), transport=self.core_outbox)
        self._begin_from_journal()

    def _begin_from_journal(self) -> None:
        log, journal = self.core_log, self.core_journal
        self._SyncObj__raftLog = log
        self._SyncObj__serializer = self.core_sender
        self._SyncObj__needLoadDumpFile = False  # The driver has restored the snapshot.
        self._SyncObj__raftCurrentTerm = max(journal.term, log[-1].term)
        self._SyncObj__votedForNodeId = log.getVotedForNodeId()
        self._SyncObj__raftCommitIndex = log.getRaftCommitIndex()
        self._SyncObj__raftLastApplied = log.getRaftCommitIndex()
        if not self._SyncObj__otherNodes:
            self._SyncObj__raftElectionDeadline = 0  # A group of one need not wait for others.

    # What the driver calls.

    def tick(self) -> None:
        """Let time pass: elections, commits, applying, heartbeats. The journal must be synced."""
        assert self.core_journal.is_synced, "an entry counts only once it is durable"
        self.doTick(0)
        # pysyncobj would wait for the next heartbeat with new entries and commits.
        now = (self.core_journal.last_index, self._SyncObj__raftCommitIndex)
        if now != self.core_sent and self._isLeader():
            self._SyncObj__sendAppendEntries()
        self.core_sent = now

    def receive(self, sender: NodeId, message: Message) -> None:
        """Take in one peer's message."""
        node = self._peer(sender)
        if node is None or not self._is_current(node, message):
            return
        self.core_outbox._onMessageReceived(node, message)
        self.core_log.settle()

    def submit(self, command: bytes, on_failure: Callable[[int], None]) -> None:
        """Propose a command; here or at the leader. Success shows as the command being applied."""

        def done(_: object, reason: int) -> None:
            if reason != FAIL_REASON.SUCCESS:
                on_failure(reason)

        self._applyCommand(command, done, REGULAR)

    def connected(self, peer: NodeId) -> None:
        """A new connection to a peer stands: what it once acknowledged is asked for again."""
        node = self.core_nodes.get(peer)
        if node is None:
            node = self.core_nodes[peer] = Node(str(peer))
            self.core_outbox._onReadonlyNodeConnected(node)
            return
        if node in self._SyncObj__raftMatchIndex:
            self._SyncObj__raftMatchIndex[node] = 0
        self.core_outbox._onNodeConnected(node)
        if node in self._SyncObj__otherNodes:
            self._await_leader()

    def _await_leader(self) -> None:
        """A member that comes back to others may find a leader, whose link is about to stand, too:
        an election at once would depose it. (There is no pre-vote in pysyncobj.) A group that has
        never had a leader has nothing to wait for."""
        if self._SyncObj__raftLeader is None and self.core_journal.last_index > FIRST_INDEX:
            timings = self.core_timings
            patience = random.uniform(timings.election_min, timings.election_max)
            self._SyncObj__raftElectionDeadline = max(
                self._SyncObj__raftElectionDeadline, pysyncobj.syncobj.monotonicTime() + patience
            )

    def disconnected(self, peer: NodeId) -> None:
        node = self.core_nodes[peer]
        self.core_sender.cancelTransmisstion(node)
        if node == self._getLeader():
            timings = self.core_timings
            patience = random.uniform(timings.gone_min, timings.gone_max)
            self._SyncObj__raftElectionDeadline = min(
                self._SyncObj__raftElectionDeadline, pysyncobj.syncobj.monotonicTime() + patience
            )
        if node in self._SyncObj__otherNodes:
            self.core_outbox._onNodeDisconnected(node)
        else:
            del self.core_nodes[peer]
            self.core_outbox._onReadonlyNodeDisconnected(node)

    def undeliverable(self, message: Message) -> None:
        """A message could not be sent: a command it forwards fails at once, not by silence."""
        if message["type"] == "apply_command":
            failed = self._SyncObj__commandsWaitingReply.pop(message.get("request_id"), None)
            if failed is not None:
                failed(None, FAIL_REASON.MISSING_LEADER)

    def take_messages(self) -> list[tuple[NodeId, Message]]:
        """Messages to send once the journal is synced."""
        messages, self.core_outbox.messages = self.core_outbox.messages, []
        return messages

    def hand_over(self) -> bool:
        """As leader, ask the follower that is furthest to take over; whether it was asked."""
        self.core_asked = False

        def asked(_: object, reason: int) -> None:
            self.core_asked = reason == FAIL_REASON.SUCCESS

        self.transferLeadership(None, asked)
        return self.core_asked

    def compacted(self) -> None:
        """The journal has a new snapshot; transfers of the old one may finish."""
        self.core_sender.renew()

    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    def leader_id(self) -> NodeId:
        """The leader this node can reach, itself included; otherwise NO_NODE."""
        node = self._getLeader()
        if node is None or not (self._isLeader() or self.isNodeConnected(node)):
            return NO_NODE
        return NodeId(int(node.id))

    def applied_entries(self) -> tuple[Entry, ...]:
        """The last two entries applied, as far as they are held: what a log must begin with."""
        last = self._SyncObj__raftLastApplied
        return tuple(self.core_journal.entries(last - 1, 2)) if last > FIRST_INDEX else ()

    def needs_turn(self) -> bool:
        """Whether there is something to do before the next tick: a commit now or in prospect."""
        alone = not self._SyncObj__otherNodes and self._SyncObj__selfNode is not None
        unapplied = self._SyncObj__raftCommitIndex > self._SyncObj__raftLastApplied
        uncommitted = self._SyncObj__raftCommitIndex < self.core_log[-1].index
        return unapplied or (alone and uncommitted)

    def _check_removal(self, index: int) -> None:
        """Raft never removes what it has applied: if it would, this node's history is another."""
        if index <= self._SyncObj__raftLastApplied:
            raise StorageError(
                f"the metadata leader's log differs from this node's at entry {index}, which was "
                "applied already: this node must join anew with an empty data folder"
            )

    # What pysyncobj calls, in place of its own.

    def _applyCommand(  # pysyncobj's name
        self, command: bytes, callback: Any, kind: int | None = None
    ) -> None:
        data = command if kind is None else bytes([kind]) + command
        self._SyncObj__commandsQueue.put_nowait((data, callback))

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        if is_command(command, REGULAR):
            self.core_machine.apply(command[1:])

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """There are no commands that change the cluster."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """The driver compacts: it knows how to do so without holding anything up."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """A leader's snapshot has arrived whole: go on from there."""
        snapshot = self.core_receiver.take()
        if snapshot.index <= self._SyncObj__raftLastApplied:
            return
        if not self.core_machine.restore(snapshot.data):
            return
        self.core_journal.install(snapshot)
        self._SyncObj__raftLastApplied = snapshot.index
        self._SyncObj__raftCommitIndex = snapshot.index
        self.core_sender.renew()

    def _is_current(self, node: Any, message: Message) -> bool:
        """Correct what pysyncobj would take at face value; False: the message is void."""
        if message["type"] == "next_node_idx":
            if message["term"] != self._SyncObj__raftCurrentTerm:
                return False
            acknowledged = self._SyncObj__raftMatchIndex.get(node, 0)
            next_index = min(message["next_node_idx"], self.core_log[-1].index + 1)
            message["next_node_idx"] = max(next_index, acknowledged + 1)
        elif message["type"] == "append_entries" and "serialized" in message:
            return self._take_piece(message)
        return True

    def _take_piece(self, message: Message) -> bool:
        """Collect a snapshot's pieces; pysyncobj is to install it when the last one has come."""
        if message["term"] >= self._SyncObj__raftCurrentTerm:
            complete = self.core_receiver.add(*message["serialized"])
            message["serialized"] = complete
        return True

    def _peer(self, peer: NodeId) -> Any:
        return self.core_nodes.get(peer)
