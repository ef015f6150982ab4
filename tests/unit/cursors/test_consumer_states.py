"""Who is asked for the states of durable consumers, and when."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_server.consumers.keeper import StateWrite
from jetstream_server.cursors.store import CursorStore
from jetstream_server.cursors.table import Entry, Outcome, Write
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.consumer_states import BYTES_AT_ONCE, ConsumerStates
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


@on_loop
async def test_no_call_writes_more_than_a_batch_holds_and_who_was_refused_hears_the_state() -> None:
    calls: list[int] = []

    async def write(writes: Sequence[Write]) -> list[Outcome]:
        calls.append(sum(len(each.value or b"") for each in writes))
        refused = PreconditionFailedError("another revision")
        return [
            Outcome(Entry(b"other", 7), refused if each.key.endswith(b"1") else None)
            for each in writes
        ]

    registry: Any = SimpleNamespace(
        settings=SimpleNamespace(feature_level=6), find=lambda *_: SimpleNamespace(leader=0)
    )
    nobody = cast(Any, None)
    store: Any = SimpleNamespace(write=write)
    states = ConsumerStates(store, registry, nobody, nobody, 0)
    value = bytes(BYTES_AT_ONCE // 2 - 10)
    found = await states.write([StateWrite(b"consumer/1/%d" % at, value, 3) for at in range(5)])
    assert calls == [2 * len(value), 2 * len(value), len(value)]
    assert [each.value for each in found] == [b"", b"other", b"", b"", b""]
