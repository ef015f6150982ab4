"""A follower whose disk has lost records: it acknowledges nothing, and is not in sync."""

from __future__ import annotations

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.log.inspection import BadRange
from jetstream_server.log.repair import may_repair_exactly
from jetstream_server.replication.core.follower import FollowerState
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import INCOMPLETE
from jetstream_server.replication.core.wire import position_from_proto, position_to_proto
from tests.unit.replication.cores import Log, node, stream


def check_acknowledges_nothing() -> None:
    isr = (0, 2)
    known = stream(isr)
    log = Log(log_end_offset=10, flushed_offset=10, lost_range=(3, 5))
    log.epochs.assign(3, 0)
    follower = FollowerState(stream=known, node_id=1, incarnation=10, log=log, high_watermark=0)
    led = Log(log_end_offset=10, flushed_offset=10)
    led.epochs.assign(3, 0)
    leader = LeaderState(
        stream=known,
        node_id=0,
        nodes={NodeId(each): node(each) for each in range(3)},
        log=led,
        high_watermark=0,
        now_us=0,
    )
    told = position_from_proto(position_to_proto(follower.position()), 1, 10)
    assert leader.fetch(told, 1) is None
    assert leader.damaged_of(NodeId(1)) == (3, 5)
    change = leader.propose(2)
    assert change is None or 1 not in change.isr
    log.lost_range = None  # It was repaired.
    leader.fetch(follower.position(), 3)
    change = leader.propose(4)
    assert change is not None
    assert 1 in change.isr


def test_who_has_lost_records_acknowledges_nothing_until_they_are_repaired() -> None:
    check_acknowledges_nothing()


def test_mutant_whose_marked_replica_is_in_sync_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowerState, "_is_complete", True)
    with pytest.raises(AssertionError):
        check_acknowledges_nothing()


def test_its_position_says_what_is_lost_and_counts_for_nothing() -> None:
    log = Log(log_end_offset=10, flushed_offset=10, lost_range=(3, 5))
    follower = FollowerState(stream=stream(), node_id=1, incarnation=10, log=log, high_watermark=0)
    assert follower.position().stream_epoch == INCOMPLETE
    assert follower.position().damaged == (3, 5)
    assert follower.position().fetch_offset == 10  # It goes on following.


@pytest.mark.parametrize(
    ("here", "there", "exact"),
    [(0, 0, True), (100, 100, True), (101, 0, False), (0, 101, False)],
)
def test_a_compacted_log_takes_just_what_is_bad_only_where_no_tombstone_is_gone_after_it(
    here: int, there: int, exact: bool
) -> None:
    bad = BadRange(0, 100, 120, 0, 8, "")
    assert may_repair_exactly([bad], here, there) is exact
