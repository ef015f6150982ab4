"""NATS clients in C, Go, Java, JavaScript and Rust read streams by the JetStream API: what each of
them can do, and what it is told when the leader is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NatsClient

from jetstream_client import Client
from tests.chaos.foreign.programs import BUILT, why_not
from tests.chaos.foreign.reading import LANGUAGES, TOUR, Reader
from tests.support.jetstream_api import api_cluster, api_server, until_it_takes_every_setting
from tests.support.leaf import LeafServer, answer, asking
from tests.support.loops import on_loop

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
    """Publish so many messages, each until it is stored. stored: their sequences, as they come."""
    for number in range(count):
        headers = {"Nats-Msg-Id": str(number)}
        while len(stored) <= number:
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                answer = await client.request("work.x", b"%d" % number, 2, headers=headers)
                told = json.loads(answer.data)
                if "error" not in told:
                    stored.append(told["seq"])
                    continue
            await asyncio.sleep(0.05)


@on_loop
async def test_nothing_is_forgotten_or_done_twice_when_the_leader_is_killed(tmp_path: Path) -> None:
    languages = [language for language in LANGUAGES if not why_not(language)]
    if not languages:
        pytest.skip("no reader was made: scripts/foreign-clients makes them")
    with (
        LeafServer() as hub,
        api_cluster(tmp_path / "nodes", hub) as cluster,
        ExitStack() as ending,
    ):
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("work", "work.>", replicas=3)
        async with asking(hub.url) as publisher:
            readers = []
            for language in languages:
                reader = Reader(language, "work", "work", hub.url, tmp_path / f"{language}.log")
                ending.callback(reader.close)
                readers.append(reader)
            await _eventually(readers, lambda: [each for each in readers if not each.said("ready")])
            stored: list[int] = []
            publishing = asyncio.create_task(_publish(publisher, ALL, stored))
            try:
                await _eventually(
                    readers,
                    lambda: (
                        len(stored) < BEFORE
                        or [text for each in readers if (text := each.missing(stored[:BEFORE]))]
                    ),
                )
                leader = await asyncio.to_thread(cluster.settled, "work")
                await asyncio.to_thread(cluster.kill, leader.stream.leader)
                await publishing
                await _eventually(
                    readers, lambda: [text for each in readers if (text := each.missing(stored))]
                )
                for reader in readers:
                    await _until_all_is_done(publisher, reader)
            finally:
                publishing.cancel()
        for reader in readers:
            again = [each for each, count in reader.done.items() if count > 1]
            assert len(again) <= 1, f"{reader.language}: {again}"  # It was open.
            followed = reader.said("followed")
            assert followed == stored[: len(followed)]


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
