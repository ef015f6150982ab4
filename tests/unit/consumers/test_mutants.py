"""Rules of consumers, switched off one at a time: the test that knows the rule must fail.

In the simulation they would die in a seed of thousands, if at all.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.feed import Feed
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import Consumers
from jetstream_server.consumers.pulls import Pulls
from jetstream_server.jetstream_api.heard_pulls import HeardPulls
from jetstream_server.jetstream_api.leaf.connection import ROOM_BYTES, LeafConnection
from jetstream_server.jetstream_api.lost_pulls import LostPulls
from jetstream_server.jetstream_api.owed_ends import OwedEnds
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.serving.grpc.cursor_leader import CursorLeader
from tests.support.loops import eventually
from tests.unit.consumers import (
    test_cut_off,
    test_leaderships,
    test_manager,
    test_new_leader,
)
from tests.unit.jetstream_api import (
    test_heard_pulls,
    test_leaf_connection,
    test_lost_pulls,
    test_owed_ends,
)
from tests.unit.serving import test_first_cursor


class Mutant(NamedTuple):
    """killer: fails with `replacement` in the attribute's place."""

    of: type
    name: str
    replacement: object
    killer: Callable[..., None]


def says_that_nothing_is_left(wait: Callable[..., None], self: Consumer, now_us: int) -> None:
    self._send_all(self.pulls.nothing_left())
    wait(self, now_us)


def is_at_end(self: Feed) -> bool:
    return bool(self.selected) or self.is_at_end


async def asks_nobody_who_leads(self: Leaderships, replica: Any) -> None:
    if not self._is_known(replica):
        self._take_over([replica])
    await asyncio.shield(self._loads[replica.stream.id][1])


async def waits_for_no_load(self: Leaderships) -> None: ...


async def waits_for_the_loads_of_now(self: Leaderships) -> None:
    if loads := {load for _, load in self._loads.values() if not load.done()}:
        await asyncio.wait(loads)


def counts_the_one_that_is_known(self: Leaderships, replica: Any) -> bool:
    return replica.stream.id in self._loads


def leads_until_it_has_claimed(self: Any, replica: object) -> bool:
    self.asked = getattr(self, "asked", 0) + 1
    return bool(self.asked == 1)


def has_room(self: LeafConnection) -> bool:
    return self._link is not None and self._link.write_buffer_size < ROOM_BYTES


async def believes_itself(self: CursorLeader) -> bool:
    return self.exists


def wakes(self: Consumer) -> None:
    self.wake()


def takes_all(self: Consumer) -> Any:
    return self.pulls.take(lambda _: True)


def tells_each_node_s(owe: Callable[..., None], self: OwedEnds, pulls: Any, now_us: Any) -> None:
    known = [each for owed in self._owed.values() for each in owed.pulls]
    owe(self, [*known, *pulls], now_us)


def nothing(*_: object) -> None: ...


def loses_the_pulls(lost: Callable[..., Any], self: HeardPulls, *args: Any) -> Any:
    found = lost(self, *args)
    self.forget(args[0])
    return found


def forgets_who_has_asked(self: LostPulls, inbox: bytes) -> None:
    self._owed.asked_again(inbox)


def around(of: type, name: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the original."""
    original = getattr(of, name)

    def method(self: Any, *args: Any) -> Any:
        return replacement(original, self, *args)

    return method


NO_WAIT = test_new_leader.test_a_pull_that_does_not_wait_gets_what_was_acknowledged_before
IN_SYNC = test_new_leader.test_while_too_few_replicas_are_in_sync_it_is_answered
LAST = test_new_leader.test_no_message_is_said_to_be_the_last_one_before_that_is_known
LOST = test_leaderships.test_who_has_lost_it_while_the_consumers_were_loaded_says_so
AGAIN = test_leaderships.test_who_leads_it_again_meanwhile_waits_for_the_later_load
CLAIMED = test_leaderships.test_consumers_that_a_later_leader_has_claimed_may_be_there
FENCED = test_leaderships.test_a_fenced_leader_says_that_another_one_leads
LISTED = test_leaderships.test_a_list_of_all_consumers_waits_for_those_that_a_new_leader_still_loads
LATER = test_leaderships.test_it_waits_for_those_of_a_stream_that_comes_meanwhile_too
FOLLOWER = test_manager.test_who_leads_no_more_once_it_has_read_the_states_claims_none
CLOSED = test_leaf_connection.test_a_link_that_is_being_closed_has_no_room
REACHED = test_cut_off.test_it_is_not_deleted_as_soon_as_it_can_be_reached_again
OTHERS = test_cut_off.test_its_pulls_wait_no_more_but_those_of_others
HEARD = test_heard_pulls.test_what_was_asked_while_the_leader_could_not_be_reached_may_wait_in_vain

MUTANTS = {
    "a new leader says that nothing is left": Mutant(
        Consumer, "_wait", around(Consumer, "_wait", says_that_nothing_is_left), NO_WAIT
    ),
    "a leader that cannot find out its end is waited for": Mutant(
        LeaderState, "seeks_end", property(lambda self: not self.knows_end), IN_SYNC
    ),
    "a new leader calls a message the last one": Mutant(
        Feed, "_is_last_known", property(is_at_end), LAST
    ),
    "a new leader says how many are pending": Mutant(
        Consumer, "pending", property(lambda self: self.feed.pending), LAST
    ),
    "who has lost the leadership while it loaded knows all consumers": Mutant(
        Leaderships, "loaded", asks_nobody_who_leads, partial(LOST, "leadership")
    ),
    "so does who has lost its lease": Mutant(
        Leaderships, "loaded", asks_nobody_who_leads, partial(LOST, "lease")
    ),
    "the load of an earlier leadership counts": Mutant(
        Leaderships, "_is_known", counts_the_one_that_is_known, AGAIN
    ),
    "what a later leader has claimed is nowhere": Mutant(
        Consumers, "check_has", nothing, CLAIMED
    ),
    "a leader that was fenced says that there is none": Mutant(
        Consumers, "check_has", nothing, partial(FENCED, is_replaced=True)
    ),
    "a list lacks those that are being loaded": Mutant(
        Leaderships, "all_loaded", waits_for_no_load, LISTED
    ),
    "a list lacks those of a stream that came meanwhile": Mutant(
        Leaderships, "all_loaded", waits_for_the_loads_of_now, LATER
    ),
    "a follower claims states": Mutant(
        Consumers, "_is_led", leads_until_it_has_claimed, FOLLOWER
    ),
    "a link that is being closed has room": Mutant(
        LeafConnection, "has_room", property(has_room), CLOSED
    ),
    "a node that is behind says that a cursor is new": Mutant(
        CursorLeader, "surely_exists", believes_itself,
        test_first_cursor.test_does_not_say_that_a_cursor_is_new,
    ),
    "and that a group is": Mutant(
        CursorLeader, "surely_exists", believes_itself,
        test_first_cursor.test_does_not_say_that_a_group_is_new,
    ),
    "a consumer is deleted as soon as it can be reached again": Mutant(
        Consumer, "reached", wakes, REACHED
    ),
    "a lost link ends what is collected": Mutant(Consumer, "cut_off", takes_all, OTHERS),
    "who has asked again is told": Mutant(
        OwedEnds, "asked_again", nothing,
        test_owed_ends.test_a_client_that_has_asked_again_is_told_nothing,
    ),
    "a client is told as often as nodes have heard it": Mutant(
        OwedEnds, "owe", around(OwedEnds, "owe", tells_each_node_s),
        test_owed_ends.test_a_pull_that_another_node_has_heard_too_is_ended_once,
    ),
    "clients are forgotten while there is no link": Mutant(
        OwedEnds, "linked", nothing,
        test_owed_ends.test_a_client_that_does_not_come_back_is_forgotten,
    ),
    "pulls are forgotten once their leader has asked": Mutant(
        HeardPulls, "lost", around(HeardPulls, "lost", loses_the_pulls), HEARD
    ),
    "pulls that are being served are ended": Mutant(
        LostPulls, "asked_again", forgets_who_has_asked,
        test_lost_pulls.test_who_asks_again_by_itself_is_told_nothing_whoever_else_has_heard_it,
    ),
    "who comes back later is not told": Mutant(
        LostPulls, "interest_changed", nothing,
        test_lost_pulls.test_who_comes_back_later_is_told_then,
    ),
    "a pull whose inbox nobody hears is not ended by anybody": Mutant(
        Pulls, "take", lambda *_: [], OTHERS
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_dies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    monkeypatch.setattr(eventually, "__defaults__", (1.0,))  # What never comes is waited for.
    monkeypatch.setattr(mutant.of, mutant.name, mutant.replacement)
    killer = mutant.killer
    needs_path = "tmp_path" in inspect.signature(killer).parameters
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        killer(tmp_path=tmp_path) if needs_path else killer()
