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
    command = [sys.executable, "-m", "benchmarks", *arguments, "--pairs", "1", "--json"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("benchmark", ["ingest", "read"])
def test_a_benchmark_prints_both_rates_and_their_ratio(benchmark: str) -> None:
    report = run(benchmark, "--peer", "jetstream", "--messages", "5000", "--sizes", "16")
    (result,) = report["results"]
    assert result["size"] == 16
    assert result["ours"] > 0
    assert result["peer"] > 0
    assert result["ratio"] == pytest.approx(result["ours"] / result["peer"], abs=0.01)
    assert "flush: group" in report["ours"]
    assert "sync_interval" in report["peer"]


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
