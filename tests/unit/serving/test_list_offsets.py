"""What a leader answers for positions, and when it cannot answer yet. A real log, and no server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import LeaderEpoch, MonotonicUs, NodeId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.model import StreamMetadata
from jetstream_server.replication.core.replica import Replica
from jetstream_server.serving.grpc.reads_service import _resolve
from tests.support.log_batches import batch
from tests.support.log_disk import MemoryDisk
from tests.unit.replication.cores import nodes, request, stream

RECORDS = 10
_Query = pb.ListOffsetsRequest.Query
LATEST = _Query(latest=True)
EARLIEST = _Query(earliest=True)


def restarted(isr: tuple[int, ...]) -> Replica:
    """A replica that leads after a restart. Records 0 to 4 and 5 to 9 were appended at 0 and 100
    µs; all of them may have been committed."""
    log = CommitLog.open(MemoryDisk(), "/1", clean=False)
    for at_us in (0, 100):
        log.append(batch(records=RECORDS // 2), leader_epoch=2, timestamp_us=at_us)
    before = stream()
    replica = Replica(before, log, node_id=0, incarnation=10)
    replica.update(leads(before, isr), nodes(), MonotonicUs(0))
    return replica


def leads(before: StreamMetadata, isr: tuple[int, ...]) -> StreamMetadata:
    return replace(before, leader_epoch=LeaderEpoch(4), isr=tuple(map(NodeId, isr)))


@pytest.mark.parametrize("isr", [(0,), (0, 1)])
def test_a_new_leader_names_no_end_before_it_knows_what_was_committed(isr: tuple[int, ...]) -> None:
    replica = restarted(isr)
    with pytest.raises(UnavailableError, match="does not know yet where its committed records end"):
        _resolve(replica, LATEST)
    assert _resolve(replica, EARLIEST) == (0, None)
    assert _resolve(replica, _Query(offset=3)) == (0, None)


def test_once_the_isr_has_what_the_leader_began_with_the_end_is_right() -> None:
    replica = restarted((0, 1))
    replica.fetch(request(1, RECORDS - 1, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    with pytest.raises(UnavailableError):
        _resolve(replica, LATEST)
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert _resolve(replica, LATEST) == (RECORDS, None)


def test_later_records_that_are_not_committed_do_not_hide_the_end() -> None:
    replica = restarted((0, 1))
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    replica.append(batch(b"later"), 200, MonotonicUs(0))
    assert _resolve(replica, LATEST) == (RECORDS, None)


def test_a_time_is_found_only_where_the_record_is_known_to_be_committed() -> None:
    replica = restarted((0, 1))
    for at_us in (0, 100, 200):
        with pytest.raises(UnavailableError):
            _resolve(replica, _Query(timestamp_us=at_us))
    replica.fetch(request(1, RECORDS // 2, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert _resolve(replica, _Query(timestamp_us=0)) == (0, None)
    with pytest.raises(UnavailableError):
        _resolve(replica, _Query(timestamp_us=100))
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert _resolve(replica, _Query(timestamp_us=100)) == (RECORDS // 2, None)
    assert _resolve(replica, _Query(timestamp_us=200)) == (RECORDS, None)
