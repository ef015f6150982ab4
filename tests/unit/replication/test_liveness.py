"""Which followers a leader node hears."""

from __future__ import annotations

from jetstream_protocol.types import NodeId
from jetstream_server.replication.core.liveness import SILENCE_US, SLEEP_US, Liveness

ONE, TWO = NodeId(1), NodeId(2)
LOOK_US = 100_000


def look(liveness: Liveness, start_us: int, end_us: int, *speaking: NodeId) -> list[NodeId]:
    """Look all the time, while these speak."""
    changed = []
    for now_us in range(start_us, end_us, LOOK_US):
        for node_id in speaking:
            liveness.heard(node_id, now_us)
        changed += liveness.look((ONE, TWO), now_us)
    return changed


def test_who_says_nothing_falls_silent_and_is_heard_again() -> None:
    liveness = Liveness()
    assert look(liveness, 0, SILENCE_US + LOOK_US, ONE) == []
    assert look(liveness, SILENCE_US + LOOK_US, SILENCE_US + 2 * LOOK_US, ONE) == [TWO]
    assert liveness.is_silent(TWO)
    assert not liveness.is_silent(ONE)
    later = 2 * SILENCE_US
    assert look(liveness, SILENCE_US + 2 * LOOK_US, later, ONE, TWO) == [TWO]
    assert not liveness.is_silent(TWO)


def test_who_did_not_look_blames_nobody() -> None:
    liveness = Liveness()
    look(liveness, 0, LOOK_US, ONE, TWO)
    woken = SILENCE_US + SLEEP_US
    assert liveness.look((ONE, TWO), woken) == []
    assert look(liveness, woken + LOOK_US, woken + SILENCE_US, ONE) == []


def test_who_was_not_followed_for_a_while_is_not_blamed_for_that() -> None:
    liveness = Liveness()
    liveness.look((ONE, TWO), 0)
    for now_us in range(LOOK_US, 2 * SILENCE_US, LOOK_US):
        liveness.heard(ONE, now_us)
        liveness.look((ONE,), now_us)
    assert liveness.look((ONE, TWO), 2 * SILENCE_US) == []
