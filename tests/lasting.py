"""What a reader keeps in memory that is used for months: seeks, time limits, changes of a group,
reconnects.

    python -m tests.lasting --count 1000000

Each kind of work is done a few times first, then `count` times more; what Python has allocated by
then must not have grown by more than BYTES_MAX. Servers are faked: only the client is measured.
Exit code 0 when nothing has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias
from unittest.mock import patch

from jetstream_client.publishing.deliveries import Delivery
from jetstream_client.publishing.record_accumulator import Batch, RecordAccumulator
from jetstream_client.transport import connection_events, control, data_plane, routes
from jetstream_client.transport.data_connection import Fetched
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.property.test_sender import REMEMBERED
from tests.unit.client.test_closing_publishers import Cluster, client_of
from tests.unit.client.test_consume import Log
from tests.unit.client.test_group_consumer import Member
from tests.unit.client.test_queue import Server, queue_of
from tests.unit.client.test_table import Endless, table_of

BYTES_MAX = 128 * 1024
WARM_UP = 200
CHANNELS_SHARE = 256  # A channel is expensive to make.
REMEMBERED_MAX = 1  # A channel that replaces another is counted as growth: some 50 KiB.

Once: TypeAlias = Callable[[int], Awaitable[object]]


async def seeks(measure: Callable[[Once], Awaitable[None]]) -> None:
    """Under a call that waits, and with records that are taken."""
    log = Log()
    async with log.consume("latest", None) as consumer:
        reading = asyncio.ensure_future(anext(consumer))

        async def once(number: int) -> None:
            log.asked.clear()
            await consumer.seek("latest")
            await asyncio.sleep(0)

        await measure(once)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def reads(measure: Callable[[Once], Awaitable[None]]) -> None:
    log = Log()
    async with log.consume("earliest", None) as consumer:

        async def once(number: int) -> None:
            log.asked.clear()
            await consumer.seek(number % 10)
            await anext(consumer)

        await measure(once)


async def time_limits(measure: Callable[[Once], Awaitable[None]]) -> None:
    async with Log().consume("latest", None) as consumer:
        batches = consumer.batches()

        async def once(number: int) -> None:
            for waits in (anext(consumer), anext(batches)):
                waiting = asyncio.ensure_future(waits)
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

        await measure(once)


async def waits_for_a_table(measure: Callable[[Once], Awaitable[None]]) -> None:
    table = table_of(Endless())
    await table.begin()

    async def once(number: int) -> None:
        waiting = asyncio.ensure_future(table.wait_until_current())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    await measure(once)
    await table.aclose()


async def rebalances(measure: Callable[[Once], Awaitable[None]]) -> None:
    """Streams that come and go, one with records at hand."""
    member = Member()
    member.coordinator.assigned = [1, 2]
    async with member.consumer as consumer:

        async def once(number: int) -> None:
            member.events.clear()
            member.membership.assigned_since = {1: 1, 2 + number % 2: 1}
            member.membership._compare()
            for part in consumer.parts:
                await part.consumer.seek(0)
            await anext(consumer)

        await measure(once)


async def reconnects(measure: Callable[[Once], Awaitable[None]]) -> None:
    """To nodes at new addresses, which hold streams that are new."""
    nobody: Any = None
    config = ClientConfig()
    with ExitStack() as bounds:
        for module in (routes, data_plane, control, connection_events):
            for name in {"STREAMS_MAX", "ADDRESSES_MAX"} & vars(module).keys():
                bounds.enter_context(patch.object(module, name, REMEMBERED_MAX))
        events = connection_events.ConnectionEvents()
        calls = control.ControlPlane(config, events)
        plane = data_plane.DataPlane(nobody, nobody, nobody, lambda: True, config, events)

    async def once(number: int) -> None:
        address, stream = f"n{number}:1", common_pb2.StreamRef(id=number)
        head = pb.DataFetchResponse(stream_id=number)
        plane._routes.redirected(stream, "leader", address)
        plane._served_by(Fetched(head, b"", address))
        calls._lost(address, UnavailableError("away"))
        calls._found(address)
        if number % CHANNELS_SHARE == 0:
            calls._connect(address)

    await measure(once)
    await calls.close()


async def calls_of_what_has_failed(measure: Callable[[Once], Awaitable[None]]) -> None:
    """A program that goes on all the same."""
    error = UnavailableError("ended")
    consumer, member, table = Log().consume("latest", None), Member().consumer, table_of(Endless())
    queue = queue_of(Server())
    consumer._failure = member._membership.failure = table.failure = queue._failure = error
    queue._about = member._began = True
    buffer = Batch(0.0, 0.0), RecordAccumulator(
        batch_bytes=100, buffer_bytes=100, linger=0.0, delivery_timeout=1.0, clock=lambda: 0.0,
        wake=lambda: None,
    )  # fmt: skip
    batch, accumulator = buffer
    accumulator.end(error)
    batch.future.set_exception(error)
    delivery = Delivery(batch, "s", 0)

    async def ways(number: int) -> None:
        raises = (consumer.check, lambda: table["k"], delivery.result)
        for call in (*raises, lambda: accumulator.put(b"%d" % number, None, b"")):
            with suppress(UnavailableError):
                call()
        for wait in (anext(member), anext(queue), delivery):
            with suppress(UnavailableError):
                await wait

    await measure(ways)


async def publishers(measure: Callable[[Once], Awaitable[None]]) -> None:
    """That come and go, and one that stays."""
    cluster = Cluster()
    client, log = client_of(cluster), cluster.stream.log
    async with client.publisher("s", linger=0) as stays:

        async def once(number: int) -> None:
            del log[:-REMEMBERED]
            (await stays.send(b"x")).add_done_callback(lambda _: None)
            if number % 10 == 0:
                async with client.publisher("s", linger=0) as comes:
                    await (await comes.send(b"x"))

        await measure(once)


KINDS = (
    seeks,
    reads,
    time_limits,
    waits_for_a_table,
    rebalances,
    reconnects,
    calls_of_what_has_failed,
    publishers,
)


async def grown_by(
    kind: Callable[[Callable[[Once], Awaitable[None]]], Awaitable[None]], count: int
) -> int:
    """Bytes."""
    found: list[int] = []

    async def measure(once: Once) -> None:
        for number in range(WARM_UP):
            await once(number)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            await once(number)
        gc.collect()
        found.append(tracemalloc.get_traced_memory()[0] - before)
        tracemalloc.stop()

    await kind(measure)
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    count = parser.parse_args().count
    logging.disable()
    failed = False
    for kind in KINDS:
        grown = asyncio.run(grown_by(kind, count))
        failed |= grown > BYTES_MAX
        print(f"{kind.__name__}: {grown / 1024:.0f} KiB more after {count} times", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
