"""What a real node says of its own files that are damaged or gone, and what it does then."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.support.api import Api, raw_nats
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.support.server import ServerProcess
from tests.support.stages import cluster_stage

ACKS = 300
GONE_SECONDS = 60.0


cluster = cluster_stage(scope="function")


def said(log: str, event: str) -> list[dict[str, str]]:
    lines = [line for line in log.splitlines() if f'"{event}"' in line]
    return [json.loads(line) for line in lines]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_each_damaged_state_file_is_said_once_by_name_with_what_is_done_instead(
    tmp_path: Path,
) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    api = Api(server.grpc)
    stream = api.create("orders", "orders", compact=True).stream
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.a")
        nats.publish("orders", b"x", "_INBOX.a", headers=b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n")
        nats.message()
    api.close()
    assert server.stop() == 0
    folder = server.data / "streams" / str(stream.id)
    files = [folder / "checkpoint", Path(f"{folder}.offsets"), server.data / "runs"]
    for file in files:
        flip(file)
    (folder / "compaction").write_bytes(b"rot")
    files.append(folder / "compaction")
    server.start()
    assert server.stop() == 0
    found = said(server.log_text, "state_file_damaged")
    assert sorted(entry["file"] for entry in found) == sorted(map(str, files))
    assert all(entry["reason"] and entry["instead"] for entry in found)
    assert all(entry["level"] == "warning" for entry in found)
    assert {entry.get("stream") for entry in found} == {"orders@orders", None}
    server.start()
    assert server.stop() == 0
    assert len(said(server.log_text, "state_file_damaged")) == len(files)


def test_a_record_of_runs_that_is_missing_or_older_is_said(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    assert server.stop() == 0
    assert not said(server.log_text, "logs_not_believed")
    (server.data / "runs").unlink()
    server.start()
    assert server.stop() == 0
    (entry,) = said(server.log_text, "logs_not_believed")
    assert entry["file"] == str(server.data / "runs")


@pytest.mark.parametrize("way", ["removed", "replaced by an older copy"])
def test_a_node_whose_data_folder_is_taken_away_says_so_hands_over_and_stops(
    cluster: TestCluster, tmp_path: Path, way: str
) -> None:
    cluster.api(0).create("orders", "orders")
    cluster.wait_for_isr("orders", cluster.nodes)
    folder = cluster.cluster.directory / "node-0"
    older = tmp_path / "older"
    shutil.copytree(folder, older)
    load = Load(cluster.nats, "orders").start()
    load.wait_for_acks(ACKS)
    cluster.hand_over("orders", 0)
    load.wait_for_acks(ACKS)
    folder.rename(tmp_path / "taken")
    if way != "removed":
        older.rename(folder)
    deadline = time.monotonic() + GONE_SECONDS
    while "node-0" in cluster.cluster.pids():
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)
    log = cluster.log(0)
    (entry,) = said(log, "data_folder_gone")
    assert str(folder) in entry["reason"]
    assert str(folder) in log.strip().splitlines()[-1]
    assert "put the folder back" in log.strip().splitlines()[-1]
    load.wait_for_acks(ACKS)
    assert folder.exists() == (way != "removed")
    cluster.restart(0)
    cluster.wait_for_isr("orders", cluster.nodes)
    cluster.check_everywhere("orders", load.stop())
