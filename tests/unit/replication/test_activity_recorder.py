"""The recorder of activity on one node: which events of the outbox go into the log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from jetstream_protocol.batch import encode, iterate
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import FEATURE_LEVEL_MAX, SetCluster, TrimActivity
from jetstream_server.replication.drivers.activity_recorder import (
    SETTINGS,
    SUBJECT,
    ActivityRecorder,
)
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.local_metadata import LocalMetadata
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop


class Metadata(LocalMetadata):
    """A proposal takes a turn of the loop, as any does."""

    async def propose(self, command: Command) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await super().propose(command)


class Recording:
    """Node 0, which leads the stream of activity. The recorder begins with `begin`."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.metadata = Metadata(self.node.cluster)
        self.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        self.node.cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        self.node.open()
        self.node.begin(Listeners())
        self.replica: Replica = self.node.create(ACTIVITY, "", (0,), config=SETTINGS, internal=True)

    def put(self, *sequences: int) -> None:
        """Events that are in the log already."""
        values = [json.dumps({"sequence": each}).encode() for each in sequences]
        self.replica.append(encode(values, SUBJECT))
        self.node.flushes.run()

    def empty(self) -> None:
        """What retention does to records that are all old."""
        log = self.replica.log
        log.seal()
        log.flush()
        log.begin_advance(log.log_end_offset)
        log.finish_advance()

    def begin(self) -> ActivityRecorder:
        recorder = ActivityRecorder(self.node.replicas, cast(RaftMetadataLog, self.metadata))
        recorder.role_changed(self.replica)
        return recorder

    def change(self) -> None:
        """A change of the metadata."""
        self.node.cluster.do(SetCluster(ack_subjects=[f"a{self.node.cluster.registry.revision}"]))

    async def recorded(self, count: int) -> list[dict[str, Any]]:
        """The records of the log, once that many more are there and the outbox is empty."""
        end_offset = self.replica.high_watermark + count

        def is_done() -> bool:
            self.node.flushes.run()
            done = self.replica.high_watermark >= end_offset
            return done and not self.node.cluster.registry.activity.events

        await eventually(is_done)
        found = self.replica.read(self.replica.log.log_start_offset, 1 << 20)
        assert found is not None
        batches = iterate(self.replica.log.pread(found))
        return [json.loads(value or b"") for batch in batches for value in batch.values()]


@on_virtual_loop
async def test_a_log_that_retention_has_emptied_has_lost_no_event(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "streams")
    sequences = range(1, recording.node.cluster.registry.activity.next_sequence)
    recording.put(*sequences)
    recording.node.cluster.do(TrimActivity(through=sequences[-1]))
    recording.empty()
    recording.change()
    recorder = recording.begin()
    (event,) = await recording.recorded(1)
    assert (event["sequence"], event["type"]) == (sequences[-1] + 1, "cluster_changed")
    await recorder.close()


@on_virtual_loop
async def test_a_new_log_says_which_events_were_lost_before_it(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "streams")
    for _ in range(3):
        recording.change()
    recording.node.cluster.do(TrimActivity(through=2))
    recorder = recording.begin()
    lost, *events = await recording.recorded(3)
    assert (lost["type"], lost["first"], lost["last"]) == ("events_lost", 1, 2)
    assert [event["sequence"] for event in events] == [3, 4]
    await recorder.close()


@on_virtual_loop
async def test_after_a_recovery_events_follow_those_that_only_the_lost_voters_knew(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "streams")
    recording.change()
    last = recording.node.cluster.registry.activity.next_sequence - 1
    recording.put(*range(1, last + 10))
    recording.node.cluster.do(SetCluster(recoveries=["t"]))
    recording.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    expected = [json.loads(event) for event in recording.node.cluster.registry.activity.events]
    recorder = recording.begin()
    found = await recording.recorded(1)
    lost, *events = found[last + 9 :]
    assert events == expected[last:]
    assert (lost["type"], lost["first"]) == ("events_lost", last + 10)
    assert lost["last"] == events[0]["sequence"] - 1
    await recorder.close()


@on_virtual_loop
async def test_the_recorder_waits_while_the_metadata_knows_less_than_the_log(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "streams")
    recording.put(*range(1, 100))
    recorder = recording.begin()
    await eventually(lambda: not recording.node.cluster.registry.activity.events)
    for _ in range(100):
        await asyncio.sleep(0)
    assert recording.metadata.proposed == [TrimActivity(through=99)]
    await recorder.close()
