"""Every anomaly that a run of programs looks for, planted into one that is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.consumers.checker import LATE_SECONDS, History, Kind, Purge, Stored, check
from tests.chaos.consumers.journal import FENCED, Event, Journal
from tests.chaos.consumers.program import DELIVERY_SECONDS
from tests.chaos.consumers.streams import INPUT, OUTPUT, PARTS, SESSION_SECONDS

COUNT = 10
PART = f"{PARTS}-0"
SENDER, PART_SENDER, CURSOR, ONE, OTHER, TWIN, NEXT_TWIN = range(7)
"""The numbers of the processes."""
AGES = DELIVERY_SECONDS + LATE_SECONDS + 100


def events(begun: float, *found: tuple[object, ...]) -> list[Event]:
    return [
        Event(begun + at / 100, str(what), tuple(values))
        for at, (what, *values) in enumerate(found)
    ]


def sends(number: int, reader: str, stream: str) -> Journal:
    journal = Journal(number, "sender", reader, str(number), ended=0)
    for n in range(COUNT):
        journal.events += events(n / 10, ("sent", n), ("acked", n, stream, n))
    return journal


def got(stream: str, *offsets: int) -> list[tuple[object, ...]]:
    return [("got", stream, offset, offset) for offset in offsets]


def member(number: int, begun: float, *found: tuple[object, ...], **more: object) -> Journal:
    journal = Journal(number, "member", "members", begun=begun, **more)  # type: ignore[arg-type]
    journal.events = events(begun, ("opened",), *found)
    return journal


def well() -> History:
    """Two members read one stream after the other; a twin is fenced by the next one."""
    cursor = Journal(CURSOR, "cursor", "cursor-a")
    cursor.events = events(
        10.0,
        ("opened",),
        *got(INPUT, 0, 1, 2),
        ("seeks", 1),
        ("got", INPUT, 1, 6),
        ("interrupted",),
        ("seeking", 5),
        ("seeks", 5),
        ("committed",),
        ("opened",),
        *got(INPUT, 5, 6, 7, 8, 9),
    )
    one = member(ONE, 10.0, ("assigned", PART), *got(PART, 0, 1, 2, 3), ("committed",))
    one.events += events(15.0, *got(PART, 4), ("revoked", PART))
    other = member(OTHER, 20.0, ("assigned", PART), *got(PART, 4, 5, 6, 7, 8, 9))
    twin = member(TWIN, 10.0, ("assigned", PART), *got(PART, 0, 1, 2), instance="a", ended=3)
    twin.events.append(Event(31.0, "error", (FENCED, False, "another process")))
    next_twin = member(NEXT_TWIN, 30.0, ("assigned", PART), ("got", PART, 2, 9), instance="a")
    twin.reader = next_twin.reader = "twins"
    return History(
        journals=[
            sends(SENDER, INPUT, INPUT),
            sends(PART_SENDER, PARTS, PART),
            cursor,
            one,
            other,
            twin,
            next_twin,
        ],
        logs={
            INPUT: [Stored(n, f"{SENDER}:{n}", None) for n in range(COUNT)],
            PART: [Stored(n, f"{PART_SENDER}:{n}", "k") for n in range(COUNT)],
            OUTPUT: [Stored(n, f"{PART}:{n}", "k") for n in range(COUNT)],
        },
        ended_at=AGES,
    )


def test_a_run_that_is_well_has_no_anomaly() -> None:
    assert check(well()) == []


def test_of_a_name_the_process_that_was_started_first_may_join_last() -> None:
    """It was slow, or stood still: it stays then, and the other one ends."""
    history = well()
    first, second = history.journals[TWIN], history.journals[NEXT_TWIN]
    del first.events[-1]
    first.events.append(Event(31.0, "opened"))
    first.ended, second.ended = None, 3
    second.events.append(Event(31.5, "error", (FENCED, False, "another process")))
    assert [each for each in check(history) if each.kind in (Kind.PING_PONG, Kind.NOT_FENCED)] == []


def test_who_passes_over_what_was_purged_has_skipped_nothing() -> None:
    assert check(purge(well())) == []


def lose(history: History) -> None:
    history.logs[INPUT][3] = Stored(3, f"{SENDER}:2", None)


def deny(history: History) -> None:
    history.journals[SENDER].events.append(Event(5.0, "refused", (3, "unavailable", "")))


def store_twice(history: History) -> None:
    history.logs[INPUT].append(Stored(COUNT, f"{SENDER}:9", None))


def invent(history: History) -> None:
    history.logs[INPUT].append(Stored(COUNT, f"{SENDER}:99", None))


def reorder(history: History) -> None:
    log = history.logs[PART]
    log[3], log[4] = log[3]._replace(value=log[4].value), log[4]._replace(value=log[3].value)


def forget_an_outcome(history: History) -> None:
    del history.journals[SENDER].events[-1]


def settle_too_late(history: History) -> None:
    sender = history.journals[SENDER]
    sender.events[-1] = Event(AGES - 1, "acked", sender.events[-1].values)


def skip_within_a_life(history: History) -> None:
    del history.journals[CURSOR].events[2]


def skip_at_the_start_of_a_life(history: History) -> None:
    life = history.journals[CURSOR]
    life.events = [each for each in life.events if each.values[1:2] not in ((1,), (5,), (6,))]
    life.events = [each for each in life.events if each.what != "seeks"]


def pass_over_a_seek(history: History) -> None:
    life = history.journals[CURSOR]
    at = next(n for n, each in enumerate(life.events) if each.what == "seeks")
    life.events[at] = Event(life.events[at].at, "seeks", (0,))


def forget_a_commit(history: History) -> None:
    life = history.journals[CURSOR]
    life.events = [each for each in life.events if each.what not in ("seeking", "seeks")]


def forget_a_members_commit(history: History) -> None:
    history.journals[OTHER].events.insert(2, Event(20.015, "got", (PART, 3, 3)))


def skip_as_a_member(history: History) -> None:
    del history.journals[OTHER].events[4]


def skip_between_members(history: History) -> None:
    history.journals[OTHER].events[2:4] = []


def read_what_was_revoked(history: History) -> None:
    history.journals[ONE].events.append(Event(20.5, "got", (PART, 5, 5)))


def read_what_is_anothers(history: History) -> None:
    one = history.journals[ONE]
    del one.events[-1]  # It was removed, and has never heard of it.
    one.events += [Event(20.5 + n, "got", (PART, 5 + n, 5 + n)) for n in range(2)]


def read_on_as_an_earlier_twin(history: History) -> None:
    late = 30.0 + SESSION_SECONDS + 15
    history.journals[TWIN].events.append(Event(late, "got", (PART, 3, 3)))


def fence_the_last(history: History) -> None:
    last = history.journals[NEXT_TWIN]
    last.events.append(Event(32.0, "error", (FENCED, False, "another process")))
    last.ended = 3


def go_on_beside_a_twin(history: History) -> None:
    twin = history.journals[TWIN]
    del twin.events[-1]
    twin.ended = None


def purge(history: History, before: int = 4) -> History:
    """Of both streams, before anybody has read them; all readers begin there, and what is left of
    the outputs is those of records that were processed before."""
    for stream in (INPUT, PART):
        history.purges.append(Purge(0.5, stream, before))
        history.starts[stream] = before
        history.logs[stream] = history.logs[stream][before:]
    del history.logs[OUTPUT][1]
    history.journals[CURSOR].events = events(10.0, ("opened",), *got(INPUT, *range(4, COUNT)))
    history.journals[ONE].events = events(
        10.0, ("opened",), ("assigned", PART), *got(PART, *range(4, COUNT))
    )
    return history


def skip_what_is_purged_later(history: History) -> None:
    purge(history).purges = [Purge(20.0, INPUT, 4), Purge(20.0, PART, 4)]


def skip_more_than_was_purged(history: History) -> None:
    purge(history)
    del history.journals[CURSOR].events[1:3]


def skip_more_than_was_purged_as_a_member(history: History) -> None:
    purge(history)
    del history.journals[ONE].events[2:4]


def remove_what_nobody_asked_for(history: History) -> None:
    purge(history).purges = [Purge(0.5, INPUT, 3), Purge(0.5, PART, 4)]


def drop_an_output(history: History) -> None:
    del history.logs[OUTPUT][3]


def repeat_an_output(history: History) -> None:
    history.logs[OUTPUT].append(history.logs[OUTPUT][3]._replace(offset=COUNT))


def change_a_key(history: History) -> None:
    history.logs[OUTPUT][3] = history.logs[OUTPUT][3]._replace(key="other")


def reorder_outputs(history: History) -> None:
    log = history.logs[OUTPUT]
    log[3], log[4] = log[4], log[3]


def fail(history: History) -> None:
    history.journals[CURSOR].events.append(Event(40.0, "error", ("diverged", False, "gone")))


def crash(history: History) -> None:
    history.journals[CURSOR].events.append(Event(40.0, "crash", ("KeyError()",)))


def end_oddly(history: History) -> None:
    history.journals[CURSOR].ended = 1


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose, Kind.LOST),
        (deny, Kind.DENIED),
        (store_twice, Kind.DUPLICATE),
        (invent, Kind.INVENTED),
        (reorder, Kind.REORDERED),
        (forget_an_outcome, Kind.NO_OUTCOME),
        (settle_too_late, Kind.NO_OUTCOME),
        (skip_within_a_life, Kind.SKIPPED),
        (skip_at_the_start_of_a_life, Kind.SKIPPED),
        (pass_over_a_seek, Kind.SKIPPED),
        (skip_as_a_member, Kind.SKIPPED),
        (forget_a_commit, Kind.REPEATED),
        (forget_a_members_commit, Kind.REPEATED),
        (skip_between_members, Kind.SKIPPED),
        (read_what_was_revoked, Kind.TWO_READERS),
        (read_what_is_anothers, Kind.TWO_READERS),
        (read_on_as_an_earlier_twin, Kind.TWO_READERS),
        (fence_the_last, Kind.PING_PONG),
        (go_on_beside_a_twin, Kind.NOT_FENCED),
        (skip_what_is_purged_later, Kind.SKIPPED),
        (skip_more_than_was_purged, Kind.SKIPPED),
        (skip_more_than_was_purged_as_a_member, Kind.SKIPPED),
        (remove_what_nobody_asked_for, Kind.LOST),
        (drop_an_output, Kind.OUTPUT),
        (repeat_an_output, Kind.OUTPUT),
        (change_a_key, Kind.OUTPUT),
        (reorder_outputs, Kind.OUTPUT_ORDER),
        (fail, Kind.FAILED),
        (crash, Kind.FAILED),
        (end_oddly, Kind.FAILED),
    ],
)
def test_an_anomaly_that_is_planted_is_named(plant: Callable[[History], None], kind: Kind) -> None:
    history = well()
    plant(history)
    assert kind in {anomaly.kind for anomaly in check(history)}
