"""Since when a metadata leader is sure of its majority."""

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.replication.quorum import Quorum


def quorum(voters: int, term: int = 3) -> Quorum:
    return Quorum(term, map(NodeId, range(voters)), NodeId(0))


def test_a_group_of_one_is_always_sure() -> None:
    assert quorum(1).sure_at_us(77) == 77


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_it_is_sure_since_the_oldest_ping_of_the_newest_majority(voters: int, needed: int) -> None:
    group = quorum(voters)
    for voter in range(1, voters):
        assert group.sure_at_us(1000) == (-1 if voter <= needed else 101 + voter - 1 - needed)
        group.echoed(NodeId(voter), 3, 100 + voter)
    assert group.sure_at_us(1000) == 100 + voters - needed


def test_echoes_of_another_term_of_strangers_and_old_ones_say_nothing() -> None:
    group = quorum(3)
    group.echoed(NodeId(1), 2, 900)
    group.echoed(NodeId(9), 3, 900)
    group.echoed(NodeId(0), 3, 900)
    assert group.sure_at_us(1000) == -1
    group.echoed(NodeId(1), 3, 500)
    group.echoed(NodeId(1), 3, 400)
    assert group.sure_at_us(1000) == 500
