"""Who is asked for the states of durable consumers, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.consumers.keeper import StateWrite
from jetstream_server.cursors.store import CursorStore
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.consumer_states import ConsumerStates
from jetstream_server.serving.grpc.peers import Peers
from tests.support.loops import on_loop


@on_loop
async def test_a_node_that_may_not_know_consumers_is_asked_for_none() -> None:
    leader = SimpleNamespace(leader=1)
    registry = SimpleNamespace(
        settings=SimpleNamespace(feature_level=5), find=lambda name, subject: leader
    )
    nobody = SimpleNamespace()
    states = ConsumerStates(
        cast(CursorStore, nobody), cast(Registry, registry), cast(Streams, nobody),
        cast(Peers, nobody), 0,
    )  # fmt: skip
    assert await states.load([1]) == []
    with pytest.raises(UnavailableError, match="every node"):
        await states.write([StateWrite(b"key", b"value", None)])
