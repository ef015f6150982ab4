"""What earlier leaders got is committed only once the new leader's epoch is on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from jetstream_protocol.types import LeaderEpoch, NodeId
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.metadata.state.setting_fields import FlushPolicy
from jetstream_server.replication.replica import Replica
from tests.support.log_batches import batch
from tests.support.log_disk import MemoryDisk
from tests.support.node import Flushes
from tests.support.services import services
from tests.unit.replication.cores import nodes, request, stream


def leader_of(count: int, flush: FlushPolicy, replicas: tuple[int, ...] = (0, 1, 2)) -> Replica:
    """Elected under epoch 3, with so many flushed records of epoch 1."""
    log = CommitLog.open(MemoryDisk(), "/1", LogConfig(), clean=False)
    for number in range(count):
        log.append(batch(b"%d" % number), leader_epoch=1, timestamp_us=number)
    log.flush()
    metadata = replace(stream(replicas, flush=flush), replicas=tuple(map(NodeId, replicas)))
    if len(replicas) == 1:
        metadata = replace(metadata, config=replace(metadata.config, min_insync_replicas=1))
    before = replace(metadata, leader=NodeId(-1), leader_epoch=LeaderEpoch(1))
    replica = Replica(before, log, services(), node_id=0, incarnation=10)
    replica.update(metadata, nodes(), 0)
    return replica


def flushes(replica: Replica) -> Flushes:
    return cast(Flushes, replica._services.flusher)


@pytest.mark.parametrize("flush", ["group", "interval", "none"])
def test_nothing_is_committed_before_the_epoch_is_noted(flush: FlushPolicy) -> None:
    replica = leader_of(5, flush)
    for follower in (1, 2):
        replica.fetch(request(follower, 5, last_epoch=1, flushed_offset=5), 0)
    assert replica.high_watermark == 0
    flushes(replica).run()
    assert replica.high_watermark == 5
    assert replica.log.led_epoch == (3, 5)


def test_a_leader_that_knows_all_of_it_as_committed_waits_for_nothing() -> None:
    replica = leader_of(0, "interval")
    for follower in (1, 2):
        replica.fetch(request(follower, 0, last_epoch=-1), 0)
    replica.append(batch(b"a"))
    for follower in (1, 2):
        replica.fetch(request(follower, 1, last_epoch=3), 0)
    assert (replica.high_watermark, flushes(replica).waiting) == (1, {})


def test_the_only_replica_waits_for_nothing() -> None:
    replica = leader_of(5, "interval", (0,))
    assert (replica.high_watermark, flushes(replica).waiting) == (5, {})
