"""The table of cursors: what is written, refused, shown, and when it is answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import (
    PreconditionFailedError,
    QuotaExceededError,
)
from jetstream_protocol.generated.cursors_pb2 import Cursor
from jetstream_server.cursors.records import cursor_key
from jetstream_server.cursors.table import NO_REVISION, CursorTable, Entry, Plan, Write


class Log:
    """A table over its log."""

    def __init__(self, keys_max: int = 1000) -> None:
        self.table = CursorTable(keys_max)
        self.records: list[tuple[bytes, bytes | None]] = []

    def append(self, *requests: Sequence[Write]) -> Plan:
        plan = self.table.plan(requests, len(self.records))
        self.records += zip(plan.keys, plan.values, strict=True)
        self.table.appended(plan)
        return plan

    def write(self, key: bytes, value: bytes | None, expected: int | None = None) -> Entry | None:
        """Append and commit it. Raises the error of a refusal."""
        plan = self.append([Write(key, value, expected)])
        assert self.table.advance(len(self.records))[-1] is plan
        (outcome,) = plan.answers[0]
        if outcome.error is not None:
            raise outcome.error
        return outcome.entry


def test_what_is_not_committed_is_neither_shown_nor_answered() -> None:
    log = Log()
    first, second = log.append([Write(b"a", b"1")]), log.append([Write(b"a", b"2")])
    assert not log.table.committed_entries
    assert log.table.advance(0) == []
    assert log.table.advance(1) == [first]
    assert log.table.committed_entries == {b"a": Entry(b"1", 0)}
    assert log.table.advance(2) == [second]
    assert log.table.committed_entries == {b"a": Entry(b"2", 1)}
    assert not log.table.waits


def test_the_revision_of_a_record_is_its_offset() -> None:
    log = Log()
    log.write(b"b", b"x")
    assert log.write(b"a", b"1") == Entry(b"1", 1)
    assert log.write(b"a", b"2") == Entry(b"2", 2)


def test_a_revision_that_is_not_the_present_one_is_refused_with_the_present_record() -> None:
    log = Log()
    log.write(b"a", b"1", NO_REVISION)
    plan = log.append([Write(b"a", b"2", 5), Write(b"a", b"2", NO_REVISION)])
    assert plan.keys == []
    for outcome in plan.answers[0]:
        assert isinstance(outcome.error, PreconditionFailedError)
        assert outcome.entry == Entry(b"1", 0)
    assert log.write(b"a", b"2", 0) == Entry(b"2", 1)


def test_a_condition_looks_at_records_that_wait_and_at_those_of_the_same_batch() -> None:
    log = Log()
    log.append([Write(b"a", b"1", NO_REVISION)])
    plan = log.append([Write(b"a", b"2", 0)], [Write(b"a", b"3", 0)], [Write(b"a", b"4", 1)])
    assert plan.values == [b"2", b"4"]
    assert isinstance(plan.answers[1][0].error, PreconditionFailedError)
    assert plan.answers[1][0].entry == Entry(b"2", 1)


def test_a_refusal_waits_for_the_record_it_speaks_of() -> None:
    log = Log()
    log.append([Write(b"a", b"1")])
    refused = log.append([Write(b"a", b"2", NO_REVISION)])
    assert refused not in log.table.advance(0)
    assert refused in log.table.advance(1)


def test_deleting_what_there_is_not_writes_nothing() -> None:
    log = Log()
    assert log.append([Write(b"a", None)]).keys == []
    log.write(b"a", b"1")
    assert log.write(b"a", None) is None
    assert log.table.committed_entries == {}
    assert log.write(b"a", b"2", NO_REVISION) == Entry(b"2", 2)


def test_beyond_the_limit_a_new_key_is_refused_and_a_known_one_is_not() -> None:
    log = Log(keys_max=1)
    log.write(b"a", b"1")
    with pytest.raises(QuotaExceededError, match="1 cursors"):
        log.write(b"b", b"1")
    assert log.write(b"a", b"2") == Entry(b"2", 1)


def test_pages_hold_every_key_once_and_in_order() -> None:
    log = Log()
    for key in (b"d", b"a", b"c", b"b", b"e"):
        log.write(key, key)
    seen, after = [], b""
    while True:
        entries, after = log.table.page(b"", after, 2)
        seen += [entry.value for entry in entries]
        if not after:
            break
    assert seen == [b"a", b"b", b"c", b"d", b"e"]
    assert CursorTable().page(b"", b"", 2) == ([], b"")


_writes = st.builds(
    Write,
    st.sampled_from([b"a", b"b"]),
    st.sampled_from([None, b"1", b"2"]),
    st.sampled_from([None, NO_REVISION, 0, 1, 2]),
)


@given(st.lists(st.one_of(st.lists(st.lists(_writes, max_size=3), max_size=3), st.integers(0, 5))))
def test_whoever_loads_the_log_knows_what_the_leader_knew(
    steps: list[list[list[Write]] | int],
) -> None:
    """A number commits that many more records. A later leader has read all committed ones."""
    log = Log()
    high_watermark = 0
    for step in steps:
        if isinstance(step, int):
            high_watermark = min(len(log.records), high_watermark + step)
            # A batch is committed as a whole.
            log.table.advance(high_watermark)
        else:
            log.append(*step)
    log.table.advance(len(log.records))
    later = CursorTable()
    later.load(
        range(len(log.records)),
        [key for key, _ in log.records],
        [value for _, value in log.records],
    )
    assert later.committed_entries == log.table.committed_entries
    assert not log.table.waits
    for key in (b"a", b"b"):
        now = later.committed_entries.get(key)
        expected = NO_REVISION if now is None else now.revision
        (outcome,) = log.append([Write(key, b"next", expected)]).answers[0]
        assert outcome.error is None


def cursor(name: str, creator: str = "", most: int = 2) -> Write:
    value = Cursor(name=name).SerializeToString()
    return Write(cursor_key(name, "s@s"), value, creator=creator, creator_keys_max=most)


def refused(plan: Plan) -> list[bool]:
    outcomes = [outcome for answer in plan.answers for outcome in answer]
    assert all(isinstance(each.error, QuotaExceededError) for each in outcomes if each.error)
    return [each.error is not None for each in outcomes]


def test_a_creator_has_so_many_cursors_whether_they_are_committed_or_wait() -> None:
    log = Log()
    one_plan = log.append([cursor("a", "u"), cursor("b", "u")], [cursor("c", "u")])
    assert refused(one_plan) == [False, False, True]
    assert refused(log.append([cursor("c", "u"), cursor("c", "v"), cursor("c", "u")])) == [
        True,
        False,
        False,
    ]
    log.table.advance(len(log.records))
    assert refused(log.append([cursor("d", "u"), cursor("d")])) == [True, False]
    gone = Write(cursor_key("a", "s@s"), None)
    assert refused(log.append([gone, cursor("e", "u"), cursor("f", "u")])) == [False, False, True]
    assert refused(log.append([cursor("g", "u", most=0)])) == [False]


def test_a_new_leader_knows_the_creators_from_the_log() -> None:
    log = Log()
    log.append([cursor("a", "u"), cursor("b", "u")])
    log.append([cursor("a", "v")])
    log.append([Write(b"group/g", b"no cursor")])
    again = Log()
    again.records = log.records
    again.table.load(range(4), *zip(*log.records, strict=True))
    assert refused(again.append([cursor("c", "u"), cursor("c", "v"), cursor("d", "v")])) == [
        True,
        False,
        False,
    ]
    assert refused(again.append([cursor("e", "v")])) == [True]


def test_the_number_of_keys_of_a_creator_stays_right() -> None:
    log = Log()
    log.table.advance(
        log.append([Write(b"cursor/a", b"", creator="ada", creator_keys_max=2)]).end_offset
    )
    plans = [
        log.append([Write(b"cursor/a", None)]),
        log.append([Write(b"cursor/a", b"", creator="ada", creator_keys_max=2)]),
        log.append([Write(b"cursor/a", None)]),
    ]
    log.table.advance(plans[0].end_offset)
    log.table.advance(plans[1].end_offset)
    log.append([Write(b"cursor/a", b"", creator="ada", creator_keys_max=2)])
    log.table.advance(len(log.records))
    assert log.table._created["ada"] == 1, "one cursor exists"


def test_the_upper_bound_counts_each_key_once() -> None:
    log = Log(keys_max=10)
    for number in range(6):
        log.write(b"cursor/%d" % number, b"1")
    log.append([Write(b"cursor/%d" % number, b"2") for number in range(6)])  # commits that wait
    plan = log.append([Write(b"cursor/new", b"1")])
    assert plan.answers[0][0].error is None, plan.answers[0][0].error


def test_groups_that_nobody_uses_leave_room_for_cursors() -> None:
    log = Log(keys_max=10)
    for number in range(10):  # what a group without members leaves behind, for ever
        log.write(b"group/run-%d" % number, b"generation 3, no members")
    error = log.append([Write(b"cursor/a", b"1", NO_REVISION)]).answers[0][0].error
    assert error is None, f"{error!r}: there is none, and no call deletes a group"
