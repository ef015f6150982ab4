"""Corrections of pysyncobj's errors: the base of RaftCore (core.py).

Each correction has a test in tests/unit/metadata/test_raft_core.py or test_raft_disks.py:

* an append removes only entries that conflict (raft_log.py);
* an answer from an earlier term is dropped; a follower's next index never falls below what it has
  acknowledged (unless it reconnects) and never passes the leader's own log;
* the commit index beside a snapshot's pieces is not applied to a log that was not compared; a
  snapshot is acknowledged only if it was installed;
* votes and acknowledgements count only from members that may give them (voting.py);
* a command whose outcome is never reported does not wait for it: its entry came in a snapshot, or
  the link to the leader that it was forwarded to has broken (core.py).

Methods with pysyncobj's names replace its own.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import pysyncobj.syncobj

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.library import OpenSyncObj, Outbox
from jetstream_server.metadata.raft.messages import REGULAR, Message, is_command
from jetstream_server.metadata.raft.raft_log import RaftLog
from jetstream_server.metadata.raft.snapshot_transfer import SnapshotReceiver, SnapshotSender
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.raft.voters import VoterLog, Voters
from jetstream_server.metadata.raft.voting import VoterReport, Voting

REFUSAL_SECONDS = 10.0
"""Pause after an unreadable snapshot: it is large, and the next one may be unreadable too."""


class StateMachine(Protocol):
    """The state to which commands are applied."""

    def apply(self, command: bytes) -> None:
        """Apply a committed command. An exception ends this node's part in the group at this
        entry."""

    def restore(self, snapshot: bytes) -> bool:
        """Replace the state. Returns False, with nothing changed, if the bytes are not a
        snapshot."""

    def session(self, node_id: NodeId) -> str | None:
        """The node's registered session in the applied state; None without one."""


class CorrectedSyncObj(OpenSyncObj):
    """See the module. The attributes are set by RaftCore before pysyncobj starts."""

    core_node_id: NodeId
    core_nodes: dict[NodeId, Any]
    core_journal: Journal
    core_machine: StateMachine
    core_voting: Voting
    core_voters: VoterLog
    core_log: RaftLog
    core_outbox: Outbox
    core_timings: RaftTimings
    core_sender: SnapshotSender
    core_receiver: SnapshotReceiver
    core_may_lead: bool
    core_was_member: bool
    core_refused_until: float
    """Until when a refused snapshot is not requested again."""

    @property
    def voters(self) -> Voters:
        raise NotImplementedError  # changing.py

    def is_member(self) -> bool:
        """Whether this node is in the set of voters that is in force here."""
        return self.core_node_id in self.voters

    def votes(self) -> bool:
        """Whether this node votes when it is asked, and confirms others as leaders. Who asks
        decides whether that counts: a node that becomes a voter may not have heard of it."""
        journal = self.core_journal
        return self.core_voting.may_vote(journal.standing, is_pristine=journal.is_pristine)

    def may_lead(self) -> bool:
        """Whether this node may be a candidate."""
        return self.is_member() and self.votes()

    def is_learner(self) -> bool:
        """Whether this voter may have forgotten a promise; the others must readmit it."""
        state = self.core_journal.standing.state
        return state == VoterState.LEARNER or (
            state == VoterState.NEW and self.core_voting.has_group
        )

    def no_vote_reason(self) -> str:
        """Why this node does not vote."""
        if self.is_learner():
            is_new = self.core_journal.standing.state == VoterState.NEW
            reason = self.core_journal.lost or (
                "its journal is new and the group's is not"
                if is_new
                else "the group knows a later run of this node"
            )
            if not self.otherNodes:
                return (
                    f"{reason}; no other voter is left to restore its vote: start it once with "
                    "--accept-voters to go on with what it has"
                )
            return f"{reason}; it follows until the others have committed its return"
        return "its journal is new, and it has not heard from every voter that its own is new, too"

    def _check_removal(self, index: int) -> None:
        """Raft never removes applied entries. If it would, this node has another history."""
        if index <= self.raftLastApplied:
            raise StorageError(
                f"the metadata leader's log differs from this node's at entry {index}, which was "
                "applied here already: one of the two has lost metadata that was acknowledged. "
                "Nothing is changed; see "
                'docs/operations/lost_node.md, "A lost or damaged metadata folder"'
            )

    def _check_applied(self, message: Message) -> None:
        """Raise StorageError if entries show that the leader's log lacks what was applied here.

        pysyncobj would only ask for other entries, for ever: there is no common one to ask for.
        """
        index, term = message["prevLogIdx"], message["prevLogTerm"]
        applied = self.raftLastApplied
        if message["term"] < self.raftCurrentTerm or index > applied:
            return
        held = self.core_journal.entries(index, 1)
        if held and held[0].index == index:
            differs = held[0].term != term
        else:
            differs = term > self.core_journal.entry(applied).term  # Terms only grow.
        if differs:
            self._check_removal(index)

    # Which members count (voting.py).

    def _counts(self, node: Any) -> bool:
        node_id = NodeId(int(node.id))
        return self.core_voting.counts(node_id, self.core_machine.session(node_id))

    def _found(self) -> None:
        """Become a voter if all journals of the group are new."""
        journal = self.core_journal
        if self.is_member() and self.core_voting.may_found(
            journal.standing, is_pristine=journal.is_pristine
        ):
            self._become(journal.standing.founding())

    def _follow_registration(self) -> None:
        """Update the status by what the committed log says of this node's runs. Also of one that
        does not vote: it counts as soon as it is made a voter."""
        session = self.core_machine.session(self.core_node_id)
        if session is None or not self.otherNodes:
            return
        before = self.core_journal.standing
        self._become(before.with_registration(session, self.raftLastApplied))

    def _become(self, standing: VoterStatus) -> None:
        """Change the status. The others learn it once it is durable here."""
        if standing == self.core_journal.standing:
            return
        self.core_journal.save_standing(standing)
        if standing.state == VoterState.LEARNER:
            self._follow_no_leader()
        for peer in sorted(self.core_nodes):
            if self.isNodeConnected(self.core_nodes[peer]):
                self._report_status(peer)

    def _report_status(self, peer: NodeId) -> None:
        journal = self.core_journal
        standing = journal.standing
        report = VoterReport(standing.state == VoterState.VOTER, journal.is_pristine, standing.runs)
        self.core_outbox.messages.append((peer, {"type": "standing", "report": report}))

    def _hold_back(self) -> None:
        """Leave members that do not count out of every majority; a node that may not vote is not a
        candidate either."""
        may_lead = self.may_lead()
        now = pysyncobj.syncobj.monotonicTime()
        if not may_lead:
            self._election_deadline = now + self.core_timings.election_max
        elif not self.core_may_lead and self.otherNodes:
            timings = self.core_timings
            patience = random.uniform(timings.election_min, timings.election_max)
            self._election_deadline = now + patience
        self.core_may_lead = may_lead
        if not self._isLeader():
            return
        for node in self.otherNodes:
            if not self._counts(node):
                self._match_index[node] = 0
                if self.core_voting.is_known(NodeId(int(node.id))):
                    self._last_response[node] = 0.0

    # pysyncobj calls these instead of its own methods.

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        if is_command(command, REGULAR):
            self.core_machine.apply(command[1:])

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """Continue from the leader's complete snapshot, unless it is behind this log."""
        snapshot = self.core_receiver.take()
        if snapshot.index <= self.raftLastApplied:
            return
        journal = self.core_journal
        held = journal.entries(snapshot.index, 1)
        if held and held[0][1:] == (snapshot.index, snapshot.term):
            # A late snapshot: entries after it may have been acknowledged, so they stay.
            journal.install(snapshot, keep_from=snapshot.base[0].index)
        else:
            journal.install(snapshot)
            self.core_voting.registrations.truncated(snapshot.index + 1)
            self.core_voters.truncated(snapshot.index + 1)
        self._continue_after(snapshot.index)
        self.core_voting.registrations.applied(snapshot.index)
        self.core_voters.restart(snapshot.index, journal.snapshot_voters)
        self.core_sender.renew()
        self._end_waits(snapshot.index)

    def _is_current(self, node: Any, message: Message) -> bool:
        """Correct a message that pysyncobj would trust. Returns False if the message is void."""
        kind = message["type"]
        if kind == "standing":
            self.core_voting.reported(NodeId(int(node.id)), message["report"])
            return False
        if kind == "next_node_idx":
            if message["term"] != self.raftCurrentTerm:
                return False
            acknowledged = self._match_index.get(node, 0)
            next_index = min(message["next_node_idx"], self.core_log[-1].index + 1)
            message["next_node_idx"] = max(next_index, acknowledged + 1)
        elif kind == "response_vote":
            return self._counts(node)
        elif kind in ("request_vote", "append_entries"):
            self.core_voting.heard_raft_from(NodeId(int(node.id)))
        if kind == "request_vote":
            return self.votes()
        if kind == "timeout_now":
            return self.may_lead()
        if kind == "append_entries" and "serialized" in message:
            return self._take_piece(message)
        if kind == "append_entries":
            self._check_applied(message)
        return True

    def _take_piece(self, message: Message) -> bool:
        """Collect a snapshot's pieces. pysyncobj installs it once the last piece has come and the
        state can be read."""
        if message["term"] < self.raftCurrentTerm:
            return True
        complete = self.core_receiver.add(*message["serialized"])
        if complete:
            snapshot = self.core_receiver.snapshot
            if snapshot.index > self.raftLastApplied:
                complete = self.core_machine.restore(snapshot.data)
            if not complete:
                self.core_refused_until = pysyncobj.syncobj.monotonicTime() + REFUSAL_SECONDS
        message["serialized"] = complete
        return True

    def _SyncObj__sendNextNodeIdx(  # pysyncobj's name
        self, node: Any, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        if success and nextNodeIdx is None:
            # After a snapshot, the rest of this log was not compared with the leader's.
            nextNodeIdx = self.raftLastApplied + 1
        if reset and not success:
            # The logs diverge somewhere after the applied entries: go back there in one step.
            nextNodeIdx = self.raftLastApplied + 1
        if reset and pysyncobj.syncobj.monotonicTime() < self.core_refused_until:
            reset = False  # Only a heartbeat: the snapshot that would follow was just refused.
        self._answer(node, nextNodeIdx, reset=reset, success=success)

    def _answer(
        self,
        node: Any,
        next_index: int | None = None,
        *,
        reset: bool = False,
        success: bool = False,
    ) -> None:
        """Answer entries, a piece of a snapshot, or a heartbeat."""
        if next_index is None:
            next_index = self.core_log[-1].index + 1
        answer = {"next_node_idx": next_index, "reset": reset, "success": success}
        self.core_outbox.send(node, {"type": "next_node_idx", **answer})
