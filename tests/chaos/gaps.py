"""How long publishers wait for a new leader, and what hand-overs cost: see `main`.

Three real nodes under load. Each round a stream's leader is killed or frozen, as metadata leader
too (`+controller`) or not; the gap is the longest time without an acknowledgement. Then leaderships
are handed over, under a publisher with acks and one without. Books are held against the logs.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.chaos.partitions import take_places
from tests.support.api import call
from tests.support.cluster import TestCluster, running_cluster
from tests.support.load import Load

KINDS = ("kill", "kill+controller", "freeze", "freeze+controller")
PAUSE_SECONDS = 1.0
"""Between healing and the next fault: sessions are held, leaders known."""
CORE_PAUSE_SECONDS = 0.0005


def lead(cluster: TestCluster, name: str, node: int) -> None:
    """Have the node lead the stream."""
    request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=name), node_id=node)
    call(cluster.api(cluster.nodes[0]).cluster.TransferLeader, request)
    cluster.wait_for(f"node {node} leads", lambda: cluster.describe(name).stream.leader == node)


def fail(cluster: TestCluster, load: Load, kind: str) -> float:
    """One fault and its repair. Returns the gap in seconds."""
    cluster.wait_for_isr("orders", cluster.nodes)
    time.sleep(PAUSE_SECONDS)
    victim, _ = take_places(cluster, kind.endswith("+controller"), "orders")
    load.wait_for_acks(200)
    kills = kind.startswith("kill")
    failed_at = time.monotonic()
    (cluster.kill if kills else cluster.freeze)(victim)
    load.wait_for_acks(300)
    gap = load.books.longest_gap(failed_at)
    (cluster.restart if kills else cluster.thaw)(victim)
    return gap


class CorePublisher:
    """Publishes numbers without asking for acks; knows when each was sent."""

    def __init__(self, nats_url: str, subject: str) -> None:
        host, _, port = nats_url.removeprefix("nats://").partition(":")
        self.sent_at: list[float] = []
        self._subject = subject.encode()
        self._socket = socket.create_connection((host, int(port)), timeout=5)
        self._socket.sendall(b'CONNECT {"verbose":false}\r\n')
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            while due <= now:
                value = b"%d" % len(self.sent_at)
                line = b"PUB %s %d\r\n%s\r\n" % (self._subject, len(value), value)
                self._socket.sendall(line)
                self.sent_at.append(now)
                due += CORE_PAUSE_SECONDS
            time.sleep(CORE_PAUSE_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        time.sleep(0.5)  # What is on its way arrives.
        self._socket.close()


def hand_over(cluster: TestCluster, load: Load, count: int) -> None:
    """Hand two streams over again and again, and say what was lost of the one without acks."""
    cluster.api(0).create("core", "core")
    core = CorePublisher(cluster.nats, "core")
    gaps = []
    for turn in range(count):
        for name in ("core", "orders"):
            cluster.wait_for_isr(name, cluster.nodes, 60)
            leader = cluster.describe(name).stream.leader
            lead(cluster, name, cluster.nodes[(leader + 1 + turn % 2) % 3])
            gaps.append(cluster.describe(name).hand_over_gap_us / 1000)
        time.sleep(0.1)
    core.stop()
    load.wait_for_acks(200, 60)
    end = cluster.describe("core").high_watermark
    leader = cluster.describe("core").stream.leader
    stored = {int(value or b"") for value in cluster.api(leader).values_upto("core", end)}
    lost = len(core.sent_at) - len(stored)
    print(
        f"{len(gaps)} hand-overs: told gap median {statistics.median(gaps):.1f} ms, worst "
        f"{max(gaps):.1f} ms; without acks {lost} of {len(core.sent_at)} messages lost"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.gaps")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind of failure")
    parser.add_argument("--hand-overs", type=int, default=12, help="of each of two streams")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder) / "c") as cluster:
        cluster.api(0).create("orders", "orders")
        load = Load(cluster.nats, "orders", window=64).start()
        load.wait_for_acks(200, 60)
        if arguments.hand_overs:
            hand_over(cluster, load, arguments.hand_overs)
        gaps: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for kind in KINDS:
                gaps.setdefault(kind, []).append(fail(cluster, load, kind))
        load.wait_for_acks(200, 60)
        cluster.check_everywhere("orders", load.stop())
    for kind, seconds in gaps.items():
        print(
            f"{kind:18} median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s "
            f"of {len(seconds)}"
        )


if __name__ == "__main__":
    main()
