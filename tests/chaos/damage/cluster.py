"""A real cluster whose files are damaged: small segments, and starts that may be refused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from examples.cluster.local import LocalCluster, node_name
from examples.cluster.processes import ClusterError
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.node.config import split_address
from tests.chaos.damage.copies import Copy, Reader
from tests.chaos.damage.streams import SEGMENT_BYTES, STREAMS, Stream
from tests.support import snapshotting_server
from tests.support.api import call
from tests.support.cluster import TestCluster

START_SECONDS = 120.0
FIRST_SECONDS = 180.0
LEAD_SECONDS = 5.0
ORPHAN = "died already"
"""How a child of a server that was killed ends, at any time, on the log of that server."""


class _Local(LocalCluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = snapshotting_server.command()
        self._known: tuple[int, dict[str, Any]] = (0, {})

    @property
    def config(self) -> dict[str, Any]:
        """Asked for all the time, and hardly ever changed."""
        written_at = self.config_file.stat().st_mtime_ns
        if self._known[0] != written_at:
            self._known = written_at, super().config
        return self._known[1]

    def runs(self, node: int) -> bool:
        return self.processes.pid(node_name(node)) is not None


class DamagedCluster(TestCluster):
    """`start` gives it the streams; `older` keeps copies of the data folders."""

    kind = _Local

    def __init__(self, directory: Path, replicas: int) -> None:
        super().__init__(directory, replicas)
        self.replicas = replicas
        self.stream_ids: dict[str, int] = {}
        self._reader = Reader()
        config = self.cluster.config
        config["log"] = {"segment_bytes": SEGMENT_BYTES}
        self.cluster.config_file.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        self.cluster.start_nats()
        for node in self.nodes:
            self.launch(node)
        for node in self.nodes:
            reason = self.begin(node, FIRST_SECONDS)
            assert not reason, f"a new node {node} does not serve: {reason}"
        for stream in STREAMS:
            made = self.api(0).create(stream.name, stream.name, **stream.config(self.replicas))
            self.stream_ids[stream.name] = made.stream.id

    def data(self, node: int) -> Path:
        return self.cluster.directory / node_name(node)

    def older(self, node: int) -> Path:
        return self.cluster.directory / "older" / node_name(node)

    def log_path(self, node: int) -> Path:
        return self.cluster.directory / f"{node_name(node)}.log"

    def keep_older(self) -> None:
        """From now on an older copy is what the folders hold now."""
        for node in self.nodes:
            copy_folder(self.data(node), self.older(node))

    def launch(self, node: int) -> None:
        """Start its process, once nobody else has its ports: other tests may while it is down."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.cluster.start_node(node)
                return
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def begin(self, node: int, seconds: float = START_SECONDS) -> str:
        """Start a node; "" when it serves, its last words when it has ended instead, or why it is
        not ready."""
        self.launch(node)
        deadline = time.monotonic() + seconds
        while reason := self.cluster.why_not_ready(node):
            if not self.is_running(node):
                return self.last_words(node)
            if time.monotonic() > deadline:
                return f"not ready after {seconds:.0f} s: {reason}"
            time.sleep(0.03)
        return ""

    def is_running(self, node: int) -> bool:
        assert isinstance(self.cluster, _Local)
        return self.cluster.runs(node)

    def last_words(self, node: int) -> str:
        lines = self.log_path(node).read_text(errors="replace").strip().splitlines()
        own = [line for line in lines if not line.endswith(ORPHAN)]
        return own[-1] if own else ""

    def lead(self, node: int) -> None:
        """Move what leaderships can be moved to the node."""
        deadline = time.monotonic() + LEAD_SECONDS
        for stream in STREAMS:
            ref = common_pb2.StreamRef(name=stream.name)
            request = pb.TransferLeaderRequest(stream=ref, node_id=node)
            while time.monotonic() < deadline:
                try:
                    call(self.api(node).cluster.TransferLeader, request)
                    break
                except Exception:  # noqa: BLE001  not in sync yet, or a call that broke off
                    time.sleep(0.2)

    def copy(self, node: int, stream: Stream) -> Copy:
        """What that node serves of the stream."""
        address = split_address(self.cluster.config["nodes"][node]["data"])
        return self._reader.read(address, node, stream, self._bases(node, stream))

    def _bases(self, node: int, stream: Stream) -> tuple[int, ...]:
        """With one replica: where segments begin, to read on after what is damaged."""
        if self.replicas > 1:
            return ()
        folder = self.data(node) / "streams" / str(self.stream_ids[stream.name])
        return tuple(int(path.stem) for path in sorted(folder.glob("*.log")))

    def unwell(self, stream: Stream) -> str:
        """Why the stream is not whole, as its leader reports; "" if it is whole."""
        try:
            found = self.describe(stream.name)
        except AssertionError as error:
            return f"{error} ({error.__cause__})"
        if sorted(found.stream.isr) != self.nodes:
            return f"the ISR is {sorted(found.stream.isr)}, state {found.state!r}"
        if found.state != "online":
            return f"state {found.state!r}"
        if found.high_watermark < found.log_end_offset:
            return f"committed up to {found.high_watermark} of {found.log_end_offset}"
        return ""

    def state(self, stream: Stream) -> str:
        """Of a stream with one replica: what `describe` says; "" when it is online."""
        try:
            found = self.describe(stream.name)
        except (AssertionError, JetstreamError) as error:
            return f"{error} ({error.__cause__})"
        return "" if found.state == "online" else found.state


def copy_folder(source: Path, target: Path) -> None:
    """As it is at the moment; files that vanish meanwhile are left out."""
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        try:
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)
        except FileNotFoundError:
            continue
