"""STREAM.CREATE at a cluster that does not take every setting yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.jetstream_api import stream_reads
from jetstream_server.jetstream_api.stream_changes import StreamChanges
from tests.support.loops import on_loop


class Streams:
    """Refuses to create so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def create(self, name: str, *_: object, **__: object) -> tuple[object, bool]:
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the feature level is about to be raised; try again")
        return SimpleNamespace(id=1, name=name, leader=1), True


def changes(streams: Streams) -> StreamChanges:
    async def nothing(*_: object) -> dict[str, object]:
        return {}

    audit = SimpleNamespace(done=lambda *_: None, in_doubt=lambda *_: None)
    control = SimpleNamespace(
        quota_holder=lambda _: "", quotas=SimpleNamespace(streams=0), audit=audit
    )
    registry = SimpleNamespace(find=lambda *_: None, streams={})
    given: list[Any] = [
        SimpleNamespace(registry=registry),
        streams,
        SimpleNamespace(check_new=lambda *_: 0, control=control),
        SimpleNamespace(describe=nothing),
        None,
        None,
        None,
        nothing,
        SimpleNamespace(full_reason=""),
        None,
    ]
    return StreamChanges(*given, node_id=1)


@on_loop
async def test_a_setting_that_is_not_taken_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_reads, "_PAUSE_SECONDS", 0)
    body = {"name": "s", "max_msg_size": 1000}
    assert await changes(Streams(3)).create("s", body) == {"did_create": True}
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError):
            await changes(Streams(10**6)).create("s", body)
