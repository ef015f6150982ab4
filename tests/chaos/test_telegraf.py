"""Telegraf, a program that knows nothing of this server, reads a stream by JetStream's API through
NATS's default domain, and goes on when the leader is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import nats
import pytest

from jetstream_client import Client
from tests.chaos.foreign.programs import BUILT, CLIENTS, why_not
from tests.support.jetstream_api import api_cluster
from tests.support.leaf import DOMAIN, LeafServer, asking
from tests.support.loops import eventually, on_loop

BEFORE, ALL = 100, 300
SECONDS = 120


def values_in(output: Path) -> set[int]:
    *lines, _ = output.read_bytes().split(b"\n") if output.exists() else [b""]
    return {int(json.loads(line)["fields"]["value"]) for line in lines}


@on_loop
async def test_telegraf_misses_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    if reason := why_not("telegraf"):
        pytest.skip(reason)
    output, log = tmp_path / "metrics.json", tmp_path / "telegraf.log"
    with (
        LeafServer(f'default_js_domain: {{ "$G": {DOMAIN} }}') as hub,
        api_cluster(tmp_path / "nodes", hub) as cluster,
    ):
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("metrics", "metrics.>", replicas=3)
        async with asking(hub.url) as publisher:

            async def publish(number: int) -> None:
                headers = {"Nats-Msg-Id": str(number)}
                line = b"room,sensor=a value=%di" % number
                async with asyncio.timeout(SECONDS):
                    while True:
                        with contextlib.suppress(TimeoutError, nats.errors.Error):
                            found = await publisher.request("metrics.a", line, 2, headers=headers)
                            if "error" not in json.loads(found.data):
                                return
                        await asyncio.sleep(0.05)

            environment = os.environ | {"NATS_SERVERS": hub.url, "OUTPUT": str(output)}
            with log.open("wb") as errors:
                telegraf = await asyncio.create_subprocess_exec(
                    BUILT / "telegraf" / "telegraf",
                    "--config",
                    CLIENTS / "telegraf" / "telegraf.conf",
                    stdout=errors,
                    stderr=errors,
                    env=environment,
                )
            try:
                for number in range(BEFORE):
                    await publish(number)
                await eventually(lambda: values_in(output) >= set(range(BEFORE)), SECONDS)
                leader = await asyncio.to_thread(cluster.settled, "metrics")
                await asyncio.to_thread(cluster.kill, leader.stream.leader)
                for number in range(BEFORE, ALL):
                    await publish(number)
                await eventually(lambda: values_in(output) >= set(range(ALL)), SECONDS)
            finally:
                telegraf.terminate()
                async with asyncio.timeout(SECONDS):
                    await telegraf.wait()
        assert values_in(output) == set(range(ALL))
