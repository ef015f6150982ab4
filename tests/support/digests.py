"""`stream digest` while a stream is compacted."""

from __future__ import annotations

import json
from typing import Any

from jetstream_client import Client
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.overtaking import COMPACTED_SECONDS


def check_digests_while_compacting(cluster: TestCluster, client: Client, name: str) -> None:
    """Make the stream, and publish to it until replicas have compacted much of it. The command, run
    again and again, says that they are equal; of one that stands still it says so."""
    client.create_stream(name, f"{name}.>", segment_bytes=65_536, compact=True, replicas=3)
    client.publish(f"{name}.a", b"without a key: it stays")
    looked: list[dict[str, Any]] = []

    def is_compacted() -> bool:
        with client.publisher(f"{name}.a", linger=0) as publisher:
            values = [b"%d" % len(looked) * 500 for _ in range(500)]
            publisher.publish_many(values, keys=[b"key-%d" % (each % 50) for each in range(500)])
        done = command.jetstream("--server", cluster.servers, "stream", "digest", name, "--json")
        looked.append(json.loads(done.stdout))
        return bool(looked[-1]["bytes_from"] > 2_000)

    cluster.wait_for("compaction", is_compacted, COMPACTED_SECONDS)
    replicas = [replica for each in looked for replica in each["replicas"]]
    assert [each for each in replicas if each["differs_at"] or each["by_key"]] == []
    assert any(each["equal"] for each in looked)
