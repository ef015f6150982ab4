"""Many idle streams on one node: they cost little to start, to hold and to leave alone.

Ten thousand where TEST_BENCHMARKS is set (`scripts/test all`), else two thousand."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from itertools import pairwise

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.services import Stub
from tests.fuzz.vitals import vitals
from tests.support.api import Api, raw_nats
from tests.support.server import ServerProcess

STREAMS = 10_000 if os.environ.get("TEST_BENCHMARKS") else 2_000
WITH_FILES = range(0, STREAMS, 5)
START_CPU_MAX = 3.0 + STREAMS * 0.0012
"""Processor seconds."""
RSS_MIB_MAX = 200 + STREAMS * 0.02
IDLE_CPU_MAX = 0.05
"""Cores, above what the same node takes without streams: a wake-up costs each machine its own."""
SETTLE_SECONDS = 1.0
WINDOWS = 3
WINDOW_SECONDS = 1.0
METRICS_CPU_MAX = 1.0
"""What a page takes the node, to what parsing the longest one takes in Python on this machine."""
CREATING_AT_A_TIME = 256


async def create_all(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        streams = Stub("Streams", channel)
        slots = asyncio.Semaphore(CREATING_AT_A_TIME)

        async def create(index: int) -> None:
            async with slots:
                await streams.CreateStream(
                    pb.CreateStreamRequest(name=f"s{index}", subject=f"many.{index}")
                )

        await asyncio.gather(*map(create, range(STREAMS)))


def publish(server: ServerProcess) -> None:
    """One record into every fifth, so that those have files."""
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.many")
        for index in WITH_FILES:
            nats.publish(f"many.{index}", b"%d" % index, "_INBOX.many")
        for _ in WITH_FILES:
            assert json.loads(nats.message(60)[1])["seq"] == 1


def metrics(server: ServerProcess, query: str) -> tuple[float, str]:
    """Processor seconds that a page of metrics took the node, about, and the page."""
    before = vitals(server.pid).cpu_seconds
    with urllib.request.urlopen(f"{server.http}/metrics{query}", timeout=60) as answer:
        text = answer.read().decode()
    assert f"jetstream_streams {STREAMS}.0\n" in text
    return vitals(server.pid).cpu_seconds - before, text


def parsing(page: str) -> float:
    """Processor seconds that the same page takes its reader."""
    before = time.process_time()
    assert sum(1 for _ in text_string_to_metric_families(page)) > 100
    return time.process_time() - before


def idle_cpu(server: ServerProcess) -> float:
    """Cores used while nothing happens, once what the start left to do is done: in the quietest
    window, because a busy machine makes each wake-up more expensive."""
    time.sleep(SETTLE_SECONDS)
    used = [(time.monotonic(), vitals(server.pid).cpu_seconds)]
    for _ in range(WINDOWS):
        time.sleep(WINDOW_SECONDS)
        used.append((time.monotonic(), vitals(server.pid).cpu_seconds))
    return min((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(used))


@pytest.mark.timeout(300)
def test_many_idle_streams_start_fast_hold_little_and_take_no_cpu(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    cpu_without_streams = idle_cpu(own_server)
    begun = time.monotonic()
    asyncio.run(create_all(own_server.grpc))
    created = time.monotonic()
    publish(own_server)
    published = time.monotonic()
    assert own_server.stop() == 0
    stopped = time.monotonic()
    own_server.start()
    clean_start = time.monotonic() - stopped
    assert vitals(own_server.pid).cpu_seconds < START_CPU_MAX
    cpu = idle_cpu(own_server)
    short, _ = metrics(own_server, "")
    long, page = metrics(own_server, "?streams=*")
    parsed = parsing(page)
    rss = vitals(own_server.pid).rss_mib
    own_server.kill()
    killed = time.monotonic()
    own_server.start()
    start_after_kill = time.monotonic() - killed
    assert vitals(own_server.pid).cpu_seconds < START_CPU_MAX
    print(
        f"{STREAMS} streams: created in {created - begun:.1f} s, {len(WITH_FILES)} records in "
        f"{published - created:.1f} s, stop {stopped - published:.1f} s, clean start "
        f"{clean_start:.1f} s, {rss:.0f} MiB, idle {cpu:.1%} of a core "
        f"({cpu_without_streams:.1%} without streams), start after kill -9 "
        f"{start_after_kill:.1f} s; pages of metrics: processor seconds {short:.2f} and "
        f"{long:.2f}, {parsed:.2f} to parse"
    )
    assert max(short, long) < METRICS_CPU_MAX * parsed
    assert rss < RSS_MIB_MAX
    assert cpu < cpu_without_streams + IDLE_CPU_MAX
    assert vitals(own_server.pid).rss_mib < RSS_MIB_MAX
    api = Api(own_server.grpc)
    for index in (WITH_FILES[0], WITH_FILES[-1]):
        assert api.values(f"s{index}") == [b"%d" % index]
    assert api.values(f"s{STREAMS - 1}") == []
    api.close()


def test_a_stream_nobody_published_to_has_no_files_and_survives(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    api = Api(own_server.grpc)
    for index in range(20):
        api.create(f"s{index}", f"many.{index}")
    api.close()
    assert list((own_server.data / "streams").iterdir()) == []
    own_server.kill()
    own_server.start()
    api = Api(own_server.grpc)
    assert api.describe("s7").log_end_offset == 0
    api.close()
