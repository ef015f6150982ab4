"""The follower's core: what it does with an answer."""

from __future__ import annotations

from dataclasses import replace

from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.streams import LakeMark
from jetstream_server.replication.core.follower import (
    Append,
    FollowerState,
    Ignore,
    Later,
    Reset,
    Truncate,
)
from jetstream_server.replication.core.messages import (
    Diverging,
    LeaderSnapshot,
    OutOfRange,
    Records,
)
from tests.unit.replication.cores import Log, stream

STANDING = LeaderSnapshot(high_watermark=7, log_start_offset=2, stream_epoch=7)


def following(log: Log, *, rebuild: bool = False, unflushed: tuple[int, ...] = ()) -> FollowerState:
    flush = "group" if unflushed else "none"
    return FollowerState(
        stream=stream(flush=flush, unflushed=unflushed),
        node_id=1,
        incarnation=10,
        log=log,
        high_watermark=0,
        rebuild=rebuild,
    )


def log_of(end: int, *epochs: tuple[int, int]) -> Log:
    return Log(log_end_offset=end, epochs=LeaderEpochCache(epochs or [(3, 0)]))


def test_records_are_appended_and_the_high_watermark_stays_within_the_log() -> None:
    log = log_of(5)
    state = following(log)
    answer = Records(state.position(), STANDING, LogSlice("f", 0, 8, 5, 6))
    step = state.decide(answer)
    assert step == Append(3, True)
    log.log_end_offset = 6
    assert state.settle(answer, step)
    assert state.high_watermark == 6


def test_an_answer_to_an_earlier_position_is_ignored() -> None:
    log = log_of(5)
    state = following(log)
    answer = Records(state.position(), STANDING, None)
    log.log_end_offset = 6
    assert state.decide(answer) == Ignore()


def test_a_diverging_log_is_cut_to_the_common_point() -> None:
    state = following(log_of(9, (1, 0), (2, 6)))
    same_epoch = Diverging(state.position(), STANDING, 2, 7)
    assert state.decide(same_epoch) == Truncate(7)
    older_epoch = Diverging(state.position(), STANDING, 1, 8)
    assert state.decide(older_epoch) == Truncate(6)


def test_a_log_that_parts_from_its_leaders_before_that_begins_is_dropped() -> None:
    state = following(log_of(9, (1, 0)))
    standing = LeaderSnapshot(high_watermark=7, log_start_offset=6, stream_epoch=7)
    # Of epoch 1 the leader only knows that it ends where its own log begins.
    assert state.decide(Diverging(state.position(), standing, 1, 6)) == Reset(6)


def test_a_diverging_round_leaves_the_high_watermark_alone() -> None:
    log = log_of(9, (1, 0), (2, 6))
    state = following(log)
    answer = Diverging(state.position(), STANDING, 1, 8)
    step = state.decide(answer)
    log.log_end_offset = 6
    assert not state.settle(answer, step)
    assert state.high_watermark == 0


def test_out_of_range_begins_anew_at_the_leaders_start() -> None:
    state = following(log_of(1))
    assert state.decide(OutOfRange(state.position(), STANDING)) == Reset(2)


def test_a_log_to_be_rebuilt_acknowledges_nothing() -> None:
    position = following(log_of(9), rebuild=True).position()
    assert (position.fetch_offset, position.flushed_offset) == (-1, -1)


def test_a_flush_is_confirmed_only_once_the_leader_counts_it() -> None:
    log = log_of(5)
    state = following(log, unflushed=(1,))
    old = LeaderSnapshot(high_watermark=5, log_start_offset=0, stream_epoch=6)
    for standing, may in ((old, False), (STANDING, True)):
        answer = Records(state.position(), standing, None)
        state.settle(answer, state.decide(answer))
        assert state.may_confirm_flush is may


def test_a_log_that_missed_tombstones_is_copied_anew() -> None:
    """The leader has deleted records by tombstones that are gone by now; this log has them yet."""
    log = log_of(5)
    state = following(log)
    late = LeaderSnapshot(
        high_watermark=20, log_start_offset=2, stream_epoch=7, tombstones_gone_below=9
    )
    assert state.decide(Records(state.position(), late, None)) == Reset(2)
    log.copied_under = 9
    assert state.decide(Records(state.position(), late, None)) == Append(3, False)


def test_a_log_that_is_empty_or_past_the_tombstones_missed_none() -> None:
    standing = LeaderSnapshot(
        high_watermark=20, log_start_offset=0, stream_epoch=7, tombstones_gone_below=5
    )
    empty = Log()
    for log in (log_of(5), empty):
        state = following(log)
        assert isinstance(state.decide(Records(state.position(), standing, None)), Append)


def test_a_log_emptied_by_retention_still_stands_where_it_stood() -> None:
    """Its log start moved up to its end. The answer to its earlier request still fits."""
    log = log_of(5)
    state = following(log)
    answer = Records(state.position(), STANDING, None)
    log.log_start_offset = 5
    assert state.position() == answer.request
    assert state.decide(answer) == Append(3, False)


def test_a_log_begins_where_the_lake_is_known_to_reach() -> None:
    """Otherwise it would tell readers that the records before that are gone."""
    state = following(log_of(4, (2, 0), (3, 3)))
    config = replace(state.stream.config, lake=True)
    state.update(replace(state.stream, config=config))
    leader = LeaderSnapshot(high_watermark=9, log_start_offset=6, stream_epoch=8)
    assert state.decide(OutOfRange(state.position(), leader)) == Later()
    parted = Diverging(state.position(), leader, 2, 3)
    assert state.decide(parted) == Later()
    lake = LakeMark(0, 6, 3, "table", 1)
    state.update(replace(state.stream, lake=lake, stream_epoch=8))
    assert state.decide(OutOfRange(state.position(), leader)) == Reset(6)
    # What the leader lacks in front, and its metadata does not explain, limits have removed.
    later = replace(leader, log_start_offset=7)
    assert state.decide(OutOfRange(state.position(), later)) == Reset(7)
