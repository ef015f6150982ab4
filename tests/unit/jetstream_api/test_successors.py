"""What a leader tells the nodes that may lead next, and how hard it tries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.consumers.manager import Consumers
from jetstream_server.jetstream_api import stream_reads
from jetstream_server.jetstream_api.successors import Successors
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.serving.grpc.peers import Peers
from tests.support.loops import on_loop

STREAM = StreamId(7)


class Nodes:
    """Stands for the other nodes: each refuses the first `refusals` requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked: list[int] = []
        self.told: list[int] = []

    async def ask_consumers(self, node: NodeId, *_: object) -> bytes:
        self.asked.append(node)
        if self.asked.count(node) <= self.refusals:
            raise UnavailableError("not connected yet")
        self.told.append(node)
        return b"{}"


def test_a_node_that_cannot_be_told_yet_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reads, "_PAUSE_SECONDS", 0)
    nodes = Nodes(refusals=3)

    @on_loop
    async def scenario() -> None:
        successors = Successors(
            NodeId(0),
            cast(Consumers, SimpleNamespace(of=lambda _: [])),
            cast(Peers, nodes),
            run_in_background,
        )
        stream = SimpleNamespace(id=STREAM, copies=(0, 1, 2, 3), isr=(0, 1, 2))
        successors.prepare(cast(StreamMetadata, stream))
        await successors.prepared(STREAM)

    scenario()
    assert sorted(nodes.told) == [1, 2]
    assert nodes.asked.count(3) == 1  # Out of the ISR: it is told when it is back.
