"""How long a reader waits for what it has not acknowledged, once the leader is killed.

    python -m tests.chaos.redeliveries --rounds 5

Three real nodes, and a durable consumer. A client has all messages, acknowledges none, and waits
for more with a pull, as the libraries of NATS do: it asks again when a status has ended that one.
Each round the stream's leader is killed; told is the time until a message comes again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from jetstream_client import Client
from tests.support.jetstream_api import ApiCluster, ImpatientCluster, api_cluster
from tests.support.leaf import DOMAIN, LeafServer, answer, asking

MESSAGES = 10
AGAIN_SECONDS = 0.05
ROUND_SECONDS = 60.0
_INBOX = "_INBOX.redeliveries"
PULL_SECONDS = 3
_PULL = {"batch": 100, "expires": PULL_SECONDS * 1_000_000_000}
_CONFIG = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 600_000_000_000}


class Reader:
    """Pulls for ever, and acknowledges nothing."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self.count = 0
        self.came = asyncio.Event()
        self.has_all = asyncio.Event()

    async def take(self, message: Msg) -> None:
        if message.reply:
            self.count += 1
            self.came.set()
            if self.count >= MESSAGES:
                self.has_all.set()
        else:
            await asyncio.sleep(AGAIN_SECONDS)
            await self.pull()

    async def pull(self) -> None:
        subject = f"$JS.{DOMAIN}.API.CONSUMER.MSG.NEXT.jobs.c"
        await self._client.publish(subject, json.dumps(_PULL).encode(), reply=_INBOX)


async def _measure(cluster: ApiCluster, url: str, rounds: int) -> list[float]:
    found = []
    async with asking(url) as client:
        for number in range(MESSAGES):
            await client.request("jobs.x", b"%d" % number, timeout=20)
        await answer(client, "CONSUMER.CREATE.jobs.c", {"stream_name": "jobs", "config": _CONFIG})
        reader = Reader(client)
        await client.subscribe(_INBOX, cb=reader.take)
        await reader.pull()
        async with asyncio.timeout(ROUND_SECONDS):
            await reader.has_all.wait()
        for _ in range(rounds):
            leader = (await asyncio.to_thread(cluster.settled, "jobs")).stream.leader
            # A node that was away does not know of a pull that was asked for meanwhile.
            await asyncio.sleep(PULL_SECONDS + 1)
            reader.came.clear()
            killed_at = time.monotonic()
            await asyncio.to_thread(cluster.kill, leader)
            async with asyncio.timeout(ROUND_SECONDS):
                await reader.came.wait()
            found.append(time.monotonic() - killed_at)
            await asyncio.to_thread(cluster.restart, leader)
            await asyncio.to_thread(cluster.wait_for_isr, "jobs", cluster.nodes, 60)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.redeliveries")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LeafServer() as hub,
        api_cluster(Path(folder), hub, kind=ImpatientCluster) as cluster,
    ):
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("jobs", "jobs.>", replicas=3)
        found = asyncio.run(_measure(cluster, hub.url, options.rounds))
    median, worst = statistics.median(found), max(found)
    print(f"delivered again: median {median:.2f} s, worst {worst:.2f} s of {len(found)}")


if __name__ == "__main__":
    main()
