"""Everything that can happen next: the steps between the states of a small cluster.

A state is a tuple of numbers: metadata, nodes and messages are interned. Every step may be taken
whenever it is possible, in any order. A follower's fetch is answered in one step, except that a
bounded number of requests and answers are *late*: they arrive at any time after, or never. Metadata
reaches a bounded number of *stale* nodes at any time, one change after the other or as a snapshot,
and the others at once; so do the outcomes of proposals, which are applied at any time, or never. A
proposal whose stream epoch has passed is dropped. Whoever may be elected is, in one state or
another: which one it really is depends on the other streams there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.replication.core.pending_isr import Outcome
from jetstream_server.replication.core.unclean_election import ReplicaReport
from tests.model.canonical import Canonical
from tests.model.invariants import common_length, violation_of_nodes
from tests.model.metadata import Metadata
from tests.model.nodes import Facts, Nodes
from tests.model.process import NODES, Proposal
from tests.model.state import (
    CRASHES,
    HAND_OVERS,
    LAGS,
    LATE_MESSAGES,
    PARTITIONS,
    RECORDS,
    UNKNOWN_OUTCOMES,
    Bounds,
    State,
    Violation,
    spent,
    with_item,
    with_node,
)

NOTHING = -1
OUTCOMES = {"": Outcome.ACCEPTED, "invalid_request": Outcome.INELIGIBLE}

Step = tuple[str, State]


class World:
    """`first`, and `steps` from any state. Raises Violation.

    renames: states that differ in names only are one (`tests.model.canonical`).
    """

    def __init__(self, bounds: Bounds, *, renames: bool = True) -> None:
        self.bounds = bounds
        self.metadata = Metadata(min_insync_replicas=bounds.min_insync_replicas, flush=bounds.flush)
        self.nodes = Nodes(self.metadata)
        self.renamed = Canonical(self.metadata, self.nodes)
        self.renames = renames

    def first(self) -> State:
        """Every node has started, and acts on all metadata."""
        bounds = self.bounds
        first = self.metadata.first
        return State(
            history=(first,),
            views=(0,) * NODES,
            nodes=tuple(self.nodes.running(node_id, first) for node_id in range(NODES)),
            late=(),
            proposals=(),
            results=(),
            cut=NO_NODE,
            left=(
                bounds.records, bounds.crashes, bounds.partitions, bounds.hand_overs,
                bounds.unknown_outcomes, bounds.late_messages, bounds.lags,
            ),
            was_lossy=False,
            committed=(),
        )  # fmt: skip

    def steps(self, state: State) -> Iterator[Step]:
        """The possible next steps. A node that must not act on old metadata applies new metadata at
        once."""
        for label, after in self._steps(state):
            if len(after.history) == 1:
                yield label, after
                continue
            for prompt in self._prompt(after):
                yield label, prompt

    def _prompt(self, state: State) -> Iterator[State]:
        last = len(state.history) - 1
        behind = [
            node_id
            for node_id in range(NODES)
            if state.views[node_id] < last
            and node_id != state.cut
            and self.nodes.facts(state.nodes[node_id]).runs
        ]
        for stale in combinations(behind, min(self.bounds.stale, len(behind))):
            settled = state
            for node_id in behind:
                while node_id not in stale and settled.views[node_id] < last:
                    settled = self._learn(settled, node_id, 1)
            yield settled

    def _steps(self, state: State) -> Iterator[Step]:
        facts = [self.nodes.facts(node) for node in state.nodes]
        for node_id in range(NODES):
            if facts[node_id].runs:
                yield from self._steps_of(state, node_id, facts[node_id])
            elif node_id != state.cut:
                yield from self._starts(state, node_id)
        if state.late:
            yield from self._late_deliveries(state, facts)
        yield from self._metadata_steps(state, facts)
        yield from self._faults(state, facts)

    # One node.

    def _steps_of(self, state: State, node_id: int, facts: Facts) -> Iterator[Step]:
        behind = len(state.history) - 1 - state.views[node_id]
        if behind and node_id != state.cut:
            yield f"node {node_id} learns", self._learn(state, node_id, 1)
            if behind > 1 and self.bounds.snapshots:
                yield f"node {node_id} learns all", self._learn(state, node_id, behind)
        if facts.led_epoch >= 0:
            if state.left[RECORDS]:
                number = self.bounds.records - state.left[RECORDS]
                published = spent(state, RECORDS)
                yield f"node {node_id} appends", self._do(published, node_id, "publish", number)
            yield f"node {node_id} waits", self._do(state, node_id, "wait")
            if state.left[LAGS]:
                impatient = self._do(spent(state, LAGS), node_id, "lose_patience")
                yield f"node {node_id} loses patience", impatient
        if self.bounds.flush == "group" and facts.flushed_offset < len(facts.entries):
            yield f"node {node_id} flushes", self._do(state, node_id, "flush")
        if facts.leader >= 0 and state.cut not in (node_id, facts.leader):
            yield from self._fetches(state, node_id, facts)

    def _starts(self, state: State, node_id: int) -> Iterator[Step]:
        """It registers, and begins with the metadata that says so."""
        node = state.nodes[node_id]
        run = self.nodes.run_of(node) + 1
        known = self.metadata.nodes(state.history[-1])[node_id]
        trust = self.nodes.trust(node, known.session)
        for view in self.metadata.registered(state.history[-1], node_id, run, trust):
            begun = self._follow(state, view)
            begun = begun._replace(views=with_item(begun.views, node_id, len(begun.history) - 1))
            incarnation = self.metadata.nodes(view)[node_id].incarnation
            yield f"node {node_id} starts", self._do(begun, node_id, "start", incarnation, view)

    def _learn(self, state: State, node_id: int, count: int) -> State:
        at = state.views[node_id]
        history, views, *rest = state
        # All at once is a snapshot: what lay between is never seen.
        known = State(history, with_item(views, node_id, at + count), *rest)
        return self._do(known, node_id, "learn", history[at + count])

    def _do(self, state: State, node_id: int, name: str, *inputs: object) -> State:
        """Let a node take a step, and look at what it did."""
        before = state.nodes[node_id]
        node, output = self.nodes.step(before, name, *inputs)
        if node != before:
            state = self._check_role(with_node(state, node_id, node), node_id, before)
        if isinstance(output, Proposal):
            state = self._submit(state, output)
        return self._hear(state, node_id) if state.results else state

    def _hear(self, state: State, node_id: int) -> State:
        """A node that has applied all metadata has heard of its proposals, too.

        What it does not wait for any more says nothing to it.
        """
        awaited = self.nodes.facts(state.nodes[node_id]).proposal
        for result in state.results:
            if result[0] != node_id:
                continue
            rest = state._replace(results=tuple(r for r in state.results if r != result))
            if result[1] != awaited:
                return self._hear(rest, node_id)
            if node_id != state.cut and state.views[node_id] == len(state.history) - 1:
                return self._do(rest, node_id, "settle", result[1], Outcome(result[2]))
        return state

    def _submit(self, state: State, proposal: Proposal) -> State:
        waiting = self.nodes.messages.of(proposal), True
        if waiting in state.proposals:
            return state
        return state._replace(proposals=tuple(sorted((*state.proposals, waiting))))

    # Messages.

    def _fetches(self, state: State, node_id: int, facts: Facts) -> Iterator[Step]:
        """A follower asks where it stands; its request or the answer may be late."""
        leader, request = facts.leader, facts.position
        if state.left[LATE_MESSAGES]:
            late = self._delay(state, "fetch", leader, request)
            yield f"node {node_id} asks {leader}, which hears it late", late
        if not self.nodes.facts(state.nodes[leader]).runs:
            return
        asked, answer = self._ask(state, leader, request)
        if answer == NOTHING:
            return
        text = f"node {node_id} asks {leader}"
        yield f"{text} and is answered", self._do(asked, node_id, "accept", answer)
        if state.left[LATE_MESSAGES]:
            yield f"{text} and is answered late", self._delay(asked, "accept", node_id, answer)

    def _ask(self, state: State, leader: int, request: int) -> tuple[State, int]:
        """What the leader answers; NOTHING: it refuses."""
        before = state.nodes[leader]
        node, (answer, proposal) = self.nodes.step(before, "fetch", request)
        if node != before:
            state = self._check_role(with_node(state, leader, node), leader, before)
        if proposal is not None:
            state = self._submit(state, proposal)
        return state, answer

    @staticmethod
    def _delay(state: State, name: str, node_id: int, message: int) -> State:
        late = tuple(sorted((*state.late, (name, node_id, message))))
        return spent(state, LATE_MESSAGES)._replace(late=late)

    def _late_deliveries(self, state: State, facts: list[Facts]) -> Iterator[Step]:
        """An answer to a late request is not waited for any more."""
        for message in state.late:
            name, node_id, number = message
            if not facts[node_id].runs or node_id == state.cut:
                continue
            rest = list(state.late)
            rest.remove(message)
            arrived = state._replace(late=tuple(rest))
            if name == "fetch":
                yield f"node {node_id} hears a late request", self._ask(arrived, node_id, number)[0]
            else:
                answered = self._do(arrived, node_id, name, number)
                yield f"node {node_id} hears a late answer", answered

    # The metadata group.

    def _metadata_steps(self, state: State, facts: list[Facts]) -> Iterator[Step]:
        last = state.history[-1]
        stream = self.metadata.stream(last)
        for waiting in state.proposals:
            yield "an ISR change is applied", self._commit(state, waiting)
            if waiting[1] and state.left[UNKNOWN_OUTCOMES]:
                yield "an ISR change is given up", self._give_up(state, waiting)
        for node_id, node in enumerate(self.metadata.nodes(last)):
            unheard = node_id == state.cut or not facts[node_id].runs
            if not node.fenced and unheard:
                for view in self.metadata.fenced(last, node_id):
                    yield f"node {node_id} is fenced", self._follow(state, view)
            if node.fenced and not unheard and facts[node_id].incarnation == node.incarnation:
                for view in self.metadata.unfenced(last, node_id):
                    yield f"node {node_id} is unfenced", self._follow(state, view)
        if state.left[HAND_OVERS]:
            for member in stream.isr:
                if stream.leader not in (NO_NODE, member):
                    view = self.metadata.handed_over(last, member)
                    yield (
                        f"handed over to {member}",
                        self._follow(spent(state, HAND_OVERS), view),
                    )
        if stream.leader == NO_NODE and not stream.isr and not stream.elr:
            for view in self.metadata.elected_uncleanly(last, self._reports(state, facts)):
                yield "elected uncleanly", self._follow(state, view)

    def _reports(self, state: State, facts: list[Facts]) -> dict[NodeId, ReplicaReport]:
        """What the nodes that are heard tell of their logs."""
        return {
            NodeId(node_id): ReplicaReport(
                fact.incarnation,
                fact.entries[-1].leader_epoch if fact.entries else -1,
                len(fact.entries),
                damaged=False,
            )
            for node_id, fact in enumerate(facts)
            if fact.runs and node_id != state.cut
        }

    def _commit(self, state: State, waiting: tuple[int, bool]) -> State:
        number, is_awaited = waiting
        proposal: Proposal = self.nodes.messages[number]
        rest = tuple(other for other in state.proposals if other != waiting)
        is_known = self.bounds.unknown_outcomes > 0
        view, code = self.metadata.isr_changed(state.history[-1], proposal, is_known)
        state = self._follow(state._replace(proposals=rest), view)
        if not is_awaited:
            return state
        return self._tell(state, number, OUTCOMES.get(code, Outcome.STALE))

    def _give_up(self, state: State, waiting: tuple[int, bool]) -> State:
        """Its outcome is not known; it may still be applied later."""
        number, _ = waiting
        rest = {other for other in state.proposals if other != waiting}
        state = spent(state, UNKNOWN_OUTCOMES)._replace(
            proposals=tuple(sorted({*rest, (number, False)}))
        )
        return self._tell(state, number, Outcome.UNKNOWN)

    def _tell(self, state: State, number: int, outcome: Outcome) -> State:
        node_id = self.nodes.messages[number].node_id
        told = node_id, number, outcome.value
        state = state._replace(results=tuple(sorted({*state.results, told})))
        return self._hear(state, node_id)

    def _follow(self, state: State, view: int) -> State:
        """The metadata group has come to another state."""
        before = state.history[-1]
        if view == before:
            return state
        state = self._forget_lost(state, before, view)
        stream_epoch = self.metadata.stream(view).stream_epoch
        messages = self.nodes.messages
        standing = tuple(
            proposal
            for proposal in state.proposals
            if messages[proposal[0]].change.stream_epoch == stream_epoch
        )
        return state._replace(history=(*state.history, view), proposals=standing)

    def _forget_lost(self, state: State, before: int, after: int) -> State:
        """A lossy election may lose what its winner lacks: nobody eligible was left."""
        was, now = self.metadata.stream(before), self.metadata.stream(after)
        if now.lossy_elections == was.lossy_elections:
            return state
        if was.isr or was.elr:
            raise Violation("a lossy election although somebody was eligible")
        kept = common_length(state.committed, self.nodes.facts(state.nodes[now.leader]).entries)
        return state._replace(was_lossy=True, committed=state.committed[:kept])

    # Faults.

    def _faults(self, state: State, facts: list[Facts]) -> Iterator[Step]:
        for node_id, fact in enumerate(facts):
            if state.left[CRASHES] and fact.runs:
                length = len(fact.entries)
                dying = spent(state, CRASHES)
                yield f"node {node_id} dies", self._crash(dying, node_id, length, False)
                for kept in range(fact.flushed_offset, length + 1):
                    text = f"node {node_id} loses power, keeps {kept}"
                    yield text, self._crash(dying, node_id, kept, True)
            if state.left[PARTITIONS] and state.cut == NO_NODE:
                yield f"node {node_id} is cut off", spent(state, PARTITIONS)._replace(cut=node_id)
        if state.cut != NO_NODE:
            yield f"node {state.cut} is back", state._replace(cut=NO_NODE)

    def _crash(self, state: State, node_id: int, kept: int, power_lost: bool) -> State:
        node, _ = self.nodes.step(state.nodes[node_id], "crash", kept, power_lost)
        results = tuple(result for result in state.results if result[0] != node_id)
        return state._replace(nodes=with_item(state.nodes, node_id, node), results=results)

    # What has to hold.

    def _check_role(self, state: State, node_id: int, was: int) -> State:
        """A leader's high watermark never falls, and says what is committed.

        What a lossy election has lost others still take for committed: who follows or leads an
        older epoch and has not heard (that leader's session has ended: it tells nobody), and a
        follower until its new leader has it cut that off. They are not looked at.
        """
        before, facts = self.nodes.facts(was), self.nodes.facts(state.nodes[node_id])
        epoch, high_watermark = facts.led_epoch, facts.high_watermark
        if before.led_epoch == epoch >= 0 and high_watermark < before.high_watermark:
            raise Violation(f"the high watermark of epoch {epoch} fell")
        if state.was_lossy:
            view = state.history[state.views[node_id]]
            known, last = self.metadata.stream(view), self.metadata.stream(state.history[-1])
            has_risen = high_watermark > before.high_watermark
            if known.leader_epoch < last.leader_epoch or (epoch < 0 and not has_risen):
                return state
        if epoch >= 0 and high_watermark > len(state.committed):
            state = state._replace(
                committed=state.committed + facts.entries[len(state.committed) : high_watermark]
            )
        if facts.entries[:high_watermark] != state.committed[:high_watermark]:
            raise Violation(f"node {node_id} takes for committed what is not")
        return state

    def check(self, state: State) -> None:
        """Committed records are where they have to be, and logs match. Raises Violation."""
        facts = tuple(self.nodes.facts(node) for node in state.nodes)
        stream = self.metadata.stream(state.history[-1])
        problem = violation_of_nodes(stream, facts, state.committed)
        if problem:
            raise Violation(problem)

    def canonical(self, state: State) -> State:
        """The state that stands for this one."""
        state = self._without_passed(state)
        return self.renamed(state) if self.renames else state

    def _without_passed(self, state: State) -> State:
        """Without the metadata that every running node has passed."""
        history, views, nodes, *rest = state
        last = len(history) - 1
        if not last:
            return state
        facts = self.nodes.facts
        views = tuple([v if facts(nodes[at]).runs else last for at, v in enumerate(views)])
        oldest = min(views)
        return State(history[oldest:], tuple([view - oldest for view in views]), nodes, *rest)
