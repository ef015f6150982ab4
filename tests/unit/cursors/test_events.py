"""What is told of cursors: with the change itself, once, and whichever leader tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import JetstreamError, NotEnoughReplicasError, UnavailableError
from jetstream_protocol.generated.cursors_pb2 import Cursor
from jetstream_protocol.types import LeaderEpoch
from jetstream_server.cursors import store as stores
from jetstream_server.cursors import table as tables
from jetstream_server.cursors import teller
from jetstream_server.cursors.events import EVENT_PREFIX, Cause, Event, event_about, event_key
from jetstream_server.cursors.records import cursor_key
from jetstream_server.cursors.store import CURSORS, SETTINGS, CursorStore
from jetstream_server.cursors.table import CursorTable, Outcome, Write
from jetstream_server.cursors.teller import EventTeller
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.activity import ACTIVITY, note_cursors
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    NoteCursors,
    SetCluster,
    TrimActivity,
)
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS, Operation
from jetstream_server.metadata.state.outbox import NOTHING_NOTED, Outbox
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.listeners import Listeners
from tests.support.local_metadata import LocalMetadata
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop

CONSUMER, BY_HAND = Cause("user:me"), Cause("user:me", by_hand=True)


def cursor(name: str, offset: int, stream_id: int = 7) -> bytes:
    return Cursor(
        name=name,
        stream_id=stream_id,
        stream_name="orders",
        stream_subject="orders.>",
        offset=offset,
    ).SerializeToString()


def commit(name: str, offset: int, cause: Cause = CONSUMER, stream_id: int = 7) -> Write:
    key = cursor_key(name, "orders@orders.>")
    return Write(key, cursor(name, offset, stream_id), cause=cause)


def delete(name: str) -> Write:
    return Write(cursor_key(name, "orders@orders.>"), None, cause=BY_HAND)


def told(write: Write, before: bytes | None) -> dict[str, Any] | None:
    found = event_about(before, write.value, write.cause)
    return None if found is None else cast("dict[str, Any]", json.loads(found.text))


ABOUT = {
    "cursor": "mine",
    "stream": "orders@orders.>",
    "stream_id": 7,
    "principal": "user:me",
}


def test_the_first_commit_is_told_also_of_a_consumer() -> None:
    created = {"type": "cursor_created", "offset": 5, **ABOUT}
    assert told(commit("mine", 5, CONSUMER), None) == created
    assert told(commit("mine", 5, BY_HAND), None) == created


def test_of_later_commits_only_moves_by_hand_are_told() -> None:
    before = cursor("mine", 5)
    assert told(commit("mine", 9, CONSUMER), before) is None
    assert told(commit("mine", 5, BY_HAND), before) is None
    assert told(commit("mine", 2, BY_HAND), before) == {
        "type": "cursor_moved",
        "changes": {"offset": {"before": 5, "after": 2}},
        **ABOUT,
    }


def test_a_deletion_says_where_the_cursor_stood() -> None:
    gone = told(delete("mine"), cursor("mine", 5))
    assert gone == {"type": "cursor_deleted", "offset": 5, **ABOUT}
    assert told(delete("mine"), None) is None


def test_a_cursor_is_created_anew_for_the_next_stream_of_that_name() -> None:
    event = told(commit("mine", 0, CONSUMER, stream_id=20), cursor("mine", 5))
    assert event == {"type": "cursor_created", "offset": 0, **ABOUT, "stream_id": 20}


def test_without_security_nobody_is_named() -> None:
    event = told(commit("mine", 5, Cause("", by_hand=True)), None)
    assert event is not None
    assert "principal" not in event


class Log:
    """A table with its log, and everything committed."""

    def __init__(self) -> None:
        self.table = CursorTable()
        self.records: list[tuple[bytes, bytes | None]] = []

    def write(self, *writes: Write, epoch: int | None = 1) -> list[JetstreamError | None]:
        plan = self.table.plan([writes], len(self.records), epoch)
        self.records += zip(plan.keys, plan.values, strict=True)
        self.table.appended(plan)
        self.table.advance(len(self.records))
        return [outcome.error for outcome in plan.answers[0]]

    def reloaded(self) -> CursorTable:
        """As the next leader sees it."""
        fresh = CursorTable()
        keys, values = [key for key, _ in self.records], [value for _, value in self.records]
        fresh.load(range(len(self.records)), keys, values)
        return fresh

    def kinds(self) -> list[str]:
        return [json.loads(event.text)["type"] for event in self.table.events(1000, 1 << 20)]


def test_a_change_and_its_event_are_in_one_batch() -> None:
    log = Log()
    plan = log.table.plan([[commit("a", 1), commit("b", 1)], [commit("a", 2)]], 10, 3)
    assert plan.keys == [
        cursor_key("a", "orders@orders.>"),
        event_key(3, 11),
        cursor_key("b", "orders@orders.>"),
        event_key(3, 13),
        cursor_key("a", "orders@orders.>"),
    ]
    assert [each.entry and each.entry.revision for each in plan.answers[0]] == [10, 12]


def test_commits_of_consumers_cost_no_record_more() -> None:
    log = Log()
    log.write(commit("a", 0))
    before = len(log.records)
    for offset in range(1, 50):
        log.write(commit("a", offset))
    assert len(log.records) == before + 49
    assert log.kinds() == ["cursor_created"]


def test_groups_are_not_told() -> None:
    log = Log()
    log.write(Write(b"group/workers", b"state"))
    log.write(Write(b"group/workers", None))
    assert log.table.events(10, 1000) == []


def test_nothing_is_told_while_nobody_asks() -> None:
    log = Log()
    log.write(commit("a", 0), delete("a"), epoch=None)
    assert [key for key, _ in log.records] == [cursor_key("a", "orders@orders.>")] * 2


def test_events_are_taken_in_order_up_to_a_number_and_a_size_and_of_one_epoch() -> None:
    log = Log()
    log.write(*(commit(f"c{number}", 0) for number in range(5)), epoch=1)
    log.write(commit("later", 0), epoch=2)
    every = log.table.events(1000, 1 << 20)
    assert [(event.leader_epoch, event.offset) for event in every] == [
        (1, offset) for offset in (1, 3, 5, 7, 9)
    ]
    assert log.table.events(3, 1 << 20) == every[:3]
    assert log.table.events(1000, 1) == every[:1]
    log.write(*(Write(event.key, None) for event in every))
    assert [event.leader_epoch for event in log.table.events(1000, 1 << 20)] == [2]


def test_when_too_many_wait_only_changes_that_must_be_told_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "EVENTS_WAITING_MAX", 2)
    log = Log()
    assert log.write(commit("a", 0), commit("b", 0)) == [None, None]
    (refused,) = log.write(commit("c", 0))
    assert isinstance(refused, UnavailableError)
    assert "wait to be recorded in __activity" in refused.message
    (refused,) = log.write(delete("a"))
    assert isinstance(refused, UnavailableError)
    assert log.write(commit("a", 9), commit("b", 9)) == [None, None]
    assert cursor_key("a", "orders@orders.>") in log.table.committed_entries
    assert cursor_key("c", "orders@orders.>") not in log.table.committed_entries
    log.write(Write(log.table.events(1, 1)[0].key, None))
    assert log.write(commit("c", 0)) == [None]


def test_moves_by_hand_leave_room_for_creations_and_deletions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "EVENTS_WAITING_MAX", 6)
    monkeypatch.setattr(tables, "MOVES_WAITING_MAX", 3)
    log = Log()
    log.write(commit("a", 0), commit("b", 0))
    log.write(*(Write(event.key, None) for event in log.table.events(10, 1 << 20)))
    moves = log.write(*(commit("a", offset, BY_HAND) for offset in range(1, 10)))
    assert moves[:3] == [None] * 3
    for refused in moves[3:]:
        assert isinstance(refused, UnavailableError)
        assert "moved by hand faster" in refused.message
    anew = commit("b", 0, CONSUMER, stream_id=20)
    assert log.write(commit("c", 0, CONSUMER), delete("a"), anew) == [None] * 3
    assert log.kinds()[3:] == ["cursor_created", "cursor_deleted", "cursor_created"]
    (refused,) = log.write(commit("d", 0))
    assert isinstance(refused, UnavailableError)
    assert "created and deleted" in refused.message


def test_events_that_wait_for_their_commit_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "EVENTS_WAITING_MAX", 5)
    table, end_offset = CursorTable(), 0

    def taken(*names: str) -> int:
        nonlocal end_offset
        plan = table.plan([[commit(name, 0) for name in names]], end_offset, 1)
        table.appended(plan)
        end_offset = plan.end_offset
        return sum(outcome.error is None for outcome in plan.answers[0])

    assert taken("a", "b", "c") == 3
    assert taken("d", "e", "f", "g") == 2
    assert taken("h") == 0
    table.advance(end_offset)
    assert taken("h") == 0
    plan = table.plan([[Write(event.key, None) for event in table.events(2, 1 << 20)]], end_offset)
    table.appended(plan)
    end_offset = plan.end_offset
    assert taken("h") == 0, "the deletion is not committed"
    table.advance(end_offset)
    assert taken("h", "i", "j") == 2


def lifecycle_is_told(log: Log) -> bool:
    """Whether the events explain which cursors there are."""
    exist: set[str] = set()
    for key, value in log.records:
        if key.startswith(EVENT_PREFIX) and value is not None:
            event = json.loads(value)
            if event["type"] == "cursor_created":
                exist.add(event["cursor"])
            elif event["type"] == "cursor_deleted":
                exist.remove(event["cursor"])
    cursors = [key for key in log.table.committed_entries if not key.startswith(EVENT_PREFIX)]
    return {key.split(b"/")[1].decode() for key in cursors} == exist


steps = st.lists(
    st.builds(commit, st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([CONSUMER]))
    | st.builds(delete, st.sampled_from("abc")),
    max_size=20,
)


@given(steps)
def test_the_events_say_which_cursors_exist_and_a_new_leader_finds_them(steps: list[Write]) -> None:
    log = Log()
    for write in steps:
        log.write(write)
    assert lifecycle_is_told(log)
    assert log.reloaded().events(1000, 1 << 20) == log.table.events(1000, 1 << 20)


# On a node.


class Leader:
    """A node that leads `__cursors` and commits what it appends at once."""

    def __init__(self, folder: Path, *, level: FeatureLevel = FEATURE_LEVEL_MAX) -> None:
        self.node = Node(folder)
        self.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        self.node.cluster.do(SetCluster(feature_level=level))
        self.metadata = LocalMetadata(self.node.cluster)
        self.node.open()
        self.begin()
        self.node.create(CURSORS, "", (0,), config=SETTINGS, internal=True)

    def begin(self) -> None:
        self.store = CursorStore(
            lambda: True,
            lambda source: [],
            self.node.clocks.monotonic,
            cast(RaftMetadataLog, self.metadata),
        )
        self.node.begin(Listeners(roles=(self.store,)))

    def record(self) -> None:
        self.node.create(ACTIVITY, "", (0,), internal=True)

    async def write(self, *writes: Write) -> None:
        await self.until(asyncio.ensure_future(self.store.write(writes)).done)

    async def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.node.flushes.run()
            return condition()

        await eventually(holds)

    async def restart(self) -> None:
        """The node is killed, and leads again."""
        await self.store.close()
        self.node.replicas.close()
        self.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
        self.node.open(clean=True)
        self.begin()

    def told(self) -> list[tuple[str, str]]:
        events = map(json.loads, self.metadata.registry.activity.after(0))
        return [(e["type"], e["cursor"]) for e in events if "cursor" in e]

    async def settled(self) -> None:
        """Return once no event waits."""
        table = await self.store.table()
        await self.until(lambda: not table.events(1, 1))


@on_virtual_loop
async def test_events_reach_the_outbox_and_leave_the_cursors(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams")
    leader.record()
    await leader.write(commit("a", 0), commit("b", 0))
    await leader.write(commit("a", 5, BY_HAND), delete("b"))
    await leader.settled()
    assert leader.told() == [
        ("cursor_created", "a"),
        ("cursor_created", "b"),
        ("cursor_moved", "a"),
        ("cursor_deleted", "b"),
    ]
    table = await leader.store.table()
    assert [key for key in table.committed_entries if key.startswith(EVENT_PREFIX)] == []
    await leader.store.close()


async def killed_before_it_tells(folder: Path) -> list[tuple[str, str]]:
    """What is told in the end although the leader dies with the metadata out of its reach."""
    leader = Leader(folder)
    leader.record()
    leader.metadata.trouble = UnavailableError("no metadata leader")
    await leader.write(commit("a", 0))
    await leader.write(delete("a"))
    await leader.until(lambda: bool(leader.metadata.proposed))
    assert leader.told() == []
    await leader.restart()
    leader.metadata.trouble = None
    await leader.settled()
    await leader.store.close()
    return leader.told()


async def killed_after_it_told(folder: Path) -> list[tuple[str, str]]:
    """The same of a leader that dies before it hears that the metadata takes the event. The next
    one does not see it there yet."""
    leader = Leader(folder)
    leader.record()
    leader.metadata.trouble, leader.metadata.is_late = UnavailableError("answer lost"), True
    await leader.write(commit("a", 0))
    await leader.until(lambda: bool(leader.metadata.proposed))
    await leader.restart()
    leader.metadata.trouble = None
    proposed = len(leader.metadata.proposed)
    await leader.settled()
    assert len(leader.metadata.proposed) > proposed, "it cannot know that it was taken"
    await leader.store.close()
    return leader.told()


CREATED, DELETED = ("cursor_created", "a"), ("cursor_deleted", "a")


@on_virtual_loop
async def test_a_leader_that_dies_before_it_tells_is_followed_by_one_that_does(
    tmp_path: Path,
) -> None:
    assert await killed_before_it_tells(tmp_path / "streams") == [CREATED, DELETED]


@on_virtual_loop
async def test_a_leader_that_dies_after_it_told_is_followed_by_one_that_tells_nothing_twice(
    tmp_path: Path,
) -> None:
    assert await killed_after_it_told(tmp_path / "streams") == [CREATED]


class HastyTeller(EventTeller):
    """Deletes events before the metadata has them."""

    async def _note(self, events: Sequence[Event]) -> None:
        await self._write([Write(event.key, None) for event in events])
        await super()._note(events)


@on_virtual_loop
async def test_events_whose_deletion_is_refused_are_not_proposed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "RETRY_SECONDS", 0.01)
    leader = Leader(tmp_path / "streams")
    leader.record()
    log, deletions = Log(), 0
    log.write(*(commit(f"c{number}", 0) for number in range(3)))

    async def write(writes: Sequence[Write]) -> list[Outcome]:
        nonlocal deletions
        deletions += 1
        if deletions < 5:
            raise NotEnoughReplicasError("too few replicas are in sync")
        log.write(*writes)
        return []

    telling = EventTeller(log.table, write, cast(RaftMetadataLog, leader.metadata))
    telling.start()
    await eventually(lambda: not log.table.events(1, 1))
    assert deletions == 5
    assert len(leader.metadata.proposed) == 1
    log.write(commit("later", 0))
    telling.look()
    await eventually(lambda: not log.table.events(1, 1))
    telling.end()
    assert [name for _, name in leader.told()] == ["c0", "c1", "c2", "later"]
    await leader.store.close()


async def told_after_a_higher_offset(folder: Path) -> list[tuple[str, str]]:
    """What is told in the end if an earlier leader had an event noted far after the end of the log
    (without what it had appended, a later one leads)."""
    leader = Leader(folder)
    leader.record()
    await leader.restart()
    found = event_about(None, cursor("before", 0), BY_HAND)
    assert found is not None
    leader.node.cluster.do(
        NoteCursors(leader_epoch=LeaderEpoch(0), offsets=(1_000,), events=(found.text,))
    )
    await leader.write(commit("a", 0))
    await leader.settled()
    await leader.store.close()
    return leader.told()


@on_virtual_loop
async def test_a_higher_offset_of_an_earlier_leader_does_not_count(tmp_path: Path) -> None:
    told = await told_after_a_higher_offset(tmp_path / "streams")
    assert told == [("cursor_created", "before"), CREATED]


class TestMutants:
    """Each rule is needed."""

    @on_virtual_loop
    async def test_events_are_deleted_before_they_are_noted(self, tmp_path: Path) -> None:
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(stores, "EventTeller", HastyTeller)
            leader = Leader(tmp_path / "streams")
            leader.record()
            leader.metadata.trouble = UnavailableError("no metadata leader")
            await leader.write(commit("a", 0))
            await leader.until(lambda: bool(leader.metadata.proposed))
            await leader.restart()
            leader.metadata.trouble = None
            await leader.settled()
            await leader.store.close()
        assert leader.told() == [], "lost"

    @on_virtual_loop
    async def test_what_is_noted_is_told_by_the_offset_alone(self, tmp_path: Path) -> None:
        def by_offset(event: Event, outbox: Outbox) -> bool:
            return event.offset <= outbox.cursors_noted[1]

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(teller, "is_noted", by_offset)
            told = await told_after_a_higher_offset(tmp_path / "streams")
        assert told == [("cursor_created", "before")], "the second is lost"

    @on_virtual_loop
    async def test_the_metadata_takes_whatever_comes(self, tmp_path: Path) -> None:
        def note_again(tables: Tables, command: NoteCursors) -> Decision:
            tables.activity = replace(tables.activity, cursors_noted=NOTHING_NOTED)
            return note_cursors(tables, command)

        with pytest.MonkeyPatch.context() as patches:
            patches.setitem(OPERATIONS, NoteCursors.op, Operation(NoteCursors, note_again))
            assert await killed_after_it_told(tmp_path / "streams") == [CREATED, CREATED]

    @on_virtual_loop
    async def test_a_position_is_an_offset_alone(self, tmp_path: Path) -> None:
        def note_by_offset(tables: Tables, command: NoteCursors) -> Decision:
            return note_cursors(tables, replace(command, leader_epoch=LeaderEpoch(0)))

        with pytest.MonkeyPatch.context() as patches:
            patches.setitem(OPERATIONS, NoteCursors.op, Operation(NoteCursors, note_by_offset))
            leader = Leader(tmp_path / "streams")
            leader.record()
            found = event_about(None, cursor("a", 0), BY_HAND)
            assert found is not None
            for epoch in (1, 2):  # Without what the first leader had appended.
                leader.node.cluster.do(
                    NoteCursors(leader_epoch=LeaderEpoch(epoch), offsets=(5,), events=(found.text,))
                )
        assert leader.told() == [CREATED], "the second is lost"
        await leader.store.close()


@on_virtual_loop
async def test_thousands_of_cursors_are_told_in_bounded_entries_and_commits_cost_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "OUTBOX_MAX", 5_000)  # Nobody empties the outbox.
    leader = Leader(tmp_path / "streams")
    leader.record()
    before = leader.metadata.registry.revision
    await leader.write(*(commit(f"c{number}", 0) for number in range(3_000)))
    await leader.settled()
    commands = leader.metadata.proposed
    assert max(len(str(command.to_dict())) for command in commands) < 2 * teller.NOTED_BYTES
    assert len(leader.told()) == 3_000
    assert leader.metadata.registry.revision - before == len(commands) <= 10
    for offset in range(1, 100):
        await leader.write(*(commit(f"c{number}", offset) for number in range(10)))
    assert leader.metadata.registry.revision - before == len(commands), "commits cost nothing"
    await leader.store.close()


@on_virtual_loop
async def test_events_of_cursors_do_not_push_others_out_of_the_outbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "OUTBOX_MAX", 4)
    monkeypatch.setattr(teller, "NOTED_MAX", 2)
    monkeypatch.setattr(teller, "RETRY_SECONDS", 0.01)
    leader = Leader(tmp_path / "streams")
    leader.record()
    await leader.write(*(commit(f"c{number}", 0) for number in range(20)))
    table, registry = await leader.store.table(), leader.metadata.registry
    recorded = 0
    while table.events(1, 1):
        await leader.until(lambda: len(registry.activity.events) >= 4 or not table.events(1, 1))
        assert len(registry.activity.events) <= 5
        recorded += len(registry.activity.events)
        leader.node.cluster.do(TrimActivity(through=registry.activity.next_sequence - 1))
    assert recorded + len(registry.activity.events) == 21
    await leader.store.close()


@pytest.mark.parametrize("level", [4, FEATURE_LEVEL_MAX])
@on_virtual_loop
async def test_who_does_not_ask_pays_nothing(tmp_path: Path, level: int) -> None:
    leader = Leader(tmp_path / "streams", level=FeatureLevel(level))
    if level == 4:
        leader.record()
    await leader.write(commit("a", 0))
    await leader.write(delete("a"))
    replica = leader.node.replicas.get(leader.metadata.registry.streams_named(CURSORS)[0].id)
    assert replica is not None
    assert replica.log.log_end_offset == 2
    assert leader.metadata.proposed == []
    await leader.store.close()
