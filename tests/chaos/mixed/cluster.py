"""A real cluster on which everything can be disturbed: processes, links, clocks, disks, files."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from examples.cluster.local import NATS, node_name
from examples.cluster.processes import ClusterError
from jetstream_protocol.errors import JetstreamError
from jetstream_server.node.config import split_address
from tests.chaos.damage.copies import Copy, Reader
from tests.chaos.damage.streams import SEGMENT_BYTES, Stream
from tests.chaos.mixed.streams import GROUP, SHARED, STREAMS
from tests.support import faulty_server
from tests.support.breaking_server import break_disk
from tests.support.clocked_server import set_clock
from tests.support.fault_cluster import FaultCluster, RoutedCluster

REPLICAS = 3
START_SECONDS = 90.0
WHOLE_SECONDS = 60.0
LOOK_SECONDS = 0.3


class _Faulty(RoutedCluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (self.directory / "faults").mkdir(parents=True, exist_ok=True)
        self.server = faulty_server.command(self.directory / "faults")


class MixedCluster(FaultCluster):
    """`start` gives it the streams. `heal` ends every disturbance."""

    kind = _Faulty

    def __init__(self, directory: Path, nodes: int) -> None:
        super().__init__(directory, nodes)
        self._faults = self.cluster.directory / "faults"
        for node in self.nodes:
            self.set_clock(node, 0)
        config = yaml.safe_load(self.cluster.node_config_file.read_text())
        config["log"] = {"segment_bytes": SEGMENT_BYTES}
        self.cluster.node_config_file.write_text(yaml.safe_dump(config))
        self._reader = Reader()
        self._data = {
            node["id"]: split_address(node["data"]) for node in self.cluster.config["nodes"]
        }
        self.frozen: set[int] = set()

    def start(self) -> None:
        super().start()
        for stream in STREAMS:
            self.api(0).create(stream.name, stream.name, **stream.config(REPLICAS))
        for name in SHARED:
            self.api(0).create(name, GROUP, replicas=REPLICAS, group=GROUP)

    # What is done to it.

    def set_clock(self, node: int, microseconds: int) -> None:
        set_clock(faulty_server.clocks_file(self._faults), node, microseconds)

    def break_disk(self, node: int, *faults: str) -> None:
        break_disk(faulty_server.disks_folder(self._faults), node, *faults)

    def cut_from_nats(self, node: int) -> None:
        self.network.cut(node_name(node), NATS, NATS)

    def freeze(self, node: int) -> None:
        super().freeze(node)
        self.frozen.add(node)

    def thaw(self, node: int) -> None:
        if node in self.frozen:
            self.frozen.discard(node)
            super().thaw(node)

    def data(self, node: int) -> Path:
        return self.cluster.directory / node_name(node)

    def is_running(self, node: int) -> bool:
        return self.cluster.processes.pid(node_name(node)) is not None

    def last_words(self, node: int) -> str:
        return self.cluster.processes.last_words(node_name(node))

    def launch(self, node: int) -> None:
        """Start its process, once its ports are free; it need not serve yet."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.cluster.start_node(node)
                break
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        if node in self._apis:
            self._apis.pop(node).close()

    def heal(self) -> None:
        """Every process runs, every link is whole, every disk works. Clocks stay as they are."""
        self.network.heal()
        for node in self.nodes:
            self.thaw(node)
            self.break_disk(node)
            if not self.is_running(node):
                self.launch(node)

    # How it is.

    def why_not_whole(self) -> str:
        """ "" when all replicas of all streams are in sync and everything is committed."""
        for node in self.nodes:
            if not self.is_running(node):
                return f"node {node} has ended: {self.last_words(node)}"
        for name in (*(each.name for each in STREAMS), *SHARED):
            try:
                found = self.describe(name)
            except (AssertionError, JetstreamError) as error:
                return f"{name}: {error} ({error.__cause__})"
            if sorted(found.stream.isr) != sorted(found.stream.replicas):
                return f"{name}: the ISR is {sorted(found.stream.isr)}"
            if found.state != "online":
                return f"{name}: state {found.state!r}"
            if found.stream.target_replicas:
                return f"{name}: moves to {list(found.stream.target_replicas)}"
        return ""

    def wait_until_whole(self, seconds: float = WHOLE_SECONDS) -> str:
        """Why it is not, after so long; "" when it is. A node that has ended is started again."""
        deadline = time.monotonic() + seconds
        while reason := self.why_not_whole():
            if time.monotonic() > deadline:
                return f"not whole after {seconds:.0f} s: {reason}"
            for node in self.nodes:
                if not self.is_running(node):
                    self.launch(node)
            time.sleep(LOOK_SECONDS)
        return ""

    def copies(self, stream: Stream) -> list[Copy]:
        """What each replica serves. Raises JetstreamError, OSError, EOFError."""
        replicas = sorted(self.describe(stream.name).stream.replicas)
        return [self._reader.read(self._data[node], node, stream) for node in replicas]
