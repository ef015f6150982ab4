"""What a client remembers of streams and nodes that are gone is bounded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client.transport import connection_events, control, data_plane, routes, streams
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.data_connection import DataConnection, Fetched
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.transport.recent import Recent
from jetstream_client.transport.streams import Streams
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.support.virtual_time import on_virtual_loop

NOBODY: Any = None
MAX = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (routes, data_plane, streams):
        monkeypatch.setattr(module, "STREAMS_MAX", MAX)
    for module in (routes, control, connection_events):
        monkeypatch.setattr(module, "ADDRESSES_MAX", MAX)


def new_data_plane() -> DataPlane:
    config = ClientConfig()
    return DataPlane(NOBODY, NOBODY, NOBODY, lambda: True, config, ConnectionEvents())


def test_what_was_used_least_recently_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(2)
    assert recent.put("a", 1) is None
    assert recent.put("b", 2) is None
    assert recent.get("a") == 1
    assert recent.put("c", 3) == ("b", 2)
    assert "a" in recent
    assert recent.get("b") is None
    assert recent.put("a", 4) is None
    assert sorted(recent.pop_all()) == [3, 4]
    assert len(recent) == 0


@on_virtual_loop
async def test_routes_forget_streams_and_nodes() -> None:
    async def leader_of(stream: common_pb2.StreamRef, timeout: float) -> int:
        return -1

    async def greet(address: str) -> None: ...

    chosen = routes.Routes(NOBODY, leader_of, NOBODY, greet, 1.0)
    for number in range(3 * MAX):
        ref = common_pb2.StreamRef(id=number)
        chosen.redirected(ref, "leader", f"n{number}:1")
        await chosen._leader(ref, {})
        await chosen._measure(f"n{number}:1")
    assert [len(chosen._chosen), len(chosen._leaderless), len(chosen._greeted_in)] == [MAX] * 3
    assert await chosen.address(common_pb2.StreamRef(id=3 * MAX - 1), "leader") == "n11:1"


def test_the_data_plane_forgets_who_served_streams() -> None:
    plane = new_data_plane()
    for number in range(3 * MAX):
        plane._served_by(Fetched(pb.DataFetchResponse(stream_id=number), b"", "n:1"))
    assert len(plane._served) == MAX


@on_virtual_loop
async def test_the_data_plane_forgets_nodes_with_which_no_connection_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def opened(*_: object) -> Any:
        return SimpleNamespace(closed=False, pending=0)

    monkeypatch.setattr(DataConnection, "open", opened)
    plane = new_data_plane()
    for number in range(3):
        connection: Any = await plane._connection(f"n{number}:1", 1.0)
        assert await plane._connection(f"n{number}:1", 1.0) is connection
        connection.closed = number < 2
    assert list(plane._pools) == ["n2:1"]


@on_virtual_loop
async def test_names_of_streams_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(ref: common_pb2.StreamRef) -> Any:
        stream = SimpleNamespace(name=f"s{ref.id}")
        return SimpleNamespace(description=SimpleNamespace(stream=stream))

    found = Streams(ControlPlane(ClientConfig()))
    monkeypatch.setattr(found, "_known", known)
    assert [await found.name_of(each) for each in range(1, 10)] == [f"s{n}" for n in range(1, 10)]
    assert len(found._names) == MAX


class Channel:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    made: list[Channel] = []

    def connect(*_: object) -> Channel:
        made.append(Channel())
        return made[-1]

    monkeypatch.setattr(control, "connect", connect)
    return made


@on_virtual_loop
async def test_channels_to_nodes_long_not_asked_are_closed(channels: list[Channel]) -> None:
    plane = ControlPlane(ClientConfig())
    for number in range(3 * MAX):
        plane._connect(f"n{number}:1")
        plane._found(f"n{number}:1")
        plane._events.lost("grpc", f"n{number}:1", "away")
    assert [each.closed for each in channels] == [True] * 2 * MAX + [False] * MAX
    assert [len(plane._in_touch), len(plane._events._lost)] == [MAX] * 2
    assert not plane._retired
    assert not plane._calls
    await plane.close()
    assert all(each.closed for each in channels)


@on_virtual_loop
async def test_a_renewed_channel_is_closed_when_its_last_call_has_ended(
    channels: list[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    async def ask(*_: object, **__: object) -> Any:
        await release.wait()
        return pb.DataFetchResponse()

    monkeypatch.setattr(control, "ask", ask)
    plane = ControlPlane(ClientConfig())
    files: Any = SimpleNamespace(signature=lambda: len(channels))
    plane._tls = files
    plane._has_met_one = True
    call = asyncio.create_task(plane._attempt(pb.DataFetchRequest(), "n:1", 5.0))
    await asyncio.sleep(0)
    plane._renew("n:1")
    assert len(plane._retired) == 1
    assert [each.closed for each in channels] == [False]
    release.set()
    await call
    assert [each.closed for each in channels] == [True]
    assert not plane._retired
    assert not plane._calls
    await plane.close()
