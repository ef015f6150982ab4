"""The leader's core: positions, the high watermark, the ISR and its changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jetstream_protocol.errors import FencedEpochError, NotEnoughReplicasError, UnknownEpochError
from jetstream_protocol.types import NodeId
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.leader import REPLICA_LAG_MAX_US, LeaderState
from jetstream_server.replication.core.messages import Diverging, OutOfRange
from jetstream_server.replication.core.pending_isr import RETRY_US, Outcome
from tests.unit.replication.cores import LEADER, Log, node, nodes, request, stream

LAG_US = REPLICA_LAG_MAX_US + 1


def leading(of: StreamMetadata, log: Log) -> LeaderState:
    return LeaderState(
        stream=of, node_id=LEADER, nodes=nodes(), log=log, high_watermark=0, now_us=0
    )


def log_of(end: int, *epochs: tuple[int, int]) -> Log:
    return Log(log_end_offset=end, flushed_offset=end, epochs=LeaderEpochCache(epochs or [(3, 0)]))


class TestHighWatermark:
    def test_it_is_the_least_position_in_sync(self) -> None:
        state = leading(stream(), log_of(10))
        state.fetch(request(1, 8), 1)
        assert state.high_watermark == 0
        state.fetch(request(2, 5), 1)
        assert state.high_watermark == 5

    def test_it_stands_while_the_isr_is_below_its_minimum(self) -> None:
        state = leading(stream((0,)), log_of(10))
        assert not state.moved()
        with pytest.raises(NotEnoughReplicasError):
            state.check_can_append()

    def test_under_group_only_what_is_flushed_counts(self) -> None:
        log = log_of(10)
        log.flushed_offset = 6
        state = leading(stream((0, 1), flush="group"), log)
        state.fetch(request(1, 9, flushed_offset=4), 1)
        assert state.high_watermark == 4
        state.fetch(request(1, 9, flushed_offset=9), 1)
        assert state.high_watermark == 6


class TestFetch:
    def test_older_and_newer_leaderships_are_refused(self) -> None:
        state = leading(stream(), log_of(10))
        with pytest.raises(FencedEpochError):
            state.fetch(request(1, 5, leader_epoch=2), 1)
        with pytest.raises(UnknownEpochError):
            state.fetch(request(1, 5, leader_epoch=4), 1)

    def test_an_older_incarnation_is_refused(self) -> None:
        state = leading(stream(), log_of(10))
        state.fetch(request(1, 5, incarnation=20), 1)
        with pytest.raises(FencedEpochError):
            state.fetch(request(1, 10), 1)
        assert state.position_of(request(1, 0).follower) == 5

    def test_logs_part_at_the_end_of_the_epoch(self) -> None:
        state = leading(stream(), log_of(10, (1, 0), (3, 6)))
        answer = state.fetch(request(1, 8, last_epoch=2), 1)
        assert isinstance(answer, Diverging)
        assert (answer.epoch, answer.end_offset) == (1, 6)
        assert state.position_of(request(1, 0).follower) == -1

    def test_a_position_before_the_log_start_is_out_of_range(self) -> None:
        log = log_of(10)
        log.log_start_offset = 4
        assert isinstance(leading(stream(), log).fetch(request(1, 2), 1), OutOfRange)

    @pytest.mark.parametrize(
        ("known", "last_epoch", "agrees"),
        [
            (((2, 0), (3, 2), (4, 24)), 3, True),
            (((2, 0), (3, 2), (4, 24)), 2, False),
            (((4, 24),), 3, False),  # After a restart nobody knows what was there.
        ],
    )
    def test_a_log_that_ends_where_the_leaders_begins_must_have_ended_in_the_same_epoch(
        self, known: tuple[tuple[int, int], ...], last_epoch: int, agrees: bool
    ) -> None:
        log = Log(log_start_offset=24, log_end_offset=24, epochs=LeaderEpochCache(known))
        log.epochs.truncate_from_start(24)
        answer = leading(stream(), log).fetch(request(1, 24, last_epoch=last_epoch), 1)
        assert answer is None if agrees else isinstance(answer, OutOfRange)


class TestObservers:
    def observed(self, *, minimum: int = 2, **fields: Any) -> StreamMetadata:
        return replace(stream((0, 1), minimum=minimum), observers=(NodeId(3),), **fields)

    def with_observer(self) -> dict[NodeId, NodeMetadata]:
        return {**nodes(), NodeId(3): node(3)}

    def test_neither_commits_nor_the_isr_wait_for_them(self) -> None:
        log = log_of(10)
        state = leading(self.observed(), log)
        state.update(state.stream, self.with_observer())
        state.fetch(request(1, 10), 1)
        assert state.high_watermark == 10, "the observer has said nothing"
        log.log_end_offset = 20
        assert state.fetch(request(3, 20), 2) is None, "its log agrees"
        assert state.position_of(NodeId(3)) == 20
        assert state.high_watermark == 10, "it has 20, and commits nothing"
        state.fetch(request(1, 20), 2)
        state.fetch(request(2, 20), 2)
        change = state.propose(3)
        assert change is not None
        assert change.isr == (0, 1, 2)

    def test_its_lag_is_known(self) -> None:
        log = log_of(10)
        state = leading(self.observed(), log)
        state.update(state.stream, self.with_observer())
        state.fetch(request(3, 4), 1_000)
        assert state.lag_of(NodeId(3), 1_500) == (6, 500)
        state.fetch(request(1, 10), 1_000)
        assert state.is_settled(1_500), "nothing waits for it"

    def test_promoted_it_joins_by_what_it_says_from_then_on(self) -> None:
        state = leading(self.observed(), log_of(10))
        state.update(state.stream, self.with_observer())
        state.fetch(request(1, 10), 1)
        state.fetch(request(3, 10), 1)
        replicas = (*state.stream.replicas, NodeId(3))
        promoted = replace(state.stream, replicas=replicas, observers=(), stream_epoch=8)
        state.update(promoted, self.with_observer())
        assert state.propose(2) is None, "what it said as an observer does not count"
        state.fetch(request(3, 10, stream_epoch=8), 3)
        change = state.propose(4)
        assert change is not None
        assert change.isr == (0, 1, 3)


class TestIsr:
    def test_a_joiner_counts_at_once_and_a_leaver_until_the_commit(self) -> None:
        log = log_of(10)
        state = leading(stream((0, 1), minimum=1), log)
        state.fetch(request(1, 10), 1)
        state.fetch(request(2, 10), 1)
        change = state.propose(2)
        assert change is not None
        assert change.isr == (0, 1, 2)
        log.log_end_offset = 12
        state.fetch(request(1, 12), 3)
        assert state.high_watermark == 10
        state.settle(change, Outcome.INELIGIBLE, 4)
        assert state.high_watermark == 12

    def test_an_unknown_outcome_is_retried_as_the_same_change(self) -> None:
        state = leading(stream((0, 1)), log_of(10))
        state.fetch(request(1, 10), 1)
        state.fetch(request(2, 10), 1)
        change = state.propose(1)
        assert change is not None
        state.settle(change, Outcome.UNKNOWN, 1)
        assert state.propose(2) is None
        assert state.propose(2 + RETRY_US) is change

    def test_newer_metadata_settles_what_is_pending(self) -> None:
        state = leading(stream((0, 1)), log_of(10))
        state.fetch(request(2, 10), 1)
        assert state.propose(1) is not None
        state.update(stream((0, 1, 2), stream_epoch=8), nodes())
        assert state.isr == (0, 1, 2)
        assert state.propose(1) is None

    def test_a_follower_below_the_epochs_start_does_not_join(self) -> None:
        state = leading(stream((0,), minimum=1), log_of(10))
        state.high_watermark = 4
        state.fetch(request(1, 9), 1)
        assert state.propose(1) is None

    def test_who_lags_leaves(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        for now_us in (1, LAG_US):
            state.fetch(request(1, log.log_end_offset), now_us)
            log.log_end_offset += 5
        change = state.propose(LAG_US + 1)
        assert change is not None
        assert change.isr == (0, 1)

    def test_the_limit_of_lag_may_change_while_it_leads(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        state.limit_lag(3 * LAG_US)
        for now_us in (1, LAG_US):
            state.fetch(request(1, log.log_end_offset), now_us)
            log.log_end_offset += 5
        assert state.propose(LAG_US + 1) is None, "it may lag for longer now"
        state.limit_lag(LAG_US)
        change = state.propose(LAG_US + 1)
        assert change is not None
        assert change.isr == (0, 1)

    def test_who_cannot_append_leaves_once_it_lacks_something_and_joins_when_it_can(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        for follower in (1, 2):
            state.fetch(request(follower, 10, cannot_append=follower == 2), 1)
        assert state.propose(1) is None, "it has everything"
        log.log_end_offset += 5
        state.fetch(request(1, 15), 2)
        change = state.propose(2)
        assert change is not None
        assert change.isr == (0, 1)
        state.settle(change, Outcome.ACCEPTED, 2)
        state.update(stream((0, 1), stream_epoch=8), nodes())
        state.fetch(request(2, 10, stream_epoch=8, cannot_append=True), 3)
        assert state.propose(10**6) is None
        state.fetch(request(2, 15, stream_epoch=8), 4)
        joined = state.propose(10**6)
        assert joined is not None
        assert joined.isr == (0, 1, 2)

    def test_a_steady_delay_is_no_lag(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        for second in range(60):
            now_us = second * 1_000_000
            log.log_end_offset += 10
            for follower in (1, 2):
                state.fetch(request(follower, log.log_end_offset - 15), now_us)
            assert state.propose(now_us) is None

    def test_a_leader_that_slept_blames_nobody(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        state.tick(LAG_US)
        assert state.propose(LAG_US) is None

    def test_nobody_lags_for_as_long_as_there_was_nothing_to_fetch(self) -> None:
        log = log_of(10)
        state = leading(stream((0, 1), minimum=1), log)
        state.fetch(request(1, 10), 1)
        for now_us in range(0, 2 * LAG_US, 100_000):
            state.tick(now_us)
        log.log_end_offset = 11
        assert state.propose(2 * LAG_US) is None

    def test_an_idle_hour_excuses_no_follower_that_stops_after_it(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        hour_us = 3_600_000_000
        for now_us in (1, hour_us):
            for follower in (1, 2):
                state.fetch(request(follower, log.log_end_offset), now_us)
        log.log_end_offset = 11
        state.fetch(request(1, 11), hour_us)
        for now_us in range(hour_us, hour_us + LAG_US + 1, 100_000):
            state.tick(now_us)
        change = state.propose(hour_us + LAG_US)
        assert change is not None
        assert change.isr == (0, 1)


class TestSettled:
    """What the driver need not look at until something happens."""

    def test_all_in_sync_with_everything_is_settled(self) -> None:
        log = log_of(10)
        state = leading(stream(), log)
        assert not state.is_settled(1)
        for follower in (1, 2):
            state.fetch(request(follower, 10), 1)
        assert state.is_settled(1)
        log.log_end_offset = 11
        assert not state.is_settled(1)

    def test_a_replica_that_does_not_fetch_can_stay_out_unwatched(self) -> None:
        state = leading(stream((0, 1)), log_of(10))
        state.fetch(request(1, 10), 1)
        assert state.is_settled(1)
        state.fetch(request(2, 9), 1)
        assert state.is_settled(1)
        state.fetch(request(2, 10), 1)
        assert not state.is_settled(1)

    def test_a_change_under_way_is_watched(self) -> None:
        state = leading(stream((0, 1)), log_of(10))
        state.fetch(request(1, 10), 1)
        state.fetch(request(2, 10), 1)
        change = state.propose(1)
        assert change is not None
        assert not state.is_settled(1)
        state.settle(change, Outcome.INELIGIBLE, 1)
        assert not state.is_settled(2)


class TestWhoLeft:
    """A follower whose fsync failed tells the metadata and leaves the ISR. Its earlier positions
    may have reached the leader, or be on the way."""

    def test_what_it_said_before_does_not_bring_it_back(self) -> None:
        state = leading(stream(), log_of(10))
        for follower in (1, 2):
            state.fetch(request(follower, 10), 1)
        state.update(stream((0, 1), stream_epoch=8), nodes())
        assert state.propose(2) is None, "by what was here already"
        assert state.fetch(request(2, 10, stream_epoch=7), 3) is None
        assert state.propose(4) is None, "by what was on the way"

    def test_what_it_says_since_does(self) -> None:
        state = leading(stream(), log_of(10))
        state.update(stream((0, 1), stream_epoch=8), nodes())
        state.fetch(request(2, 10, stream_epoch=8), 3)
        change = state.propose(4)
        assert change is not None
        assert change.isr == (0, 1, 2)

    def test_what_an_eligible_replica_said_counts_no_more_once_it_is_distrusted(self) -> None:
        state = leading(replace(stream((0, 1)), elr=(NodeId(2),)), log_of(10))
        state.fetch(request(2, 10), 1)
        assert state.propose(1) is not None
        state = leading(replace(stream((0, 1)), elr=(NodeId(2),)), log_of(10))
        state.fetch(request(2, 10), 1)
        state.update(stream((0, 1), stream_epoch=8), nodes())
        assert state.propose(2) is None, "it has left the ELR"
        state.fetch(request(2, 10, stream_epoch=8), 3)
        assert state.propose(4) is not None

    def test_nor_does_it_to_a_leader_that_begins_after_it_left(self) -> None:
        state = leading(stream((0, 1), stream_epoch=8), log_of(10))
        state.fetch(request(2, 10, stream_epoch=7), 1)
        assert state.propose(2) is None
        state.fetch(request(2, 10, stream_epoch=8), 3)
        assert state.propose(4) is not None


class TestKnowledge:
    """After a follower left the ISR, its positions count only once it knows that it left."""

    def test_what_it_said_before_does_not_count(self) -> None:
        state = leading(stream(), log_of(10))
        state.fetch(request(1, 10), 1)
        state.update(stream((0, 2), stream_epoch=8), nodes())
        state.fetch(request(1, 10), 2)
        state.fetch(request(2, 10), 2)
        assert state.propose(3) is None
        assert state.is_settled(3)

    def test_what_it_said_in_that_knowledge_counts_also_if_the_leader_had_not_heard_of_it(
        self,
    ) -> None:
        state = leading(stream(), log_of(10))
        state.fetch(request(1, 10, stream_epoch=8), 1)
        state.fetch(request(2, 10), 1)
        state.update(stream((0, 2), stream_epoch=8), nodes())
        change = state.propose(2)
        assert change is not None
        assert change.isr == (0, 1, 2)

    def test_it_may_have_lost_since_what_it_said_before(self) -> None:
        state = leading(stream(), log_of(10))
        state.fetch(request(1, 10), 1)
        state.fetch(request(1, 4, stream_epoch=8), 2)
        state.fetch(request(1, 10), 3)
        state.fetch(request(2, 10), 3)
        assert state.position_of(NodeId(1)) == 4
        state.update(stream((0, 2), stream_epoch=8), nodes())
        assert state.propose(4) is None


class TestSilence:
    def test_who_is_silent_leaves_whether_or_not_it_lags_and_joins_again_once_heard(self) -> None:
        state = leading(stream(), log_of(10))
        for follower in (1, 2):
            state.fetch(request(follower, 10), 1)
        assert state.is_settled(2)
        state.hear(NodeId(1), is_silent=True)
        assert not state.is_settled(2)
        change = state.propose(2)
        assert change is not None
        assert change.isr == (0, 2)
        state.update(stream((0, 2), stream_epoch=8), nodes())
        state.fetch(request(1, 10, stream_epoch=8), 3)
        assert state.propose(3) is None
        assert state.is_settled(3)
        state.hear(NodeId(1), is_silent=False)
        change = state.propose(4)
        assert change is not None
        assert change.isr == (0, 1, 2)

    def test_nobody_leaves_who_is_needed_to_commit(self) -> None:
        """A leader that hears no follower is itself cut off, and must be replaced."""
        state = leading(stream(), log_of(10))
        for follower in (1, 2):
            state.fetch(request(follower, 10), 1)
            state.hear(NodeId(follower), is_silent=True)
        assert state.propose(2) is None
        assert state.is_settled(2)

    def test_under_a_minimum_of_one_a_leader_goes_on_alone(self) -> None:
        state = leading(stream(minimum=1), log_of(10))
        for follower in (1, 2):
            state.hear(NodeId(follower), is_silent=True)
        change = state.propose(2)
        assert change is not None
        assert change.isr == (0,)
