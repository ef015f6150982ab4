"""The metadata group: the shipped registry, each of its states known by a number.

States are never changed: a command gives another one, and the same command on the same state is
decided only once. Revisions are not counted: nothing but incarnations comes of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.changes import NodeChanged, StreamCreated
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    CreateStream,
    ElectLeader,
    FenceNode,
    RegisterNode,
    TransferLeader,
    UnfenceNode,
)
from jetstream_server.metadata.state.elections import asked_in_election
from jetstream_server.metadata.state.nodes import Addresses, NodeMetadata
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.results import ResultWindows
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.restart_trust import Trust
from jetstream_server.replication.core.unclean_election import ReplicaReport, choose_unclean
from tests.model.naming import Named
from tests.model.process import NODES, Group, Proposal, incarnation_of, session_of

ADDRESSES = Addresses(grpc="a:1", data="a:2", raft="a:3", http="a:4")
OTHER_LEADERSHIPS = 10
"""More than one stream can change of who leads least."""


class Metadata:
    """See the module. Numbers of states come from `first` and from commands."""

    def __init__(self, *, min_insync_replicas: int, flush: str) -> None:
        self.states = Named()
        self._decided: dict[Any, tuple[int, str]] = {}
        self._elected: dict[Any, tuple[int, ...]] = {}
        registry = Registry()
        for node_id in range(NODES):
            command = registration(node_id, 1, "", Trust(True, ()))
            _apply(registry, command, incarnation_of(node_id, 1))
        settings = {"min_insync_replicas": min_insync_replicas, "flush": flush}
        created = _apply(
            registry,
            CreateStream(
                name="orders",
                subject="orders",
                config=settings,
                replicas=tuple(map(NodeId, range(NODES))),
                created_at_us=0,
            ),
            incarnation_of(0, 2),
        )
        self.stream_id = StreamId(created["stream_id"])
        self.first = self.states.of(self._group(registry))

    def stream(self, state: int) -> StreamMetadata:
        stream: StreamMetadata = self.states[state].stream
        return stream

    def nodes(self, state: int) -> tuple[NodeMetadata, ...]:
        """By id."""
        nodes: tuple[NodeMetadata, ...] = self.states[state].nodes
        return nodes

    def nodes_by_id(self, state: int) -> dict[NodeId, NodeMetadata]:
        return {node.node_id: node for node in self.nodes(state)}

    # Commands. Each gives the states that may come of it, by who is preferred as a leader: the
    # node that leads least of other streams.

    def fenced(self, state: int, node_id: int) -> tuple[int, ...]:
        return self._elections("fence_node", state, node_id)

    def unfenced(self, state: int, node_id: int) -> tuple[int, ...]:
        return self._elections("unfence_node", state, node_id)

    def registered(self, state: int, node_id: int, run: int, trust: Trust) -> tuple[int, ...]:
        """The node's run, in place of the one that is registered."""
        return self._elections("register_node", state, node_id, run, trust)

    def handed_over(self, state: int, member: int) -> int:
        return self._apply("transfer_leader", state, member)[0]

    def elected_uncleanly(
        self, state: int, reports: Mapping[NodeId, ReplicaReport]
    ) -> Iterator[int]:
        """With any of those who are equal in what the shipped rule finds most."""
        stream = self.stream(state)
        nodes = self.nodes_by_id(state)
        command = choose_unclean(stream, nodes, reports, is_late=True)
        if command is None:
            return
        most = reports[command.leader]
        for node_id, report in reports.items():
            node = nodes[node_id]
            is_current = not node.fenced and node.incarnation == report.incarnation
            if is_current and replace(report, incarnation=most.incarnation) == most:
                asked = asked_in_election(stream, node_id)
                incarnations = tuple(nodes[each].incarnation for each in asked)
                yield self._apply("elect_leader", state, node_id, incarnations)[0]

    def isr_changed(self, state: int, proposal: Proposal, is_known: bool) -> tuple[int, str]:
        """The code of the error is "" without one. is_known: the command bears its id."""
        return self._apply("change_isr", state, proposal, is_known)

    def _elections(self, operation: str, state: int, *arguments: Any) -> tuple[int, ...]:
        key = operation, state, *arguments
        found = self._elected.get(key)
        if found is None:
            applied = [
                self._apply(operation, state, *arguments, preferred=node_id)
                for node_id in range(NODES)
            ]
            assert all(code == "" for _, code in applied), f"{operation} was refused"
            found = self._elected[key] = tuple(dict.fromkeys(after for after, _ in applied))
        return found

    def _apply(
        self, operation: str, state: int, *arguments: Any, preferred: int = 0
    ) -> tuple[int, str]:
        key = operation, state, preferred, *arguments
        known = self._decided.get(key)
        if known is None:
            registry = self._registry(self.states[state], preferred)
            command, revision, command_id = self._command(state, operation, *arguments)
            result = _apply(registry, command, revision, command_id)
            code = result["error"]["code"] if "error" in result else ""
            known = self._decided[key] = self.states.of(self._group(registry)), code
        return known

    def _command(
        self, state: int, operation: str, *arguments: Any
    ) -> tuple[Command, int, tuple[int, int] | None]:
        """The command, its revision, which says nothing unless it is a run's incarnation, and its
        id."""
        match operation, *arguments:
            case "fence_node" | "unfence_node", int(node_id):
                kind = FenceNode if operation == "fence_node" else UnfenceNode
                incarnation = self.nodes(state)[node_id].incarnation
                return kind(node_id=NodeId(node_id), node_incarnation=incarnation), 1, None
            case "register_node", int(node_id), int(run), Trust() as trust:
                replaces = self.nodes(state)[node_id].session
                command = registration(node_id, run, replaces, trust)
                return command, incarnation_of(node_id, run), None
            case "transfer_leader", int(member):
                return TransferLeader(stream_id=self.stream_id, leader=NodeId(member)), 1, None
            case "elect_leader", int(leader), tuple(incarnations):
                elect = ElectLeader(
                    stream_id=self.stream_id, leader=NodeId(leader), incarnations=incarnations
                )
                return elect, 1, None
            case "change_isr", Proposal() as proposal, bool(is_known):
                command_id = (proposal.incarnation, proposal.sequence)
                return proposal.change, 1, command_id if is_known else None
        raise AssertionError(operation)

    def _registry(self, group: Group, preferred: int) -> Registry:
        registry = Registry()
        registry.settings = replace(registry.settings, feature_level=FEATURE_LEVEL_MAX)
        registry.commit(NodeChanged(None, node) for node in group.nodes)
        registry.commit([StreamCreated(group.stream)])
        for node in group.nodes:
            led = registry.leaderships.get(node.node_id, 0)
            others = 0 if node.node_id == preferred else OTHER_LEADERSHIPS
            registry.leaderships[node.node_id] = led + others
        results: dict[int, list[Any]] = {node.incarnation: [] for node in group.nodes}
        for incarnation, sequence, code in group.results:
            results[incarnation].append((sequence, json.dumps(_result(code))))
        registry._results = ResultWindows.from_list(
            [(run, max(items, default=(-1,))[0], items) for run, items in results.items()]
        )
        return registry

    def _group(self, registry: Registry) -> Group:
        nodes = tuple(registry.nodes[node_id] for node_id in sorted(registry.nodes))
        results = [
            (incarnation, sequence, json.loads(result).get("error", {}).get("code", ""))
            for incarnation, _, items in registry._results.to_list()
            for sequence, result in items
        ]
        return Group(nodes, registry.streams[StreamId(self.stream_id)], tuple(sorted(results)))


def registration(node_id: int, run: int, replaces: str, trust: Trust) -> RegisterNode:
    """The command by which the node's `run`th run registers."""
    return RegisterNode(
        node_id=NodeId(node_id),
        session=session_of(node_id, run),
        addresses=ADDRESSES,
        replaces=replaces,
        trusted=trust.trusted,
        distrusted=tuple(map(StreamId, trust.distrusted)),
        feature_level_max=FEATURE_LEVEL_MAX,
    )


def _result(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": ""}} if code else {}


def _apply(
    registry: Registry,
    command: Command,
    revision: int,
    command_id: tuple[int, int] | None = None,
) -> dict[str, Any]:
    text = encode_command(command, command_id=command_id)
    return registry.apply(text, revision)
