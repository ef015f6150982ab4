"""What a leader answers for positions, and when it cannot answer yet. A real log, and no server."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import LeaderEpoch, MonotonicUs, NodeId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.setting_fields import KeyPolicy
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication import subjects
from jetstream_server.replication.listeners import Healer, Listeners
from jetstream_server.replication.replica import Replica
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving.grpc.consumers_service import check_knows_end
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.reads_service import ReadsService, resolve_query
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.loops import on_loop
from tests.support.node import Node
from tests.support.services import services
from tests.unit.replication.cores import nodes, request, stream

RECORDS = 10
_Query = pb.ListOffsetsRequest.Query
LATEST = _Query(latest=True)
EARLIEST = _Query(earliest=True)


def restarted(isr: tuple[int, ...], key: KeyPolicy = "record") -> Replica:
    """A replica that leads after a restart. Records 0 to 4 and 5 to 9 were appended at 0 and 100
    µs; all of them may have been committed."""
    log = CommitLog.open(MemoryDisk(), "/1", clean=False)
    for at_us in (0, 100):
        log.append(batch(records=RECORDS // 2), leader_epoch=2, timestamp_us=at_us)
    before = stream()
    before = replace(before, config=replace(before.config, key=key))
    replica = Replica(before, log, services(), node_id=0, incarnation=10)
    replica.update(leads(before, isr), nodes(), MonotonicUs(0))
    log.flush()  # It notes its epoch on disk first.
    replica.moved()
    return replica


def leads(before: StreamMetadata, isr: tuple[int, ...]) -> StreamMetadata:
    return replace(before, leader_epoch=LeaderEpoch(4), isr=tuple(map(NodeId, isr)))


@pytest.mark.parametrize("isr", [(0,), (0, 1)])
def test_a_new_leader_names_no_end_before_it_knows_what_was_committed(isr: tuple[int, ...]) -> None:
    replica = restarted(isr)
    with pytest.raises(UnavailableError, match="does not know yet where its committed records end"):
        resolve_query(replica, LATEST)
    with pytest.raises(UnavailableError, match="does not know yet what was acknowledged"):
        check_knows_end(replica)  # Of a queue that its reader wants to see empty.
    assert resolve_query(replica, EARLIEST) == (0, None)
    assert resolve_query(replica, _Query(offset=3)) == (0, None)


def test_once_the_isr_has_what_the_leader_began_with_the_end_is_right() -> None:
    replica = restarted((0, 1))
    replica.fetch(request(1, RECORDS - 1, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    with pytest.raises(UnavailableError):
        resolve_query(replica, LATEST)
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert resolve_query(replica, LATEST) == (RECORDS, None)


def test_later_records_that_are_not_committed_do_not_hide_the_end() -> None:
    replica = restarted((0, 1))
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    replica.append(batch(b"later"), 200)
    assert resolve_query(replica, LATEST) == (RECORDS, None)


def test_a_time_is_found_only_where_the_record_is_known_to_be_committed() -> None:
    replica = restarted((0, 1))
    for at_us in (0, 100, 200):
        with pytest.raises(UnavailableError):
            resolve_query(replica, _Query(timestamp_us=at_us))
    replica.fetch(request(1, RECORDS // 2, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert resolve_query(replica, _Query(timestamp_us=0)) == (0, None)
    with pytest.raises(UnavailableError):
        resolve_query(replica, _Query(timestamp_us=100))
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert resolve_query(replica, _Query(timestamp_us=100)) == (RECORDS // 2, None)
    assert resolve_query(replica, _Query(timestamp_us=200)) == (RECORDS, None)


class Suspicions(Healer):
    def __init__(self) -> None:
        self.noted: list[tuple[int, BaseException | None]] = []

    def suspect(
        self,
        replica: Replica,
        offset: int,
        error: JetstreamError | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.noted.append((offset, error.__cause__ if error is not None else None))


@on_loop
@pytest.mark.parametrize("failure", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("query", [_Query(timestamp_us=1), _Query(offset=0)])
async def test_bytes_that_cannot_be_read_are_inspected_and_the_search_may_be_tried_again(
    tmp_path: Path, query: pb.ListOffsetsRequest.Query, failure: int
) -> None:
    disk, healer, access = FaultyDisk(OsDisk()), Suspicions(), open_to_all()
    node = Node(tmp_path / "streams", disk=disk)
    node.open()
    node.begin(Listeners(healer=healer))
    replica = node.create()
    node.append(replica, b"a")
    service = ReadsService(
        node.replicas,
        LongPoll(lambda: True, access),
        StreamAccess(access, node.cluster.registry),
        ResponseMemoryLimiter(lambda peer: None),
    )
    query.stream.CopyFrom(common_pb2.StreamRef(id=replica.stream.id))
    disk.fail("pread", ".log", failure)
    call = cast(Call, SimpleNamespace(identity=ANONYMOUS, peer="ipv4:192.0.2.1:5"))
    (result,) = (await service.ListOffsets(pb.ListOffsetsRequest(queries=[query]), call)).results
    assert result.error.retriable
    lacks = failure == errno.EMFILE
    assert ("descriptor" if lacks else "is inspecting its file") in result.error.message
    ((offset, cause),) = healer.noted
    assert offset == 0
    assert isinstance(cause, OSError)
    assert cause.errno == failure


LAST = _Query(last_of_subject="a.b")


def test_nor_what_the_last_record_of_a_subject_is() -> None:
    """Otherwise a record that was acknowledged under the last leader would be missing."""
    replica = restarted((0, 1), key="subject")
    subjects.catch_up(replica, subjects.begin(replica))
    with pytest.raises(UnavailableError, match="does not know yet where its committed records end"):
        resolve_query(replica, LAST)
    with pytest.raises(UnavailableError, match="does not know yet where its committed records end"):
        subjects.committed_subjects(replica)
    assert subjects.count_if_known(replica) is None
    replica.fetch(request(1, RECORDS, last_epoch=2, leader_epoch=4), MonotonicUs(0))
    assert resolve_query(replica, LAST) == (RECORDS - 1, None)
    assert subjects.count_if_known(replica) == 1
