"""What a fetch raises when its time is up, and whom it waits for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from jetstream_client.transport import data_plane
from jetstream_client.transport.data_connection import DataConnection
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.transport.port_probe import what_listens
from jetstream_client.transport.retries import Step
from jetstream_client.transport.tls_probe import speaks_tls, why_tls_fails
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.tls import TlsConfig
from jetstream_protocol.errors import (
    StreamNotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.support.loops import eventually, on_loop
from tests.support.virtual_time import on_virtual_loop


class Events:
    def failed(self, error: Exception) -> None: ...


class Frozen:
    """A node whose port takes connections, and which greets nobody."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listening.setblocking(False)
        self._taken: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many were made so far."""
        with suppress(BlockingIOError):
            while True:
                self._taken.append(self._listening.accept()[0])
        return len(self._taken)

    def close(self) -> None:
        for each in (self._listening, *self._taken):
            each.close()


@pytest.fixture
def node() -> Iterator[Frozen]:
    with closing(Frozen()) as node:
        yield node


def plane_with(timeout: float) -> DataPlane:
    nobody: Any = None
    events: Any = Events()
    return DataPlane(nobody, nobody, nobody, lambda: True, ClientConfig(timeout=timeout), events)


def fetch_of(stream_id: int) -> pb.DataFetchRequest:
    return pb.DataFetchRequest(stream=common_pb2.StreamRef(id=stream_id))


@on_loop
async def test_an_error_that_a_node_gave_is_not_hidden_by_the_search_for_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane = plane_with(2.0)
    given = iter([UnavailableError("epoch 7 is not known here yet")])

    async def address(stream: common_pb2.StreamRef, read_from: str) -> str:
        for error in given:
            raise error
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(plane._routes, "address", address)
    with pytest.raises(UnavailableError, match="epoch 7"):
        await plane.fetch(pb.DataFetchRequest())


@on_virtual_loop
async def test_an_error_that_a_node_gave_is_not_hidden_by_a_last_attempt_without_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    async def opened(address: str, for_batches: bool) -> None:
        tried.append(address)
        await asyncio.Event().wait()

    plane = plane_with(1.0)
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def address(stream: common_pb2.StreamRef, read_from: str) -> str:
        if loop.time() < begin + 0.8:
            raise TooManyRequestsError("2 connections open")
        return "frozen:1"

    monkeypatch.setattr(plane._routes, "address", address)
    monkeypatch.setattr(plane, "_open", opened)
    monkeypatch.setattr(data_plane, "next_step", lambda *_: Step(None, 0.08))
    with pytest.raises(TooManyRequestsError, match="2 connections"):
        await plane.fetch(fetch_of(1))
    assert tried == ["frozen:1"]
    await plane.close()


@on_virtual_loop
async def test_fetches_that_wait_for_one_connection_all_move_on_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane = plane_with(4.0)
    asked = set()
    tried: list[str] = []

    async def opened(address: str, for_batches: bool) -> None:
        tried.append(address)
        await asyncio.sleep(1.0)
        raise UnavailableError("it did not answer in time")

    monkeypatch.setattr(plane, "_open", opened)

    async def address(stream: common_pb2.StreamRef, read_from: str) -> str:
        if stream.id in asked:
            raise StreamNotFoundError("the next node was asked")
        asked.add(stream.id)
        return "frozen:1"

    monkeypatch.setattr(plane._routes, "address", address)
    fetches = [plane.fetch(fetch_of(number)) for number in range(1, 13)]
    failures = await asyncio.gather(*fetches, return_exceptions=True)
    assert [type(failure) for failure in failures] == [StreamNotFoundError] * 12
    assert tried == ["frozen:1"]
    await plane.close()


@on_loop
async def test_a_fetch_waits_no_longer_than_its_time_for_a_connection_that_others_wait_for(
    node: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = plane_with(40.0)

    async def address(stream: common_pb2.StreamRef, read_from: str) -> str:
        return node.address

    monkeypatch.setattr(plane._routes, "address", address)
    patient = asyncio.create_task(plane.fetch(fetch_of(1)))
    await eventually(lambda: node.connections == 1)
    with pytest.raises(UnavailableError, match="did not answer in time"):
        await plane.fetch(fetch_of(2), timeout=0.05)
    assert node.connections == 1
    await plane.close()
    with pytest.raises(UnavailableError, match="the client is closed"):
        await patient


@on_loop
async def test_a_node_whose_address_cannot_be_looked_up_is_one_that_does_not_answer() -> None:
    address = "node4..example.org:1"
    with pytest.raises(UnavailableError, match=r"'node4\.\.example\.org' is no possible host name"):
        await DataConnection.open(address, 5)
    assert await what_listens(address) == ""
    assert not await speaks_tls(address)
    assert await why_tls_fails(address, TlsConfig()) == ""
