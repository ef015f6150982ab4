"""Pre-vote around pysyncobj's elections, which has none (pre_vote.py decides).

* Before a term is raised, a majority has to want the election.
* A voter that hears a leader grants neither pre-vote nor vote. Excepted are the leader itself,
  which has stepped down then, and the one whom the leader has asked to take over.
* A later term is learnt from every answer. A leader of an earlier term is answered, too: it steps
  down, because a voter of a later term cannot follow it and could not call an election either.

pysyncobj itself ends a leadership that no majority has confirmed for `leader_fallback`.
"""

from __future__ import annotations

import random
from typing import Any

import pysyncobj.syncobj

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.corrections import CorrectedSyncObj
from jetstream_server.metadata.raft.messages import Message
from jetstream_server.metadata.raft.pre_vote import PreVote


class ElectingSyncObj(CorrectedSyncObj):
    """See the module. The attributes are set by RaftCore before pysyncobj starts."""

    core_pre_vote: PreVote

    def _let_time_pass(self) -> None:
        """pysyncobj's tick, with a pre-vote before it calls an election."""
        takes_over = self._takes_over
        if not takes_over:
            self._ask_first()
        self.doTick(0)
        if takes_over:
            for peer, message in self.core_outbox.messages:
                if message["type"] == "request_vote" and self.core_pre_vote.is_known_to(peer):
                    message["takes_over"] = True

    def _ask_first(self) -> None:
        """Instead of calling an election that is due: ask whether it would be won. Once it would,
        let pysyncobj call it."""
        now = pysyncobj.syncobj.monotonicTime()
        others = self.otherNodes
        voters = {NodeId(int(node.id)) for node in others}
        if (
            not voters
            or not self.is_member()
            or self._isLeader()
            or not self.core_pre_vote.is_known_to_all(voters)
        ):
            return
        term = self.raftCurrentTerm + 1
        if self.core_pre_vote.is_won(term, (len(voters) + 1) // 2 + 1):
            self.core_pre_vote.end()
            self._election_deadline = 0
            return
        if self._election_deadline >= now:
            return
        timings = self.core_timings
        self._election_deadline = now + random.uniform(timings.gone_min, timings.gone_max)
        self._give_up_leader()
        self.core_pre_vote.ask(term)
        last = self.core_log[-1]
        for node in sorted(filter(self.isNodeConnected, others), key=hash):
            request = {"last_log_index": last.index, "last_log_term": last.term}
            self.core_outbox.send(node, {"type": "request_pre_vote", "term": term, **request})

    def _is_current(self, node: Any, message: Message) -> bool:
        kind, term = message["type"], self.raftCurrentTerm
        if kind == "request_pre_vote":
            self._answer_pre_vote(node, message)
            return False
        if kind == "pre_vote":
            self._take_pre_vote(node, message)
            return False
        if kind == "request_vote" and self._must_refuse(node, message):
            return False
        if kind == "append_entries":
            if message["term"] >= term:
                self.core_pre_vote.heard_leader(pysyncobj.syncobj.monotonicTime())
            else:
                self._answer(node)  # The Outbox adds the later term.
        if kind == "next_node_idx" and message["term"] > term:
            self._learn_term(node, message["term"])
        return super()._is_current(node, message)

    def _answer_pre_vote(self, node: Any, message: Message) -> None:
        self.core_voting.heard_raft_from(NodeId(int(node.id)))
        last = self.core_log[-1]
        holds_all = (message["last_log_term"], message["last_log_index"]) >= (last.term, last.index)
        granted = (
            self.votes()
            and holds_all
            and message["term"] > self.raftCurrentTerm
            and not self._hears_another_leader(node)
        )
        answer = {"type": "pre_vote", "asked": message["term"], "granted": granted}
        self.core_outbox.send(node, answer)

    def _take_pre_vote(self, node: Any, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._learn_term(node, message["term"])
        elif message["granted"] and self._counts(node):
            self.core_pre_vote.granted(NodeId(int(node.id)), message["asked"])

    def _must_refuse(self, node: Any, message: Message) -> bool:
        """Whether a vote is refused, with no term raised, because this node hears a leader."""
        return (
            self.core_pre_vote.is_known_to(NodeId(int(node.id)))
            and not message.get("takes_over", False)
            and self._hears_another_leader(node)
        )

    def _hears_another_leader(self, node: Any) -> bool:
        if self._isLeader():
            return True
        hears = self.core_pre_vote.hears_leader(pysyncobj.syncobj.monotonicTime())
        return hears and self._getLeader() != node

    def _learn_term(self, node: Any, term: int) -> None:
        """Enter another member's later term, without a leader. Also that of one that does not vote
        any more: it could not follow otherwise. It has won a pre-vote in its time."""
        self._enter(term)
