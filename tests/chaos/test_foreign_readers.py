"""NATS clients in C, Go, Java, JavaScript and Rust read streams by the JetStream API: what each of
them can do, and what it is told when the leader is killed or leaf links are lost meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NatsClient

from jetstream_client import Client
from tests.chaos.foreign.programs import BUILT, why_not
from tests.chaos.foreign.reading import LANGUAGES, TOUR, Reader
from tests.support.gated_leaf import gated_cluster
from tests.support.jetstream_api import (
    ApiCluster,
    api_cluster,
    api_server,
    until_it_takes_every_setting,
)
from tests.support.leaf import LeafServer, answer, asking
from tests.support.loops import eventually, on_loop

MESSAGES = 20
BEFORE, ALL = 20, 60
OLDER = ("2.10.26", "2.11.11", "2.12.8", "2.14.6")
NATS_SERVERS = BUILT.parent / "nats-servers"


@pytest.fixture(scope="module", params=["", *OLDER])
def toured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a NATS server, of today's or an older version, with a stream to tour."""
    if all(why_not(language) for language in LANGUAGES):
        pytest.skip("no reader was made: scripts/foreign-clients makes them")
    hub = LeafServer()
    if request.param:
        hub.binary = NATS_SERVERS / request.param
        if not hub.binary.exists():
            pytest.skip(f"no nats-server {request.param}: scripts/nats-servers fetches it")
    with hub, api_server(tmp_path_factory.mktemp("tour") / "data", hub) as server:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("tour", "tour.>")
        asyncio.run(_fill(hub.url))
        yield hub.url


async def _fill(url: str) -> None:
    async with asking(url) as client:
        for number in range(MESSAGES):
            headers = {"Number": str(number)}
            subject = f"tour.{'ab'[number % 2]}"
            await client.request(subject, b"%d" % number, headers=headers, timeout=20)
        await until_it_takes_every_setting(client)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_in_another_language_reads_acknowledges_and_uses_buckets(
    language: str, toured: str, tmp_path: Path
) -> None:
    if reason := why_not(language):
        pytest.skip(reason)
    reader = Reader(language, "tour", "tour", toured, tmp_path / "log")
    try:
        reader.wait()
    finally:
        reader.close()
    found = {word: value for line in reader.lines for word, value in line.items()}
    assert found == TOUR


async def _publish(client: NatsClient, count: int, stored: list[int]) -> None:
    """Publish until so many messages are stored. stored: their sequences, as they come."""
    for number in range(len(stored), count):
        headers = {"Nats-Msg-Id": str(number)}
        while len(stored) <= number:
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                answer = await client.request("work.x", b"%d" % number, 2, headers=headers)
                told = json.loads(answer.data)
                if "error" not in told:
                    stored.append(told["seq"])
                    continue
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _at_work(
    cluster: ApiCluster, hub: LeafServer, directory: Path
) -> AsyncIterator[tuple[NatsClient, list[Reader], list[int]]]:
    """A publisher; readers of all languages, that have read the first messages, and whose work is
    checked in the end; and the sequences of what is stored, which grows up to `ALL`."""
    languages = [language for language in LANGUAGES if not why_not(language)]
    if not languages:
        pytest.skip("no reader was made: scripts/foreign-clients makes them")
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream("work", "work.>", replicas=3)
    with ExitStack() as ending:
        async with asking(hub.url) as publisher:
            readers = []
            for language in languages:
                reader = Reader(language, "work", "work", hub.url, directory / f"{language}.log")
                ending.callback(reader.close)
                readers.append(reader)
            await _eventually(readers, lambda: [each for each in readers if not each.said("ready")])
            stored: list[int] = []
            await _publish(publisher, BEFORE, stored)
            await _until_read(readers, stored)
            yield publisher, readers, stored
            await _until_read(readers, stored)
            for reader in readers:
                await _until_all_is_done(publisher, reader)
        for reader in readers:
            followed = reader.said("followed")
            assert followed == stored[: len(followed)]


async def _until_read(readers: list[Reader], stored: list[int]) -> None:
    await _eventually(readers, lambda: [text for each in readers if (text := each.missing(stored))])


@on_loop
async def test_nothing_is_forgotten_or_done_twice_when_the_leader_is_killed(tmp_path: Path) -> None:
    with LeafServer() as hub, api_cluster(tmp_path / "nodes", hub) as cluster:
        async with _at_work(cluster, hub, tmp_path) as (publisher, readers, stored):
            publishing = asyncio.create_task(_publish(publisher, ALL, stored))
            try:
                leader = await asyncio.to_thread(cluster.settled, "work")
                await asyncio.to_thread(cluster.kill, leader.stream.leader)
                await publishing
            finally:
                publishing.cancel()
        _nothing_is_done_twice(readers, 1)


@on_loop
async def test_nothing_is_forgotten_or_done_twice_when_leaf_links_are_lost(tmp_path: Path) -> None:
    """That of the leader, and then those of all nodes, while the readers wait for messages."""
    with gated_cluster(tmp_path / "nodes") as (cluster, hub, gates):
        async with _at_work(cluster, hub, tmp_path) as (publisher, readers, stored):
            leader = await asyncio.to_thread(cluster.settled, "work")
            for lost in ([gates[leader.stream.leader]], gates):
                before = hub.log.count("Leafnode connection closed")
                for gate in lost:
                    gate.close()
                closed = before + len(lost)
                await eventually(lambda n=closed: hub.log.count("Leafnode connection closed") >= n)
                await _publish(publisher, len(stored) + 20, stored)
                for gate in lost:
                    gate.open()
                await _until_read(readers, stored)
        _nothing_is_done_twice(readers, 2)


def _nothing_is_done_twice(readers: list[Reader], incidents: int) -> None:
    """A message was open at each incident."""
    for reader in readers:
        again = [each for each, count in reader.done.items() if count > 1]
        assert len(again) <= incidents, f"{reader.language}: {again}"


async def _until_all_is_done(client: NatsClient, reader: Reader) -> None:
    """Return once a reader has acknowledged everything, as the server knows."""
    async with asyncio.timeout(60):
        while True:
            info = await answer(client, f"CONSUMER.INFO.work.{reader.durable}")
            if "error" in info:  # There is no leader yet, or it does not answer in time.
                assert info["error"]["err_code"] == 10008, info
            elif not info["num_ack_pending"] and not info["num_pending"]:
                return
            await asyncio.sleep(0.05)


async def _eventually(readers: list[Reader], what: Callable[[], object]) -> None:
    """Return once nothing is left."""
    async with asyncio.timeout(90):
        try:
            while what():
                assert not [each.language for each in readers if each.has_ended]
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            print(what())
            raise
