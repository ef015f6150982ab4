"""What a fetch raises when its time is up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.support.loops import on_loop


class Events:
    def failed(self, error: Exception) -> None: ...


@on_loop
async def test_an_error_that_a_node_gave_is_not_hidden_by_the_search_for_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody: Any = None
    events: Any = Events()
    plane = DataPlane(nobody, nobody, nobody, lambda: True, ClientConfig(timeout=2.0), events)
    given = iter([UnavailableError("epoch 7 is not known here yet")])

    async def address(stream: common_pb2.StreamRef, read_from: str) -> str:
        for error in given:
            raise error
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(plane._routes, "address", address)
    with pytest.raises(UnavailableError, match="epoch 7"):
        await plane.fetch(pb.DataFetchRequest())
