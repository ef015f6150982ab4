"""One state for all that differ in names only.

Nodes are ordered by what they are; among those that are alike in all that is looked at, every order
is tried, and the least of the states that come of it is taken. Everything else is numbered in its
order (`tests.model.naming`), records by the places they are at.
"""

from __future__ import annotations

from itertools import chain, groupby, permutations, product
from typing import Any

from tests.model.metadata import Metadata
from tests.model.naming import (
    COUNTER,
    EPOCH,
    FIRST,
    IDENTITY,
    RECORD,
    SEQUENCE,
    UNREAD,
    Name,
    Naming,
)
from tests.model.nodes import Nodes
from tests.model.process import NODES
from tests.model.state import State
from tests.model.values import Interned


class Canonical:
    """Callable: the state that stands for all of its kind."""

    def __init__(self, metadata: Metadata, nodes: Nodes) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._kinds = Interned()
        self._shapes: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._names_known: dict[Any, int] = {}
        self._orders_known: dict[Any, int] = {}
        self._names = Interned()
        self._orders = Interned()
        self._namings: dict[tuple[int, int], tuple[Naming, ...]] = {}

    def __call__(self, state: State) -> State:
        namings = self._namings_of(state)
        if not namings:
            return state
        if len(namings) == 1:
            return self.under(state, namings[0])
        return min([self.under(state, naming) for naming in namings])

    # What is the same in many states is looked at once: how things are called, and all by which
    # nodes are ordered.

    def _namings_of(self, state: State) -> tuple[Naming, ...]:
        """The ways to rename it; none: everything keeps its name."""
        key = self._names_of(state), self._orders_of(state)
        found = self._namings.get(key)
        if found is None:
            names, orders = dict(self._names[key[0]]), self._orders[key[1]]
            is_same = all(name[-1] == number for name, number in names.items())
            same = is_same and orders == (IDENTITY,)
            found = () if same else tuple(Naming(order, names) for order in orders)
            self._namings[key] = found
        return found

    def _names_of(self, state: State) -> int:
        history, _, (a, b, c), late, proposals, results, _, _, _, committed = state
        look, view = self._nodes.states.look, self._metadata.states.look
        messages: tuple[int, ...] = ()
        if late or proposals or results:
            of_message = self._nodes.messages.look
            messages = (
                *[of_message(message[2]) for message in late],
                *[of_message(proposal[0]) for proposal in proposals],
                *[of_message(result[1]) for result in results],
            )
        key = look(a), look(b), look(c), tuple(map(view, history)), committed, messages
        found = self._names_known.get(key)
        if found is None:
            names = tuple(sorted(self.names(state).items()))
            found = self._names_known[key] = self._names.number(names, names)
        return found

    def _orders_of(self, state: State) -> int:
        a, b, c = state.nodes
        shape = self._shape
        place = self._place(state.history[-1])
        key = place, state.views, state.cut, shape(a), shape(b), shape(c)
        found = self._orders_known.get(key)
        if found is None:
            orders = self._find_orders(*key)
            found = self._orders_known[key] = self._orders.number(orders, orders)
        return found

    def _place(self, view: int) -> int:
        """What the metadata says of each node."""
        found = self._places.get(view)
        if found is None:
            stream = self._metadata.stream(view)
            place = tuple(
                (
                    node.node_id == stream.leader, node.node_id in stream.isr,
                    node.node_id in stream.elr, node.node_id in stream.last_known, node.fenced,
                )
                for node in self._metadata.nodes(view)
            )  # fmt: skip
            found = self._places[view] = self._kinds.number(place, place)
        return found

    def _shape(self, node: int) -> int:
        found = self._shapes.get(node)
        if found is None:
            facts = self._nodes.facts(node)
            shape = (
                facts.runs, len(facts.entries), facts.flushed_offset, facts.high_watermark,
                facts.led_epoch >= 0, facts.leader >= 0, facts.may_have_lost,
            )  # fmt: skip
            found = self._shapes[node] = self._kinds.number(shape, shape)
        return found

    def names(self, state: State) -> dict[Name, int]:
        """The new number of every name."""
        nodes, messages = self._nodes.states, self._nodes.messages
        used: set[Name] = {(EPOCH, entry.leader_epoch) for entry in state.committed}
        placed = {
            (entry.leader_epoch, at, entry.number) for at, entry in enumerate(state.committed)
        }
        seen = [nodes.seen[nodes.look(node)] for node in state.nodes]
        for number in (
            *(late[2] for late in state.late), *(proposal[0] for proposal in state.proposals),
            *(result[1] for result in state.results),
        ):  # fmt: skip
            seen.append(messages.seen[messages.look(number)])
        for names_there, placed_there in seen:
            used.update(names_there)
            placed.update(placed_there)
        metadata = self._metadata.states
        for view in state.history:
            for name in metadata.seen[metadata.look(view)][0]:
                # A result in the metadata is of no use once nobody has the command any more.
                is_dead = name[0] == SEQUENCE and name not in used
                used.add((UNREAD, 1) if is_dead else name)
        return _numbered(used, placed)

    def _find_orders(
        self, place: int, views: tuple[int, ...], cut: int, *shapes: int
    ) -> tuple[tuple[int, ...], ...]:
        """New ids by the old ones: those in which the nodes are ordered by what they are."""
        places = self._kinds[place]
        kinds = [(places[at], views[at], at == cut, self._kinds[shapes[at]]) for at in range(NODES)]
        ordered = sorted(range(NODES), key=kinds.__getitem__, reverse=True)
        alike = [list(group) for _, group in groupby(ordered, key=kinds.__getitem__)]
        orders = []
        for order in product(*map(permutations, alike)):
            olds = list(chain.from_iterable(order))
            orders.append(tuple(olds.index(node_id) for node_id in range(NODES)))
        return tuple(orders)

    def under(self, state: State, naming: Naming) -> State:
        """The same state under those names."""
        history, views, nodes, late, proposals, results, cut, left, was_lossy, committed = state
        order, (a, b, c) = naming.nodes, naming.olds
        view, node = self._metadata.states.renamed, self._nodes.states.renamed
        message = self._nodes.messages.renamed
        if late:
            late = tuple(sorted([(x, order[n], message(m, naming)) for x, n, m in late]))
        if proposals:
            proposals = tuple(sorted([(message(m, naming), waits) for m, waits in proposals]))
        if results:
            results = tuple(sorted([(order[n], message(m, naming), x) for n, m, x in results]))
        return State(
            tuple([view(number, naming) for number in history]),
            (views[a], views[b], views[c]),
            (node(nodes[a], naming), node(nodes[b], naming), node(nodes[c], naming)),
            late,
            proposals,
            results,
            cut if cut < 0 else order[cut],
            left,
            was_lossy,
            naming.entries(committed) if committed else (),
        )


def _numbered(used: set[Name], placed: set[tuple[int, int, int]]) -> dict[Name, int]:
    names: dict[Name, int] = {}
    group: Name = ()
    at = 0
    for name in sorted(used):
        kind = name[0]
        if kind == UNREAD:
            names[name] = 0
        elif kind == COUNTER:
            names[name] = sum(known[:2] == (SEQUENCE, name[1]) for known in names)
        elif kind != RECORD:
            at = at + 1 if name[:-1] == group else FIRST[kind]
            group = name[:-1]
            names[name] = at
    records = 0
    for _, _, record in sorted(placed):
        if (RECORD, record) not in names:
            names[RECORD, record] = records
            records += 1
    return names
