"""A replica that only observes: what it serves, and when it says that it is current."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import NodeId
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.leader import REPLICA_LAG_MAX_US
from jetstream_server.replication.core.messages import LeaderSnapshot, Records
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.long_poll import LongPoll
from tests.support.access import open_to_all
from tests.support.services import services
from tests.unit.replication.cores import node, nodes, stream

OBSERVER = NodeId(3)
OBSERVED = replace(stream(), observers=(OBSERVER,))
NODES = {**nodes(), OBSERVER: node(3)}


@pytest.fixture
def observer(tmp_path: Path) -> Replica:
    log = CommitLog.open(OsDisk(), str(tmp_path / "1"), clean=False)
    replica = Replica(OBSERVED, log, services(), node_id=3, incarnation=10)
    replica.update(OBSERVED, NODES, 0)
    return replica


def batch_at(offset: int, *values: bytes) -> EncodedBatch:
    batch = encode(list(values), b"".join(values))
    batch.stamp(offset, 3, 0)
    return batch


def answer(replica: Replica, *values: bytes, committed: int, now_us: int) -> None:
    """The leader's answer to what the observer asks for next."""
    asked = replica.position()
    assert asked is not None
    data = batch_at(replica.log.log_end_offset, *values).to_bytes() if values else b""
    slice_ = LogSlice("", 0, len(data), 0, 0) if values else None
    snapshot = LeaderSnapshot(committed, 0, OBSERVED.stream_epoch)
    replica.accept(Records(asked, snapshot, slice_), data, now_us)


def test_it_follows_and_serves_what_is_committed(observer: Replica) -> None:
    assert observer.leadership is None
    assert not observer.is_in_sync
    answer(observer, b"a", committed=0, now_us=1)
    assert observer.read(0, 1 << 20, is_leader=False) is None, "it is not committed"
    answer(observer, committed=1, now_us=2)
    found = observer.read(0, 1 << 20, is_leader=False)
    assert found is not None
    assert found.next_offset == 1


def test_it_is_current_once_it_has_all_that_it_was_told_of(observer: Replica) -> None:
    assert not observer.observes_closely(0)
    answer(observer, b"a", committed=2, now_us=1)
    assert not observer.observes_closely(1), "there is more"
    answer(observer, b"b", committed=2, now_us=2)
    assert observer.observes_closely(3)
    assert observer.observes_closely(1_000_000_000), "nothing was told since"


def test_behind_for_long_it_is_not(observer: Replica) -> None:
    answer(observer, b"a", committed=1, now_us=1)
    answer(observer, b"b", committed=9, now_us=100)
    assert observer.observes_closely(100 + REPLICA_LAG_MAX_US)
    assert not observer.observes_closely(101 + REPLICA_LAG_MAX_US)


def test_an_answer_that_it_cannot_use_leaves_it_behind(observer: Replica) -> None:
    answer(observer, b"a", committed=1, now_us=1)
    asked = observer.position()
    assert asked is not None
    bad = bytearray(batch_at(1, b"b").to_bytes())
    bad[-1] ^= 1
    records = Records(asked, LeaderSnapshot(2, 0, 7), LogSlice("", 0, len(bad), 0, 0))
    with pytest.raises(CorruptBatchError):
        observer.accept(records, bytes(bad), 5)
    assert not observer.observes_closely(6 + REPLICA_LAG_MAX_US)


def test_without_its_leader_it_is_not(observer: Replica) -> None:
    answer(observer, b"a", committed=1, now_us=1)
    observer.closeness.lost()
    assert not observer.observes_closely(1)
    answer(observer, committed=1, now_us=2)
    assert observer.observes_closely(2)
    led_anew: StreamMetadata = replace(OBSERVED, leader=NodeId(1), leader_epoch=4, stream_epoch=8)
    observer.update(led_anew, NODES, 3)
    assert not observer.observes_closely(3), "the new leader has said nothing"


def test_a_reader_is_told_whether_it_is(observer: Replica) -> None:
    lease_held = True
    fetches = LongPoll(lambda: lease_held, open_to_all())
    assert fetches.is_out_of_sync(observer)
    answer(observer, b"a", committed=1, now_us=1)
    assert not fetches.is_out_of_sync(observer)
    lease_held = False
    assert fetches.is_out_of_sync(observer)


def test_a_replica_out_of_sync_is_not_current_however_close(tmp_path: Path) -> None:
    log = CommitLog.open(OsDisk(), str(tmp_path / "1"), clean=False)
    behind = replace(OBSERVED, isr=(NodeId(0), NodeId(1)))
    replica = Replica(behind, log, services(), node_id=2, incarnation=10)
    replica.update(behind, NODES, 0)
    answer(replica, b"a", committed=1, now_us=1)
    assert LongPoll(lambda: True, open_to_all()).is_out_of_sync(replica)


def test_a_lone_replica_s_observer_fetches_a_bad_log_anew(tmp_path: Path) -> None:
    """The replica itself does not: there is nobody who has more."""
    alone = replace(OBSERVED, replicas=(NodeId(0),), isr=(NodeId(0),))
    for node_id, fetches in ((0, False), (3, True)):
        log = CommitLog.open(OsDisk(), str(tmp_path / str(node_id)), clean=False)
        replica = Replica(alone, log, services(), node_id=node_id, incarnation=10)
        replica.update(alone, NODES, 0)
        replica.failed()
        assert replica.needs_rebuild == fetches
