"""sql, export, backup, restore and digest of a keyed group: one table, or one run over all its
streams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from jetstream_client import Client
from tests.integration.test_keyed_group_commands import Command
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server

RECORDS = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("runs") / "data"
    with NatsServer() as nats, running_server(data, "--nats", nats.url) as running:
        with Client(running.grpc, timeout=60) as client:
            client.create_group("shop", "shop.>", streams=3, max_messages=1_000)
            client.create_stream("alone", "alone")
            client.publish("alone", b"1")
            for number in range(RECORDS):
                client.publish("shop.x", b"%d" % number, key=f"k{number}")
        yield running


@pytest.fixture
def jetstream(server: ServerProcess, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(server, capfd)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as running:
        yield running


def values(text: str) -> list[int]:
    return sorted(int(json.loads(line)["value"]) for line in text.splitlines())


def query(jetstream: Command, text: str, *options: str) -> list[dict[str, object]]:
    out = jetstream.run("sql", text, "--json", *options)
    return [json.loads(line) for line in out.splitlines()]


def test_a_group_is_one_table(jetstream: Command) -> None:
    counted = "select stream, count(*) n, count(distinct decode(value)) v from shop group by 1"
    found = query(jetstream, f"{counted} order by 1")
    assert [each["stream"] for each in found] == ["shop-0", "shop-1", "shop-2"]
    assert sum(int(str(each["n"])) for each in found) == RECORDS
    assert all(each["n"] == each["v"] for each in found)
    joined = "select count(*) n from shop a join shop b using (key) cross join alone"
    assert query(jetstream, joined) == [{"n": RECORDS}]
    assert query(jetstream, "select count(*) n from shop", "--from", "-2") == [{"n": 6}]
    said = jetstream.run("sql", "select 1 from shopp", code=3)
    assert "there is no stream 'shopp'" in said
    said = jetstream.run("sql", "select 1 from shop", "--from", "3", code=2)
    assert "'shop' is a group of streams" in said


def test_a_group_is_exported_to_one_file(jetstream: Command, tmp_path: Path) -> None:
    out = jetstream("export shop")
    rows = [json.loads(line) for line in out.splitlines()]
    assert values(out) == list(range(RECORDS))
    assert [each["stream"] for each in rows] == sorted(each["stream"] for each in rows)
    for name in ("shop-0", "shop-1", "shop-2"):
        offsets = [each["offset"] for each in rows if each["stream"] == name]
        assert offsets == list(range(len(offsets)))
    path = tmp_path / "shop.parquet"
    jetstream(f"export shop -o {path}")
    table = parquet.read_table(path)
    assert sorted(map(int, table["value"].to_pylist())) == list(range(RECORDS))
    assert set(table["stream"].to_pylist()) == {"shop-0", "shop-1", "shop-2"}
    assert len(jetstream("export shop --from -1").splitlines()) == 3
    assert "'shop' is a group of streams" in jetstream("export shop --from 3", code=2)
    assert "there is no stream 'shopp'" in jetstream("export shopp", code=3)


def test_a_group_is_backed_up_and_restored_as_a_whole(
    client: Client, jetstream: Command, tmp_path: Path
) -> None:
    client.create_group("kept", "kept.>", streams=3, max_age=3600.0)
    for number in range(RECORDS):
        client.publish("kept.x", b"%d" % number, key=f"k{number}")
    folder = tmp_path / "kept"
    said = jetstream(f"stream backup kept {folder}")
    assert [line.split(" ")[5].rstrip(",") for line in said.splitlines()] == [
        "kept-0",
        "kept-1",
        "kept-2",
    ]
    assert folder.stat().st_mode & 0o777 == 0o700
    client.publish("kept.x", b"%d" % RECORDS, key="k0")
    jetstream(f"stream backup kept {folder}")  # Only what is new.
    before = {each.name: each.high_watermark for each in client.describe_keyed_group("kept")}
    client.delete_keyed_group("kept")
    said = jetstream(f"stream restore {folder}")
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "restored kept-0",
        "restored kept-1",
        "restored kept-2",
    ]
    after = client.describe_keyed_group("kept")
    assert {each.name: each.high_watermark for each in after} == before
    assert [each.max_age for each in after] == [3600.0] * 3
    assert values(jetstream("export kept")) == list(range(RECORDS + 1))
    result = client.publish("kept.x", b"more", key="k0")
    assert result.offset == before[result.stream]
    client.delete_keyed_group("kept")
    jetstream(f"stream restore {folder / 'kept-0'}")  # One of them alone.
    said = jetstream(f"stream restore {folder}")  # What is there already does no harm.
    assert len(said.splitlines()) == 3


def test_what_is_no_backup_of_a_group_is_said(jetstream: Command, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    said = jetstream(f"stream backup shop {tmp_path}/shop.parquet", code=2)
    assert "say a folder" in said
    jetstream(f"stream backup alone {tmp_path}/alone")
    assert "holds the backup of one stream" in jetstream(
        f"stream backup shop {tmp_path}/alone", code=2
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "holds no backup" in jetstream(f"stream backup shop {tmp_path}/other", code=2)
    jetstream(f"stream backup shop {folder}")
    assert "to give it another name" in jetstream(f"stream restore {folder} x", code=2)
    shutil.rmtree(folder / "shop-1")
    said = jetstream(f"stream restore {folder}", code=1)
    assert "lacks the backups of partitions [1] of 3 of group 'shop'" in said
    # Folders of several streams that are no group are not restored by accident.
    shutil.copytree(tmp_path / "alone", folder / "alone")
    assert "holds no backup" in jetstream(f"stream restore {folder}", code=2)


def test_the_replicas_of_a_group_are_compared(jetstream: Command) -> None:
    said = jetstream("stream digest shop")
    assert [line for line in said.splitlines() if line.endswith(":")] == [
        "shop-0:",
        "shop-1:",
        "shop-2:",
    ]
    found = [json.loads(line) for line in jetstream("stream digest shop --json").splitlines()]
    assert [(each["stream"], each["equal"]) for each in found] == [
        ("shop-0", True),
        ("shop-1", True),
        ("shop-2", True),
    ]
    assert "shop" not in jetstream("stream digest alone")
