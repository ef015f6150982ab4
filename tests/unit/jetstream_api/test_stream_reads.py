"""What clients of the API may have a node do at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.jetstream_api import stream_reads
from jetstream_server.jetstream_api.stream_reads import StreamReads
from tests.support.virtual_time import on_virtual_loop


@on_virtual_loop
async def test_subjects_are_sorted_for_one_client_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = most = 0

    async def subjects_of(*_: object) -> pb.ListSubjectsResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return pb.ListSubjectsResponse(total=3)

    monkeypatch.setattr(stream_reads, "subjects_of", subjects_of)
    stream: Any = SimpleNamespace(id=7, leader=1)
    registry: Any = SimpleNamespace(stream_of=lambda _: stream)
    replicas: Any = SimpleNamespace(led_replica_of=lambda _: None)
    nothing: Any = None
    reads = StreamReads(registry, replicas, nothing, nothing, 1, nothing, nothing)
    found = await asyncio.gather(*(reads.subjects(stream, ">", 0, 10) for _ in range(20)))
    assert found == [([], 3)] * 20
    assert most == 1


@pytest.mark.parametrize("hangs", [False, True])
@on_virtual_loop
async def test_what_a_stream_holds_is_told_while_the_lake_is_away(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async def resolve(*_: object) -> None:
        await asyncio.sleep(60 if hangs else 0)
        raise UnavailableError("the lake cannot be read")

    described = pb.StreamDescription(log_start_offset=3, high_watermark=9, last_append_us=5)
    monkeypatch.setattr(stream_reads, "resolve_anywhere", resolve)
    monkeypatch.setattr(stream_reads, "description_of", lambda *_: described)
    monkeypatch.setattr(stream_reads, "_FIRST_SECONDS", 0.05)
    stream: Any = SimpleNamespace(id=7, leader=1)
    registry: Any = SimpleNamespace(stream_of=lambda _: stream)
    replicas: Any = SimpleNamespace(led_replica_of=lambda _: None)
    nothing: Any = None
    fetches: Any = SimpleNamespace(lake=None)
    peers: Any = SimpleNamespace(describe_stream=None)
    reads = StreamReads(registry, replicas, fetches, peers, 1, nothing, nothing)
    state = await reads.state(stream)
    assert (state.log_start_offset, state.high_watermark, state.last_us) == (3, 9, 5)
    assert state.first_us is None
