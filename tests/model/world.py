"""Everything that can happen next: the states of a small cluster, and the steps between them.

A state is a tuple of numbers: metadata, nodes and messages are interned. Every step may be taken
whenever it is possible, in any order. A follower's fetch is answered in one step, except that a
bounded number of requests and answers are *late*: they arrive at any time after, or never. Metadata
reaches a bounded number of *stale* nodes at any time, one change after the other or as a snapshot,
and the others at once; so do the outcomes of proposals, which are applied at any time, or never. A
proposal whose stream epoch has passed is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.isr import Outcome
from jetstream_server.replication.unclean import ReplicaReport, choose_unclean
from tests.model.log import Entry
from tests.model.metadata import NODES, Metadata, registration
from tests.model.nodes import Facts, Nodes, Proposal

NOTHING = -1
OUTCOMES = {"": Outcome.ACCEPTED, "invalid_request": Outcome.INELIGIBLE}


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen."""

    records: int = 2
    crashes: int = 1
    partitions: int = 1
    hand_overs: int = 0
    unknown_outcomes: int = 0
    late_messages: int = 1
    lags: int = 1
    stale: int = 1
    """Nodes that may act on old metadata at a time, beside the one that is cut off."""
    snapshots: bool = False
    min_insync_replicas: int = 2
    flush: str = "none"


class State(NamedTuple):
    """`history` are the metadata states from the oldest that a node acts on; `views` say which each
    node acts on, by its place there."""

    history: tuple[int, ...]
    views: tuple[int, ...]
    nodes: tuple[int, ...]
    late: tuple[tuple[str, int, int], ...]
    """Messages under way: "fetch" or "accept", for which node, and their numbers."""
    proposals: tuple[tuple[int, bool], ...]
    """Their numbers, and whether their proposer still waits for the outcome."""
    results: tuple[tuple[int, int, int], ...]
    """Node, incarnation, and the Outcome's value, still to be heard of."""
    cut: int
    """The node that is cut off."""
    left: tuple[int, ...]
    """Of records, crashes, partitions, hand-overs, unknown outcomes, late messages, lags: how many
    more there may be."""
    committed: tuple[Entry, ...]


Step = tuple[str, State]


class World:
    """`first`, and `steps` from any state. Raises Violation."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.metadata = Metadata(min_insync_replicas=bounds.min_insync_replicas, flush=bounds.flush)
        self.nodes = Nodes(self.metadata)

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
            committed=(),
        )  # fmt: skip

    def steps(self, state: State) -> Iterator[Step]:
        """What can happen next. Whoever may not act on old metadata applies it at once."""
        for label, after in self._steps(state):
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
                yield f"node {node_id} starts", self._start(state, node_id)
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
            if state.left[0]:
                number = self.bounds.records - state.left[0]
                published = self._spend(state, 0)
                yield f"node {node_id} appends", self._do(published, node_id, "publish", number)
            yield f"node {node_id} waits", self._do(state, node_id, "wait")
            if state.left[6]:
                impatient = self._do(self._spend(state, 6), node_id, "lose_patience")
                yield f"node {node_id} loses patience", impatient
        if self.bounds.flush == "group" and facts.flushed_offset < len(facts.entries):
            yield f"node {node_id} flushes", self._do(state, node_id, "flush")
        if facts.leader >= 0 and state.cut not in (node_id, facts.leader):
            yield from self._fetches(state, node_id, facts)

    def _start(self, state: State, node_id: int) -> State:
        """Register, and begin with the metadata that says so."""
        node = state.nodes[node_id]
        known = self.metadata.nodes(state.history[-1])[NodeId(node_id)]
        run = self.nodes.run_of(node)
        trust = self.nodes.trust(node, known.session)
        command = registration(
            node_id,
            run + 1,
            known.session,
            {"trusted": trust.trusted, "distrusted": list(trust.distrusted)},
        )
        state, result = self._apply(state, command)
        views = _with(state.views, node_id, len(state.history) - 1)
        state = state._replace(views=views)
        return self._do(state, node_id, "start", result["incarnation"], state.history[-1])

    def _learn(self, state: State, node_id: int, count: int) -> State:
        at = state.views[node_id]
        views = state.history[at + 1 : at + 1 + count]
        state = state._replace(views=_with(state.views, node_id, at + count))
        # All at once is a snapshot: what lay between is never seen.
        return self._do(state, node_id, "learn", *(views if count == 1 else views[-1:]))

    def _do(self, state: State, node_id: int, name: str, *inputs: object) -> State:
        """Let a node take a step, and look at what it did."""
        before = self.nodes.facts(state.nodes[node_id])
        node, output = self.nodes.step(state.nodes[node_id], name, *inputs)
        state = state._replace(nodes=_with(state.nodes, node_id, node))
        if isinstance(output, Proposal):
            state = self._submit(state, output)
        state = self._check_role(state, node_id, before)
        return self._hear(state, node_id)

    def _hear(self, state: State, node_id: int) -> State:
        """A node that has applied all metadata has heard of its proposals, too."""
        heard = [result for result in state.results if result[0] == node_id]
        if not heard or node_id == state.cut or state.views[node_id] < len(state.history) - 1:
            return state
        rest = tuple(result for result in state.results if result != heard[0])
        state = state._replace(results=rest)
        facts = self.nodes.facts(state.nodes[node_id])
        if facts.runs and facts.incarnation == heard[0][1]:
            return self._do(state, node_id, "settle", Outcome(heard[0][2]))
        return self._hear(state, node_id)

    def _submit(self, state: State, proposal: Proposal) -> State:
        waiting = self.nodes.number(proposal), True
        if waiting in state.proposals:
            return state
        return state._replace(proposals=tuple(sorted((*state.proposals, waiting))))

    # Messages.

    def _fetches(self, state: State, node_id: int, facts: Facts) -> Iterator[Step]:
        """A follower asks where it stands; its request or the answer may be late."""
        leader, request = facts.leader, facts.position
        if state.left[5]:
            late = self._delay(state, "fetch", leader, request)
            yield f"node {node_id} asks {leader}, which hears it late", late
        if not self.nodes.facts(state.nodes[leader]).runs:
            return
        asked, answer = self._ask(state, leader, request)
        if answer == NOTHING:
            return
        text = f"node {node_id} asks {leader}"
        yield f"{text} and is answered", self._do(asked, node_id, "accept", answer)
        if state.left[5]:
            yield f"{text} and is answered late", self._delay(asked, "accept", node_id, answer)

    def _ask(self, state: State, leader: int, request: int) -> tuple[State, int]:
        """What the leader answers; NOTHING: it refuses."""
        before = self.nodes.facts(state.nodes[leader])
        node, (answer, proposal) = self.nodes.step(state.nodes[leader], "fetch", request)
        state = state._replace(nodes=_with(state.nodes, leader, node))
        if proposal is not None:
            state = self._submit(state, proposal)
        return self._check_role(state, leader, before), answer

    def _delay(self, state: State, name: str, node_id: int, message: int) -> State:
        late = tuple(sorted((*state.late, (name, node_id, message))))
        return self._spend(state, 5)._replace(late=late)

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
        stream = self.metadata.stream(state.history[-1])
        for waiting in state.proposals:
            yield "an ISR change is applied", self._commit(state, waiting)
            if waiting[1] and state.left[4]:
                yield "an ISR change is given up", self._give_up(state, waiting)
        for node_id, node in sorted(self.metadata.nodes(state.history[-1]).items()):
            command = {"node_id": node_id, "node_incarnation": node.incarnation}
            unheard = node_id == state.cut or not facts[node_id].runs
            if not node.fenced and unheard:
                fenced, _ = self._apply(state, {"op": "fence_node", **command})
                yield f"node {node_id} is fenced", fenced
            if node.fenced and not unheard and facts[node_id].incarnation == node.incarnation:
                alive, _ = self._apply(state, {"op": "unfence_node", **command})
                yield f"node {node_id} is unfenced", alive
        if state.left[3]:
            for member in stream.isr:
                if stream.leader not in (NO_NODE, member):
                    command = {"op": "transfer_leader", "stream_id": stream.id, "leader": member}
                    yield f"handed over to {member}", self._apply(self._spend(state, 3), command)[0]
        election = self._unclean(state, stream, facts)
        if election is not None:
            yield "elected uncleanly", election

    def _unclean(self, state: State, stream: StreamMetadata, facts: list[Facts]) -> State | None:
        reports = {
            NodeId(node_id): ReplicaReport(
                fact.incarnation,
                fact.entries[-1].leader_epoch if fact.entries else -1,
                len(fact.entries),
                damaged=False,
            )
            for node_id, fact in enumerate(facts)
            if fact.runs and node_id != state.cut
        }
        command = choose_unclean(stream, self.metadata.nodes(state.history[-1]), reports)
        return None if command is None else self._apply(state, command)[0]

    def _commit(self, state: State, waiting: tuple[int, bool]) -> State:
        proposal: Proposal = self.nodes.messages[waiting[0]]
        rest = tuple(other for other in state.proposals if other != waiting)
        command = proposal.change.command()
        if self.bounds.unknown_outcomes:
            command["id"] = [proposal.incarnation, proposal.sequence]
        state, result = self._apply(state._replace(proposals=rest), command)
        if not waiting[1]:
            return state
        code = result["error"]["code"] if "error" in result else ""
        outcome = OUTCOMES.get(code, Outcome.STALE)
        told = proposal.node_id, proposal.incarnation, outcome.value
        state = state._replace(results=tuple(sorted({*state.results, told})))
        return self._hear(state, proposal.node_id)

    def _give_up(self, state: State, waiting: tuple[int, bool]) -> State:
        """Its outcome is not known; it may be applied later all the same."""
        proposal: Proposal = self.nodes.messages[waiting[0]]
        rest = {other for other in state.proposals if other != waiting}
        told = proposal.node_id, proposal.incarnation, Outcome.UNKNOWN.value
        state = self._spend(state, 4)._replace(
            proposals=tuple(sorted({*rest, (waiting[0], False)})),
            results=tuple(sorted({*state.results, told})),
        )
        return self._hear(state, proposal.node_id)

    def _apply(self, state: State, command: dict[str, object]) -> tuple[State, dict[str, int]]:
        before = state.history[-1]
        after, result = self.metadata.apply(before, command)
        if after != before:
            state = self._forget_lost(state, before, after)
            stream_epoch = self.metadata.stream(after).stream_epoch
            standing = tuple(
                proposal
                for proposal in state.proposals
                if self.nodes.messages[proposal[0]].change.stream_epoch == stream_epoch
            )
            state = state._replace(history=(*state.history, after), proposals=standing)
        return state, result

    def _forget_lost(self, state: State, before: int, after: int) -> State:
        """A lossy election may lose what its winner lacks: nobody eligible was left."""
        was, now = self.metadata.stream(before), self.metadata.stream(after)
        if now.lossy_elections == was.lossy_elections:
            return state
        if was.isr or was.elr:
            raise Violation("a lossy election although somebody was eligible")
        kept = _common(state.committed, self.nodes.facts(state.nodes[now.leader]).entries)
        return state._replace(committed=state.committed[:kept])

    # Faults.

    def _faults(self, state: State, facts: list[Facts]) -> Iterator[Step]:
        for node_id, fact in enumerate(facts):
            if state.left[1] and fact.runs:
                length = len(fact.entries)
                spent = self._spend(state, 1)
                yield f"node {node_id} dies", self._crash(spent, node_id, length, False)
                for kept in range(fact.flushed_offset, length + 1):
                    text = f"node {node_id} loses power, keeps {kept}"
                    yield text, self._crash(spent, node_id, kept, True)
            if state.left[2] and state.cut == NO_NODE:
                yield f"node {node_id} is cut off", self._spend(state, 2)._replace(cut=node_id)
        if state.cut != NO_NODE:
            yield f"node {state.cut} is back", state._replace(cut=NO_NODE)

    def _crash(self, state: State, node_id: int, kept: int, power_lost: bool) -> State:
        node, _ = self.nodes.step(state.nodes[node_id], "crash", kept, power_lost)
        results = tuple(result for result in state.results if result[0] != node_id)
        return state._replace(nodes=_with(state.nodes, node_id, node), results=results)

    @staticmethod
    def _spend(state: State, what: int) -> State:
        return state._replace(left=_with(state.left, what, state.left[what] - 1))

    # What has to hold.

    def _check_role(self, state: State, node_id: int, before: Facts) -> State:
        """A leader's high watermark never falls, and says what is committed."""
        facts = self.nodes.facts(state.nodes[node_id])
        epoch, high_watermark = facts.led_epoch, facts.high_watermark
        if epoch >= 0:
            if before.led_epoch == epoch and high_watermark < before.high_watermark:
                raise Violation(f"the high watermark of epoch {epoch} fell")
            if high_watermark > len(state.committed):
                state = state._replace(
                    committed=state.committed + facts.entries[len(state.committed) : high_watermark]
                )
        if facts.entries[:high_watermark] != state.committed[:high_watermark]:
            raise Violation(f"node {node_id} takes for committed what is not")
        return state

    def check(self, state: State) -> None:
        """Committed records are where they have to be, and logs match. Raises Violation."""
        facts = [self.nodes.facts(node) for node in state.nodes]
        stream = self.metadata.stream(state.history[-1])
        length = len(state.committed)
        for node_id in (*stream.isr, *stream.elr):
            fact = facts[node_id]
            if not fact.may_have_lost and fact.entries[:length] != state.committed:
                raise Violation(
                    f"node {node_id} is in ISR {stream.isr} or ELR {stream.elr} with "
                    f"{fact.entries}; committed: {state.committed}"
                )
        for a in range(NODES):
            for b in range(a):
                _check_match(facts[a].entries, facts[b].entries)
                if facts[a].led_epoch == facts[b].led_epoch >= 0:
                    raise Violation(f"nodes {a} and {b} lead epoch {facts[a].led_epoch}")

    def canonical(self, state: State) -> State:
        """Without the metadata that every running node has passed."""
        last = len(state.history) - 1
        views = tuple(
            view if self.nodes.facts(node).runs else last
            for node, view in zip(state.nodes, state.views, strict=True)
        )
        if views != state.views:
            state = state._replace(views=views)
        oldest = min(state.views)
        if not oldest:
            return state
        return state._replace(
            history=state.history[oldest:], views=tuple(view - oldest for view in state.views)
        )


def _check_match(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> None:
    """The same epoch at an offset: the same records up to there."""
    for offset in range(min(len(one), len(other)) - 1, -1, -1):
        if one[offset].leader_epoch == other[offset].leader_epoch:
            if one[: offset + 1] != other[: offset + 1]:
                raise Violation(f"logs {one} and {other} do not match")
            return


def _common(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
