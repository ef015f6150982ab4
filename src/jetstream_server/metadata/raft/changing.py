"""Voters that change while pysyncobj runs.

Its own way to change members is off: it pickles, applies a change without rule 1, and knows no
learners.

The log knows the sets (voters.py), voter_change.py decides, and here pysyncobj learns which set is
in force: in `_use_voters`, after a message was processed or a change appended, and never within
either. For pysyncobj, nodes that do not vote are read-only nodes while they are linked.

A node that a change removes gets this entry only once it is committed. If only it had the entry
when the leader died, no other voter could be elected without its vote, and it would give none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pysyncobj.syncobj

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.catching_up import CatchingUp
from jetstream_server.metadata.raft.electing import ElectingSyncObj
from jetstream_server.metadata.raft.library import Peer
from jetstream_server.metadata.raft.messages import VOTERS, Message
from jetstream_server.metadata.raft.voter_change import Situation, Verdict, judge
from jetstream_server.metadata.raft.voters import VoterLog, Voters

HEARD_HEARTBEATS = 3
"""A voter that has not answered for so many heartbeats is not heard."""


class ChangingSyncObj(ElectingSyncObj):
    """See the module. The attributes are set by RaftCore before pysyncobj starts."""

    core_voters: VoterLog
    core_catching_up: CatchingUp
    core_is_certain: Callable[[], bool]
    """Whether this leader is certain, by voters of the set in force, that no other one leads."""
    core_wishes: list[tuple[Voters, Callable[[Verdict, str], None]]]

    @property
    def voters(self) -> Voters:
        """The set in force on this node."""
        return self.core_voters.in_force

    @property
    def committed_voters(self) -> Voters | None:
        """The set that the applied log has named; None: it has named none."""
        return self.core_voters.named_at(self.raftLastApplied)

    @property
    def addresses_ahead(self) -> dict[NodeId, str]:
        """Raft ports of nodes that entries not applied yet register."""
        return self.core_voting.registrations.addresses()

    @property
    def are_voters_committed(self) -> bool:
        """Whether the set in force is known to be committed."""
        return self.core_voters.last_change <= self.raftCommitIndex

    @property
    def has_overruled_voters(self) -> bool:
        """Whether the log has yet to name the voters that a recovery has left."""
        return self.core_voters.is_overruled

    def change_voters(self, wanted: Voters, done: Callable[[Verdict, str], None]) -> None:
        """As leader: judge the wish for that set in the next turn, and append it if it may be.

        done: called with what was decided, and why. HAND_OVER: another voter was asked to lead, and
        is to be asked. An appended change has taken place once `committed_voters` says so.
        """
        self.core_wishes.append((wanted, done))

    def _change_voters(self) -> None:
        """Once in a turn, as long as this node leads."""
        self._look_at_followers()
        if self._isLeader() and self.core_voters.is_overruled:
            self._append_voters(self.voters)
        wishes, self.core_wishes = self.core_wishes, []
        for wanted, done in wishes:
            if not self._isLeader():
                done(Verdict.WAIT, "this node does not lead the metadata group any more")
                continue
            verdict, reason = judge(self._situation(), wanted)
            if verdict == Verdict.HAND_OVER and not self.hand_over():
                verdict, reason = Verdict.WAIT, f"{reason}: no voter has caught up with it yet"
            if verdict == Verdict.APPEND:
                self._append_voters(wanted)
            done(verdict, reason)

    def _append_voters(self, wanted: Voters) -> None:
        data = bytes([VOTERS]) + wanted.encode(self.voters.changed_to(wanted))
        self.core_log.add(data, self.core_log[-1].index + 1, self.raftCurrentTerm)
        self._use_voters()

    def _situation(self) -> Situation:
        now, term = pysyncobj.syncobj.monotonicTime(), self.raftCurrentTerm
        patience = HEARD_HEARTBEATS * self.core_timings.heartbeat
        heard = {self.core_node_id}
        for node in self.otherNodes:
            is_there = self._last_response.get(node, 0.0) >= now - patience
            if is_there and self.isNodeConnected(node) and self._counts(node):
                heard.add(NodeId(int(node.id)))
        committed = self.core_journal.entries(self.raftCommitIndex, 1)
        return Situation(
            leader=self.core_node_id,
            in_force=self.voters,
            is_committed=self.are_voters_committed,
            has_committed_own=bool(committed) and committed[0].term == term,
            is_certain=self.core_is_certain(),
            heard=frozenset(heard),
            caught_up=frozenset(
                NodeId(int(node.id))
                for node in self.readonlyNodes
                if self._has_caught_up(NodeId(int(node.id)))
            ),
        )

    def _has_caught_up(self, peer: NodeId) -> bool:
        session = self.core_machine.session(peer)
        return (
            session is not None
            and self.core_voting.is_current(peer, session)
            and self.core_catching_up.is_done(peer, self.raftCurrentTerm)
        )

    def _look_at_followers(self) -> None:
        if self._isLeader():
            self.core_catching_up.look(
                pysyncobj.syncobj.monotonicTime(),
                self.raftCurrentTerm,
                self.raftCommitIndex,
                {
                    NodeId(int(node.id)): (
                        self._match_index.get(node, 0),
                        self._last_response.get(node, 0.0),
                    )
                    for node in self.readonlyNodes
                },
            )

    # The set in force.

    def _use_voters(self) -> None:
        """Tell pysyncobj which nodes vote. Not while it processes something."""
        now = pysyncobj.syncobj.monotonicTime()
        others = {voter for voter in self.voters.ids if voter != self.core_node_id}
        before = {NodeId(int(node.id)) for node in self.otherNodes}
        is_member = self.is_member()
        if others == before and is_member == self.core_was_member:
            return
        self.core_was_member = is_member
        assert is_member or not self._isLeader(), "a leader does not remove itself"
        for voter in sorted(others - before):
            node = self.core_nodes.setdefault(voter, Peer(str(voter)))
            self._make_voter(node, self.core_log[-1].index, now)
        for voter in sorted(before - others):
            self._remove_voter(self.core_nodes[voter])
        self.core_voting.use(sorted(others))
        self.core_pre_vote.end()  # What was granted was granted by others.

    def _remove_voter(self, node: Any) -> None:
        if self.isNodeConnected(node):
            self._make_readonly(node, self.core_log[-1].index)
        else:
            del self.core_nodes[NodeId(int(node.id))]
            self._forget_voter(node)

    def _check_voters(self, message: Message) -> None:
        """Whether changes among a leader's entries may follow each other. Raises StorageError:
        majorities of these sets may have nothing in common."""
        previous = self.core_journal.entries(message["prevLogIdx"], 1)
        if not previous or previous[0][1:] != (message["prevLogIdx"], message["prevLogTerm"]):
            return  # The two logs do not agree there, and pysyncobj will take none of the entries.
        before = self.core_voters.named_at(message["prevLogIdx"])
        for entry in message["entries"]:
            if entry.data[:1] != bytes([VOTERS]):
                continue
            voters = Voters.decode(entry.data[1:])
            if before is not None and not before.may_become(voters):
                raise StorageError(
                    f"the metadata leader's entry {entry.index} changes the voters from "
                    f"{list(before.ids)} to {list(voters.ids)}: one at a time may change"
                )
            before = voters

    def _is_current(self, node: Any, message: Message) -> bool:
        if message["type"] == "append_entries" and message.get("entries"):
            self._check_voters(message)
        return super()._is_current(node, message)

    # pysyncobj calls this instead of its own method.

    def _SyncObj__sendAppendEntries(self) -> None:
        """See the module: who is being removed waits."""
        committed = self.core_voters.at(self.raftCommitIndex)
        waiting = {node for node in self.readonlyNodes if NodeId(int(node.id)) in committed}
        with self._hidden(waiting):
            super()._SyncObj__sendAppendEntries()
