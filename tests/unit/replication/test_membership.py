"""What a node says of its logs when it registers: what recovery and the record of runs found."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

from jetstream_protocol.types import NodeId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import view
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.inspection import BadRange
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import RegisterNode
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.membership import Membership
from jetstream_server.replication.run_record import RunRecordFile
from tests.support.log_disk import FaultyDisk
from tests.support.loops import on_loop
from tests.support.node import Node
from tests.unit.metadata.cluster import ADDRESSES, Cluster

ME = NodeId(0)


class Metadata:
    """A group of one that applies at once."""

    is_alone = False

    def __init__(self, cluster: Cluster) -> None:
        self.registry = cluster.registry
        self._cluster = cluster
        self.proposed: RegisterNode | None = None

    def attach(self, extension: object) -> None:
        pass

    async def propose(self, command: RegisterNode) -> dict[str, Any]:
        self.proposed = command
        return self._cluster.do(command)


class Bench:
    """Node 0 of three, which is restarted with its disk as it is then."""

    def __init__(self, tmp_path: Path) -> None:
        self.disk = FaultyDisk(OsDisk())
        self.node = Node(tmp_path / "streams", disk=self.disk, nodes=3)
        self.runs = RunRecordFile(self.disk, str(tmp_path / "runs"), "cluster/0")
        self._begin("before", "boot")
        self.node.cluster.do(
            RegisterNode(node_id=0, session="before", addresses=ADDRESSES, replaces="session-0")
        )
        self.runs.registered("before")
        self.node.start()
        self.stream = self.node.create(replicas=(0, 1, 2), config={"flush": "none"}).stream

    def _begin(self, session: str, boot_id: str) -> None:
        self.runs.begin(session, boot_id)

    @property
    def folder(self) -> Path:
        return self.node.folder / str(self.stream.id)

    async def register(self, *, boot_id: str = "boot") -> StreamMetadata:
        """Start again, and say so. Returns the stream as the metadata has it then."""
        self._begin("after", boot_id)
        metadata = Metadata(self.node.cluster)
        membership = Membership(
            cast(RaftMetadataLog, metadata), node_id=0, session="after", lost=lambda: None
        )
        replicas = self.node.open()
        await membership.register(replicas, self.runs, rack="", addresses=ADDRESSES)
        assert metadata.proposed is not None
        self.told = metadata.proposed
        return self.node.cluster.now(self.stream)

    def stay_behind(self) -> None:
        """The others leave the ISR, so that a trusted replica stays eligible."""
        self.node.cluster.change_isr(self.stream, (0,))


@on_loop
async def test_a_node_whose_page_cache_survived_vouches_for_its_logs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.node.append(bench.node.replica(bench.stream), b"x", flush=False)
    stream = await bench.register()
    assert (bench.told.trusted, bench.told.distrusted) == (True, ())
    assert ME not in stream.isr


@on_loop
async def test_a_node_that_lost_power_vouches_for_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stay_behind()
    stream = await bench.register(boot_id="another")
    assert bench.told.trusted is False
    assert ME not in (*stream.isr, *stream.elr, stream.leader)


@on_loop
async def test_a_node_does_not_vouch_for_a_log_that_failed_or_is_damaged(tmp_path: Path) -> None:
    for harm in ("failed", "damaged"):
        (tmp_path / harm).mkdir()
        bench = Bench(tmp_path / harm)
        replica = bench.node.replica(bench.stream)
        for value in (b"a", b"b", b"c"):
            bench.node.append(replica, value, flush=False)
        if harm == "failed":
            bench.disk.fail("fsync", ".log", errno.EIO)
            replica.flush()
            bench.node.flushes.run()
            bench.disk.heal()
            bench.runs = RunRecordFile(bench.disk, str(tmp_path / harm / "runs"), "cluster/0")
        else:
            file = bench.folder / f"{0:020d}.log"
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        bench.stay_behind()
        stream = await bench.register()
        assert bench.told.distrusted == (bench.stream.id,)
        assert ME not in (*stream.isr, *stream.elr, stream.leader)


def mark(log: CommitLog) -> None:
    """As if the device could not read the log's first segment, which is sealed."""
    log.seal()
    segment = log.damage.segments()[0]
    seen = view(segment)
    bad = BadRange(0, 0, segment.next_offset, 0, segment.size, "the device cannot read it")
    assert log.damage.mark(segment, seen, [bad]) == [bad]
    log.damage.save()


@on_loop
async def test_a_node_does_not_vouch_for_a_log_with_marked_records(tmp_path: Path) -> None:
    """Otherwise it may be elected before a replica that holds them."""
    bench = Bench(tmp_path)
    replica = bench.node.replica(bench.stream)
    bench.node.append(replica, b"a", b"b", flush=False)
    mark(replica.log)
    bench.stay_behind()
    stream = await bench.register()
    assert bench.told.distrusted == (bench.stream.id,)
    assert ME not in (*stream.isr, *stream.elr, stream.leader)


@on_loop
async def test_a_node_vouches_for_the_only_log_of_a_stream_whatever_is_marked_in_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    replica = bench.node.create("alone", "alone.>")
    bench.node.append(replica, b"a", b"b", flush=False)
    mark(replica.log)
    await bench.register()
    assert bench.told.distrusted == ()
    stream = bench.node.cluster.now(replica.stream)
    assert (stream.leader, stream.lossy_elections) == (ME, 0)


@on_loop
async def test_a_folder_of_another_run_is_noted_before_its_node_registers(tmp_path: Path) -> None:
    """From then on the sessions agree, and nothing else tells that empty logs were not empty."""
    bench = Bench(tmp_path)
    bench.runs = RunRecordFile(bench.disk, str(tmp_path / "other"), "cluster/0")
    before = bench.runs.record.replaced_through
    await bench.register()
    assert bench.told.trusted is False
    assert before < bench.stream.id <= bench.runs.record.replaced_through
    noted = RunRecordFile(bench.disk, str(tmp_path / "other"), "cluster/0").record
    assert noted.replaced_through == bench.runs.record.replaced_through
