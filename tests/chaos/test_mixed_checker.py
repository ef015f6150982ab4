"""Every anomaly that a run under fire looks for, planted into one that is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.damage.checker import Kind as CopyKind
from tests.chaos.damage.copies import Copy, Record
from tests.chaos.damage.publishers import Books
from tests.chaos.mixed.checker import Kind, check, check_words
from tests.chaos.mixed.history import History, Session, SparkRow
from tests.chaos.mixed.nemesis import ALONE, FAULTS, steps
from tests.chaos.mixed.streams import BATCHED, KEYED, ORDERED, SHARED, STREAMS

COUNT = 20
Copies = dict[str, list[Copy]]


def well() -> tuple[History, Copies]:
    """A run of COUNT messages in each stream, at the offsets of their numbers."""
    history = History()
    copies: Copies = {}
    for stream in STREAMS:
        books = history.books[stream.name] = Books(sent=COUNT)
        session = history.begin_session(stream.name, "leader", 0.0)
        records = {}
        for number in range(COUNT):
            books.note(number, number)
            session.records.append((number, number))
            records[number] = Record(number, stream.key(number))
        history.spark[stream.name] = [
            SparkRow(offset, each.number, each.key.decode() if each.key else None)
            for offset, each in records.items()
        ]
        copies[stream.name] = [
            Copy(node, high_watermark=COUNT, data=b"equal", records=dict(records))
            for node in range(3)
        ]
    history.table = {KEYED.key(number) or b"": number for number in range(COUNT)}
    history.published = {str(number) for number in range(COUNT)}
    history.handled = {str(number) for number in range(COUNT + 3)}  # Unknown ones, stored.
    for name in SHARED:
        for offset in (0, 5, 5, 9):
            history.committed(name, offset)
    return history, copies


def kinds(history: History, copies: Copies) -> set[str]:
    return {str(anomaly.kind) for anomaly in check(history, copies)}


def test_a_run_that_is_well_has_no_anomaly() -> None:
    assert check(*well()) == []


def session(history: History, stream: str) -> Session:
    return next(each for each in history.sessions if each.stream == stream)


def lose(history: History, copies: Copies) -> None:
    for copy in copies[ORDERED.name]:
        del copy.records[7]


def acknowledge_elsewhere(history: History, copies: Copies) -> None:
    history.books[ORDERED.name].acked[7] = [8]


def acknowledge_one_offset_twice(history: History, copies: Copies) -> None:
    history.books[BATCHED.name].acked[COUNT] = [7]


def store_twice(history: History, copies: Copies) -> None:
    for copy in copies[BATCHED.name]:
        copy.high_watermark = COUNT + 1
        copy.records[COUNT] = copy.records[7]


def reorder(history: History, copies: Copies) -> None:
    books = history.books[ORDERED.name]
    for copy in copies[ORDERED.name]:
        copy.records[7], copy.records[8] = copy.records[8], copy.records[7]
    books.acked[7], books.acked[8] = [8], [7]


def go_back(history: History, copies: Copies) -> None:
    session(history, BATCHED.name).records[8:8] = [(3, 3)]


def skip(history: History, copies: Copies) -> None:
    del session(history, BATCHED.name).records[8]


def read_beyond(history: History, copies: Copies) -> None:
    session(history, ORDERED.name).records.append((COUNT, COUNT))


def read_two_records(history: History, copies: Copies) -> None:
    history.begin_session(ORDERED.name, "any", 1.0).records.append((7, 6))


def part(history: History, copies: Copies) -> None:
    copies[ORDERED.name][1].data = b"other"


def commit_as_a_zombie(history: History, copies: Copies) -> None:
    history.committed(SHARED[0], 4)


def leave_unhandled(history: History, copies: Copies) -> None:
    history.handled.discard("7")


def spoil_the_table(history: History, copies: Copies) -> None:
    assert history.table is not None
    history.table[next(iter(history.table))] = -1


def forget_a_key(history: History, copies: Copies) -> None:
    assert history.table is not None
    history.table.popitem()


def drop_a_row(history: History, copies: Copies) -> None:
    del history.spark[KEYED.name][7]


def repeat_a_row(history: History, copies: Copies) -> None:
    history.spark[ORDERED.name].append(history.spark[ORDERED.name][7])


def trespass(history: History, copies: Copies) -> None:
    history.trespasses.append("1 records of secret")


def invent(history: History, copies: Copies) -> None:
    for copy in copies[KEYED.name]:
        copy.records[7] = Record(-1, copy.records[7].key)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose, CopyKind.LOST),
        (acknowledge_elsewhere, CopyKind.WRONG_BYTES),
        (acknowledge_one_offset_twice, CopyKind.OFFSET_TWICE),
        (store_twice, CopyKind.DUPLICATE),
        (reorder, Kind.REORDERED),
        (go_back, Kind.OFFSET_REGRESSION),
        (skip, Kind.OFFSET_REGRESSION),
        (read_beyond, Kind.UNCOMMITTED_READ),
        (read_two_records, Kind.CHANGED),
        (part, CopyKind.DIFFERS),
        (commit_as_a_zombie, Kind.ZOMBIE_COMMIT),
        (leave_unhandled, Kind.NOT_HANDLED),
        (spoil_the_table, Kind.TABLE),
        (forget_a_key, Kind.TABLE),
        (invent, CopyKind.WRONG_BYTES),
        (drop_a_row, Kind.SPARK),
        (repeat_a_row, Kind.SPARK),
        (trespass, Kind.TRESPASS),
    ],
)
def test_an_anomaly_that_is_planted_is_named(
    plant: Callable[[History, Copies], None], kind: CopyKind | Kind
) -> None:
    history, copies = well()
    plant(history, copies)
    assert str(kind) in kinds(history, copies)


def test_messages_that_may_have_overtaken_each_other_in_nats_may_be_reordered() -> None:
    history, copies = well()
    reorder(history, copies)
    history.overtaking = [(7, 8)]
    assert str(Kind.REORDERED) not in kinds(history, copies)
    history.overtaking = [(5, 7), (9, 12)]
    assert str(Kind.REORDERED) in kinds(history, copies)


def test_a_log_that_failed_because_its_disk_was_full_is_named() -> None:
    def failed(reason: str) -> str:
        return f'{{"event": "log_failed", "reason": "writing to x: {reason}"}}'

    found = check_words([failed("Input/output error"), failed("No space left on device")])
    assert [each.kind for each in found] == [Kind.FULL_DISK]


def test_what_a_compacted_stream_no_longer_holds_may_have_been_read() -> None:
    history, copies = well()
    for copy in copies[KEYED.name]:
        first = next(
            offset for offset, record in copy.records.items() if _is_replaced(copy, offset)
        )
        del copy.records[first]
    history.spark.clear()
    assert check(history, copies) == []


def _is_replaced(copy: Copy, offset: int) -> bool:
    key = copy.records[offset].key
    return any(record.key == key for at, record in copy.records.items() if at > offset)


def test_the_steps_of_a_run_follow_from_its_seed() -> None:
    one, same, other = (steps(seed, tuple(FAULTS)) for seed in ("a", "a", "b"))
    drawn = [one(number) for number in range(300)]
    assert drawn == [same(number) for number in range(300)]
    assert drawn != [other(number) for number in range(300)]
    assert {name for step in drawn for name in step.faults} == {*FAULTS}
    for step in drawn:
        assert len(step.faults) == 1 or ALONE.isdisjoint(step.faults)
