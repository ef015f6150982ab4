"""The benchmarks run end to end, and say what was asked of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nats_socket import NatsSocket
from benchmarks.read_jetstream import OrderedReader

TREE = Path(__file__).parents[2]


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "benchmarks", *arguments, "--json"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("benchmark", "messages"), [("ingest", "50000"), ("read", "5000")])
def test_a_benchmark_prints_both_rates_and_their_ratio(benchmark: str, messages: str) -> None:
    report = run(benchmark, "--pairs", "1", "--messages", messages, "--sizes", "16")
    (result,) = report["results"]
    if benchmark == "ingest":  # And what a message takes of the processor.
        assert min(result[name] for name in ("ours_nodes_us", "ours_nats_us", "peer_us")) > 0
    assert result["size"] == 16
    assert result["ours"] > 0
    assert result["peer"] > 0
    assert result["ratio"] == pytest.approx(result["ours"] / result["peer"], abs=0.01)
    assert "flush: group" in report["ours"]
    assert "sync_interval" in report["peer"]


def test_ingest_with_replicas_says_what_replication_costs_each_side() -> None:
    report = run("ingest", "--pairs", "1", "--messages", "5000", "--sizes", "16", "--replicas", "3")
    (result,) = report["results"]
    for side in ("ours", "peer"):
        kept = result[side] / result[f"{side}_rf1"]
        assert result[f"{side}_over_rf1"] == pytest.approx(kept, abs=0.01)
    assert "3 replicas" in report["ours"]
    assert "flush: interval" in report["ours"]


def test_publishing_is_measured_by_each_api_of_either_side() -> None:
    report = run("publish", "--pairs", "1", "--seconds", "0.3", "--replicas", "1")
    (result,) = report["results"]
    assert min(result[side] for side in ("send", "many", "nats_py", "raw")) > 0
    ratio = result["many"] / result["nats_py"]
    assert result["many_over_nats_py"] == pytest.approx(ratio, abs=0.01)


def test_commits_of_cursors_are_measured_by_what_they_take_of_the_node() -> None:
    report = run("cursors", "--cursors", "50", "--seconds", "1")
    assert [result["load"] for result in report["results"]] == ["shared", "single"]
    assert all(result["commit_us"] > 0 and result["rate"] > 0 for result in report["results"])


def test_latency_is_given_in_percentiles_for_each_number_of_replicas() -> None:
    report = run("latency", "--pairs", "1", "--messages", "50", "--replicas", "1,3")
    assert [result["replicas"] for result in report["results"]] == [1, 3]
    for result in report["results"]:
        for side in ("ours", "peer"):
            assert 0 < result[f"{side}_p50_us"] <= result[f"{side}_p99_us"]


def test_idle_streams_are_watched_on_every_node() -> None:
    few = ("--created", "5", "--idle", "10", "--peer-idle", "5")
    report = run("streams", *few, "--settle", "0.1", "--watch", "0.5")
    nodes = [(r["side"], r["replicas"], len(r["cpu_percent"])) for r in report["results"]]
    assert nodes == [("ours", 1, 1), ("peer", 1, 1), ("ours", 3, 3), ("peer", 3, 3)]
    assert all(min(result["resident_bytes"]) > 0 for result in report["results"])


class FakeSocket:
    """Takes what the reader answers; nothing is sent anywhere."""

    def __init__(self) -> None:
        self.socket = self
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data


def delivery(sequence: int, payload: bytes) -> bytes:
    reply = f"$JS.ACK.S.C.1.{sequence}.{sequence}.1700000000000000000.0"
    return f"MSG s 1 {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"


def reader() -> tuple[OrderedReader, FakeSocket]:
    fake = FakeSocket()
    client: NatsSocket = fake  # type: ignore[assignment]  # only its socket is used
    return OrderedReader(client), fake


def test_the_peers_reader_counts_across_any_cut() -> None:
    data = b"".join(delivery(n, b"x" * n) for n in range(1, 12))
    for cut in range(len(data)):
        ordered, _ = reader()
        ordered.feed(data[:cut])
        ordered.feed(data[cut:])
        assert (ordered.messages, ordered.bytes) == (11, 66)


def test_the_peers_reader_notices_a_gap() -> None:
    ordered, _ = reader()
    with pytest.raises(RuntimeError, match="gap"):
        ordered.feed(delivery(1, b"a") + delivery(3, b"c"))


def test_the_peers_reader_answers_flow_control() -> None:
    ordered, fake = reader()
    block = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    line = b"HMSG s 1 $JS.FC.S.C.1 %d %d\r\n" % (len(block), len(block))
    ordered.feed(delivery(1, b"a") + line + block + b"\r\n" + delivery(2, b"b"))
    assert fake.sent == b"PUB $JS.FC.S.C.1 0\r\n\r\n"
    assert ordered.messages == 2
