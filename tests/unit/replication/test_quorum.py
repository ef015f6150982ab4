"""Since when a metadata leader is sure of its majority, and until when its predecessors were."""

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.replication.sessions.quorum import LeaderSupport, Quorum


def quorum(voters: int, term: int = 3) -> Quorum:
    return Quorum(term, map(NodeId, range(voters)), NodeId(0), 40)


def test_a_group_of_one_is_always_sure() -> None:
    assert quorum(1).sure_at_us(77) == 77


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_it_is_sure_since_the_oldest_ping_of_the_newest_majority(voters: int, needed: int) -> None:
    group = quorum(voters)
    for voter in range(1, voters):
        assert group.sure_at_us(1000) == (-1 if voter <= needed else 101 + voter - 1 - needed)
        group.echoed(NodeId(voter), 3, 100 + voter, 50)
    assert group.sure_at_us(1000) == 100 + voters - needed


def test_echoes_of_another_term_of_strangers_and_old_ones_say_nothing() -> None:
    group = quorum(3)
    group.echoed(NodeId(1), 2, 900, 50)
    group.echoed(NodeId(9), 3, 900, 50)
    group.echoed(NodeId(0), 3, 900, 50)
    assert group.sure_at_us(1000) == -1
    group.echoed(NodeId(1), 3, 500, 50)
    group.echoed(NodeId(1), 3, 400, 50)
    assert group.sure_at_us(1000) == 500


def test_a_group_of_one_had_no_other_leader_since_it_backed_itself() -> None:
    assert quorum(1).earlier_sure_at_us() == 40


def test_earlier_leaders_were_sure_until_the_last_of_a_majority_stopped_to_back_them() -> None:
    group = quorum(5)
    assert group.earlier_sure_at_us() is None
    group.echoed(NodeId(1), 3, 100, 90)
    assert group.earlier_sure_at_us() is None, "two of five are no majority"
    group.echoed(NodeId(2), 3, 100, 60)
    assert group.earlier_sure_at_us() == 90
    group.echoed(NodeId(3), 3, 100, 20)
    assert group.earlier_sure_at_us() == 60, "0, 2 and 3 are a majority, too"
    group.echoed(NodeId(4), 3, 100, 10)
    assert group.earlier_sure_at_us() == 40, "this node itself backed somebody until then"


def test_a_later_echo_of_one_voter_may_only_tell_of_an_earlier_time() -> None:
    group = quorum(3)
    group.echoed(NodeId(1), 3, 100, 70)
    group.echoed(NodeId(1), 3, 200, 75)
    assert group.earlier_sure_at_us() == 70
    group.echoed(NodeId(1), 3, 300, 65)
    assert group.earlier_sure_at_us() == 65


def test_a_voter_that_has_just_started_has_backed_nobody_since() -> None:
    backing = LeaderSupport(500)
    assert backing.before_us(7) == 500
    backing.back(7, 600)
    assert backing.before_us(7) == 500


def test_a_voter_remembers_whom_it_backed_before_the_present_term() -> None:
    backing = LeaderSupport(500)
    backing.back(7, 600)
    backing.back(7, 700)
    assert backing.before_us(8) == 700
    backing.back(9, 800)
    backing.back(9, 900)
    assert backing.before_us(9) == 700
    assert backing.before_us(10) == 900
