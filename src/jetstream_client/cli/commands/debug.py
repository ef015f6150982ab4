"""`jetstream debug bundle`: one file with what support needs to know. It has no secrets: the
servers leave them out of their answers, and the client's own configuration is not in it.

    cluster.json  health.json  streams.json  client.json
    nodes/N/config.json  metrics.txt  log.jsonl  versions.json      or error.txt
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from jetstream_client.cli import options
from jetstream_client.cli.commands.cluster import cluster_row
from jetstream_client.cli.commands.health import problems_of, unseen
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import printable, stream_row
from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.whole_file import whole_file
from jetstream_client.values.types import ClusterInfo, NodeDebug, StreamDescription
from jetstream_protocol.descriptions import json_value
from jetstream_protocol.errors import JetstreamError

app = options.group("debug")


@app.command()
@common_options(total=False)
def bundle(
    cli: Invocation,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file; -: standard output. Default: jetstream-debug-TIME.tar.gz.",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Write a .tar.gz about the cluster, for support.

    It has descriptions of the cluster and its streams, and of each node its configuration without
    secrets, its metrics and its last log lines. A note names each node whose files it lacks.

    Example: jetstream debug bundle --output bundle.tar.gz
    """
    now = datetime.now(UTC)
    path = output or Path(f"jetstream-debug-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    with cli.client() as client:
        cluster, streams = client.describe_cluster(), client.describe_streams(internal=True)
        files = dict(_files(client, cluster, streams))
        notes = unseen(client, len(streams))
    if path == Path("-"):
        _archive(sys.stdout.buffer, "jetstream-debug", now, files)
    else:
        with whole_file(path, private=True) as file:
            _archive(file, path.name.removesuffix(".tar.gz"), now, files)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    for name, text in files.items():
        if name.endswith("/error.txt"):
            reason = printable(text.strip())
            print(f"note: it has no files of node {name.split('/')[1]}: {reason}", file=sys.stderr)
    if path != Path("-"):
        cli.answer({"file": str(path), "contains": sorted(files)}, f"{path}: {len(files)} files")


def _archive(file: BinaryIO, folder: str, now: datetime, files: dict[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w|gz") as archive:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(data), int(now.timestamp())
            archive.addfile(entry, io.BytesIO(data))


def _files(
    client: Client, cluster: ClusterInfo, streams: Sequence[StreamDescription]
) -> Iterator[tuple[str, str]]:
    yield "cluster.json", _json(cluster_row(cluster))
    yield "streams.json", _json([stream_row(stream) for stream in streams])
    yield "health.json", _json([asdict(problem) for problem in problems_of(cluster, streams)])
    yield "client.json", _json({"version": version("jetstream-log")})
    yield from _of_nodes(client, cluster)


def _of_nodes(client: Client, cluster: ClusterInfo) -> Iterator[tuple[str, str]]:
    for node in cluster.nodes:
        try:
            answer = client.debug_node(node.id)
        except JetstreamError as error:
            yield f"nodes/{node.id}/error.txt", f"{error.message}\n"
        else:
            for name, text in _of_node(answer):
                yield f"nodes/{node.id}/{name}", text


def _of_node(answer: NodeDebug) -> Iterator[tuple[str, str]]:
    yield "config.json", _json(answer.config)
    yield "versions.json", _json(answer.versions)
    yield "metrics.txt", answer.metrics
    yield "log.jsonl", "".join(f"{line}\n" for line in answer.log)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=json_value) + "\n"
