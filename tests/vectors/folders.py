"""A node's data folder as a release left it. `python -m tests.vectors.folders 0.2.0` writes one.

It is never written again: what a release has left, every later one opens
(docs/compatibility.md). Beside the folder's archive stands what is in it, as JSON.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from jetstream_client import Client, Messages
from tests.support.server import ServerProcess

FOLDERS = Path(__file__).parent / "folders"


def contents(client: Client) -> dict[str, Any]:
    """Everything that a reader can see of it, as JSON has it."""
    streams = {}
    for stream in client.list_streams():
        streams[stream.name] = {
            "subject": stream.subject,
            "max_messages": stream.max_messages,
            "compact": stream.compact,
            "group": stream.group,
            "flush": stream.flush,
            "records": _records(client.fetch(stream.name)),
        }
    cursors = {each.name: [each.stream, each.offset] for each in client.list_cursors()}
    return {"streams": streams, "cursors": cursors}


def _records(messages: Messages) -> list[list[Any]]:
    return [
        [
            each.offset,
            each.timestamp_us,
            each.subject,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
            each.header_block.decode(),
        ]
        for each in messages
    ]


def fill(client: Client) -> None:
    client.create_stream("orders", "orders.>", max_messages=1_000_000, flush="group")
    for number in range(20):
        client.publish(
            f"orders.{number % 3}", b"order %d" % number, key=f"k{number % 5}",
            headers={"Trace": f"t-{number}"}, msg_id=f"id-{number}",
        )  # fmt: skip
    client.publish("orders.0", None, key="k0")
    for compression in (None, "zstd", "lz4"):
        name = f"batched-{compression or 'plain'}"
        client.create_stream(name, name, flush="interval")
        with client.publisher(name, compression=compression) as publisher:  # type: ignore[arg-type]
            for number in range(200):
                publisher.send(b"record %d of a batch" % number)
    client.create_stream("latest", "latest.>", compact=True, tombstone_grace=3600 * 24 * 365 * 90)
    for number in range(10):
        client.publish(f"latest.{number % 2}", b"%d" % number, key=f"k{number % 2}")
    client.create_stream("jobs-0", "jobs.>", group="jobs")
    client.publish("jobs.new", b"job")
    client.create_stream("empty", "empty")
    client.commit_cursor("billing", "orders", 7, metadata="kept")
    client.commit_cursor("audit", "batched-zstd", 150)


def write(version: str) -> None:
    archive = FOLDERS / f"{version}.tar.gz"
    assert not archive.exists(), "what was left is never written again"
    FOLDERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        server = ServerProcess(data).start()
        with Client(server.grpc) as client:
            fill(client)
            found = contents(client)
        assert server.stop() == 0
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(data, "data", filter=_anonymous)
    (FOLDERS / f"{version}.json").write_text(json.dumps(found) + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without whose files they were. NATS's own files are none of ours."""
    if member.name.startswith("data/nats/"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    write(sys.argv[1])
