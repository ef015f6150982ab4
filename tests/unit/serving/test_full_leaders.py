"""A stream whose leader has no room is there, and who creates it hears that, and where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import StorageFullError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.serving.grpc.streams_service import StreamsService
from tests.support.loops import on_loop


@on_loop
async def test_creating_a_stream_names_the_full_node_that_leads_it() -> None:
    async def created(*_: object, **__: object) -> tuple[object, bool]:
        return SimpleNamespace(name="orders", leader=3), True

    async def ask(*_: object) -> None:
        raise StorageFullError("no appends are taken, because the disk has 0 MiB free")

    service = StreamsService.__new__(StreamsService)
    parts: dict[str, Any] = {
        "_replicas": SimpleNamespace(full_reason=""),
        "_streams": SimpleNamespace(check_room=lambda *_: None),
        "_check_lake": lambda *_: None,
        "_check_encryption": lambda *_: None,
        "_create": created,
        "_node_id": 1,
        "_peers": SimpleNamespace(ask=ask),
    }
    vars(service).update(parts)
    call: Any = SimpleNamespace(
        metadata=(), identity=SimpleNamespace(is_node=False, principal="user:a")
    )
    with pytest.raises(StorageFullError, match="'orders' exists, but node 3 leads it: no appends"):
        await service.CreateStream(pb.CreateStreamRequest(name="orders", subject="o"), call)
