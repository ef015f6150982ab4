"""The recorder of activity on one node: which events of the outbox go into the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from jetstream_protocol.batch import encode, iterate
from jetstream_server.metadata.client.metadata_log import MetadataLog
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.commands import FEATURE_LEVEL_MAX, SetCluster, TrimActivity
from jetstream_server.replication.core.replica import Replica
from jetstream_server.replication.drivers.activity_recorder import (
    SETTINGS,
    SUBJECT,
    ActivityRecorder,
)
from jetstream_server.replication.listeners import Listeners
from tests.support.local_metadata import LocalMetadata
from tests.support.loops import eventually, on_loop
from tests.support.node import Node


class Recording:
    """Node 0, which leads the stream of activity. The recorder begins with `begin`."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        self.node.cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        self.node.open()
        self.node.begin(Listeners())
        self.replica: Replica = self.node.create(ACTIVITY, "", (0,), config=SETTINGS, internal=True)

    def put(self, *sequences: int) -> None:
        """Events that are in the log already."""
        values = [json.dumps({"sequence": each}).encode() for each in sequences]
        self.node.replicas.append(self.replica, encode(values, SUBJECT))
        self.node.flushes.run()

    def empty(self) -> None:
        """What retention does to records that are all old."""
        log = self.replica.log
        log.roll()
        log.flush()
        log.begin_advance(log.log_end_offset)
        log.finish_advance()

    def begin(self) -> ActivityRecorder:
        metadata = LocalMetadata(self.node.cluster)
        recorder = ActivityRecorder(self.node.replicas, cast(MetadataLog, metadata))
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


@on_loop
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


@on_loop
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
