"""The local cluster and its demonstration of a failover do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.cluster.local import PORTS_BETWEEN_NODES, LocalCluster
from examples.cluster.publisher import Books, judge
from tests.support.server import free_port_base

TREE = Path(__file__).parents[2]


def cluster_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.cluster", *arguments],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_a_cluster_is_started_looked_at_broken_mended_and_stopped(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path / "cluster"))
    base = free_port_base(PORTS_BETWEEN_NODES * 3)
    cluster = LocalCluster(tmp_path / "cluster")
    try:
        up = cluster_command("up", *folder, "--port-base", str(base))
        assert up.returncode == 0, up.stderr
        assert f"JETSTREAM_SERVERS=127.0.0.1:{base},127.0.0.1:{base + 10}," in up.stdout
        assert cluster_command("status", *folder).stdout.count("running") == 4
        nats = cluster.pids()["nats"]
        assert cluster_command("kill", "1", *folder).returncode == 0
        status = cluster_command("status", *folder).stdout.splitlines()
        assert status[1] == f"node 1  127.0.0.1:{base + 10}  stopped"
        assert "node 1 is not running" in cluster_command("kill", "1", *folder).stderr
        assert cluster_command("start", "1", *folder).returncode == 0
        assert cluster.pids()["nats"] == nats
        for command in ("start", "kill"):
            assert "there is no node 7" in cluster_command(command, "7", *folder).stderr
        assert cluster_command("down", *folder, "--delete").returncode == 0
        assert cluster.pids() == {}
        assert not cluster.directory.exists()
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "command", [("status",), ("kill", "0"), ("start", "0"), ("down",)], ids=lambda words: words[0]
)
def test_a_folder_without_a_cluster_says_how_to_make_one(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = one_line(*command, "--dir", str(tmp_path / "nothing"))
    assert "scripts/cluster up" in said


def test_a_folder_that_cannot_hold_a_cluster_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in one_line("up", "--dir", str(tmp_path / "file" / "cluster"))
    (tmp_path / "cluster.yaml").write_text("nodes: [")
    assert "cluster.yaml is damaged" in one_line("up", "--dir", str(tmp_path))


def one_line(*arguments: str) -> str:
    done = cluster_command(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_processes_of_others_are_left_alone_even_under_a_remembered_id(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    (tmp_path / "processes.json").write_text(f'{{"node-0": {os.getpid()}}}')
    assert cluster.pids() == {}
    assert not cluster.kill_node(0)


def test_the_failover_demo_finds_nothing_lost() -> None:
    done = cluster_command("demo", "--rate", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing acknowledged was lost" in done.stdout
    assert "is back in the ISR" in done.stdout


def test_the_verdict_tells_loss_from_doubt() -> None:
    books = Books(published=6, acked={0: 0, 1: 1, 2: 2}, refused={3}, unknown={4, 5})
    good = judge(books, [0, 1, 2, 5])
    assert good.is_good
    assert (good.lost, good.unknown, good.unknown_stored) == (0, 2, 1)
    assert judge(books, [0, 1, 5]).lost == 1
    assert judge(books, [0, 2, 1]).lost == 2
    assert not judge(books, [0, 1, 2, 2]).is_good
    assert not judge(books, [0, 1, 2, 3]).is_good
