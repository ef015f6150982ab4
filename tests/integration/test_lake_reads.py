"""Every way of reading finds the records that are in the lake alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyiceberg")

from nats.aio.client import Client as NatsClient
from nats.js.api import AckPolicy, ConsumerConfig

from jetstream_client import Client
from tests.support.jetstream_api import api_variables
from tests.support.lake_streams import only_in_lake
from tests.support.leaf import LeafServer, answer, asking
from tests.support.server import ServerProcess
from tests.support.stages import hub_stage

COUNT = 200

hub = hub_stage("")


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("reads")
    (lake := folder / "lake").mkdir()
    environment = api_variables(hub) | {"JETSTREAM_LAKE__URL": lake.as_uri()}
    server = ServerProcess(folder / "data", "--nats", hub.url, environment=environment)
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            only_in_lake(server, client, "old", COUNT)
        yield server
    finally:
        server.kill()


def number_of(value: bytes) -> int:
    return int(value.split()[0])


def test_the_jetstream_api_reads_the_lake(server: ServerProcess, hub: LeafServer) -> None:
    asyncio.run(read_by_the_api(hub.url))


async def read_by_the_api(url: str) -> None:
    async with asking(url) as client:
        js = client.jetstream(domain="log")
        state = (await js.stream_info("old")).state
        assert (state.first_seq, state.last_seq, state.messages) == (1, COUNT, COUNT)
        got = await js.get_msg("old", 5)
        assert got.data is not None
        assert number_of(got.data) == 4
        direct = await js.get_msg("old", 7, direct=True)
        assert direct.data is not None
        assert number_of(direct.data) == 6
        told = await answer(client, "STREAM.MSG.GET.old", {"seq": 10, "next_by_subj": "old"})
        assert told["message"]["seq"] == 10
        assert state_first(await answer(client, "STREAM.INFO.old")) == told_time(
            await answer(client, "STREAM.MSG.GET.old", {"seq": 1})
        )
        await consumed(client)


def state_first(told: dict[str, dict[str, str]]) -> str:
    return told["state"]["first_ts"]


def told_time(told: dict[str, dict[str, str]]) -> str:
    return told["message"]["time"]


async def consumed(client: NatsClient) -> None:
    js = client.jetstream(domain="log")
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)
    subscription = await js.pull_subscribe("old", "reader", stream="old", config=config)
    found: list[int] = []
    while len(found) < COUNT:
        for message in await subscription.fetch(50, timeout=60):
            found.append(number_of(message.data))
            await message.ack()
    assert found == list(range(COUNT))


def test_clients_read_the_lake_backwards_by_filter_and_in_groups(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        with client.consume("old", reverse=True) as consumer:
            values = [number_of(each.value) for each in consumer if each.value is not None]
        assert values == list(range(COUNT - 1, -1, -1))
        assert client.get_last("old", key=b"none") is None, "all of it was looked through"
        assert not client.fetch("old", 0, filter="other").offsets()
        with client.consume("old", cursor="late", stop=10) as consumer:
            assert [each.offset for each in consumer] == list(range(10))
        begun = time.time()
        (cursor,) = client.describe_cursors("late")
        ended = time.time()
        appended = client.fetch("old", 10, max_messages=1)[0].timestamp
        assert cursor.lag == COUNT - 10
        assert cursor.lag_seconds is not None
        at = cursor.lag_seconds + appended.timestamp()
        assert begun - 5 < at < ended + 5
        with client.consume_group("old", "workers") as group:
            for message in group:
                if message.offset == COUNT - 1:
                    break
