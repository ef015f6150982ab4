"""Indexes of subjects are made in the background, and kept as long as somebody needs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import (
    CorruptBatchError,
    PreconditionFailedError,
    QuotaExceededError,
    UnavailableError,
)
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import view
from jetstream_server.log.inspection import BadRange
from jetstream_server.log.subject_index import Rows, SubjectIndex
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.replication import subjects
from jetstream_server.replication.drivers import indexing
from jetstream_server.replication.drivers.indexing import FORGET_US, FULL_US, Indexing
from jetstream_server.replication.replica import Replica
from tests.support.loops import eventually, on_loop
from tests.support.node import Node

COUNT = 50


def node_with_records(tmp_path: Path, **config: object) -> tuple[Node, Replica]:
    """A stream with `key: subject` that has COUNT subjects, restarted: nothing is known of it."""
    node = Node(tmp_path / "streams", level=FeatureLevel(6))
    node.start()
    replica = node.create(config={"key": "subject", **config})
    for number in range(COUNT):
        subject = b"orders.%d" % number
        replica.append(encode([b"v"], subject, keys=[subject]))
    node.flushes.run()
    node.restart()
    return node, node.replica(replica.stream)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Indexing]:
    driver = Indexing(monotonic_clock=node.clocks.monotonic)
    try:
        yield driver
    finally:
        await driver.close()


def is_known(replica: Replica) -> bool:
    return subjects.count_if_known(replica) is not None


@on_loop
async def test_it_is_made_step_by_step_and_says_nothing_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "STEP_BYTES", 1)
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(indexing, "STEPS_PER_TURN", 3)
    node, replica = node_with_records(tmp_path)
    with pytest.raises(UnavailableError, match="is being made"):
        subjects.last_committed(replica, b"orders.7")
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: is_known(replica))
    assert subjects.count_if_known(replica) == COUNT
    last = subjects.last_committed(replica, b"orders.7")
    assert last is not None
    assert last.offset == 7
    assert subjects.last_committed(replica, b"orders.other") is None
    found = dict(subjects.committed_subjects(replica, "orders.1"))
    assert {subject: last.offset for subject, last in found.items()} == {b"orders.1": 1}


@on_loop
async def test_what_is_not_committed_is_not_told(tmp_path: Path) -> None:
    node, replica = node_with_records(tmp_path)
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: is_known(replica))
    replica.append(encode([b"new"], b"orders.7", keys=[b"orders.7"]))
    last = subjects.last_committed(replica, b"orders.7")
    assert last is not None
    assert last.offset == 7
    assert subjects.expected_end(replica, b"orders.7") == COUNT + 1
    node.flushes.run()
    last = subjects.last_committed(replica, b"orders.7")
    assert last is not None
    assert last.offset == COUNT


@on_loop
async def test_one_that_only_a_leadership_has_needed_goes_with_it(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    async with running(node) as driver:
        node.replicas.index_wanted = driver.track
        assert subjects.expected_end(replica, b"orders.a") == 0
        assert replica.log.subjects is not None
        with pytest.raises(PreconditionFailedError, match="has no index"):
            subjects.last_committed(replica, b"orders.a")
        driver.role_changed(replica)
        assert replica.log.subjects is not None
        replica.retire()
        driver.role_changed(replica)
        assert replica.log.subjects is None


@on_loop
async def test_too_many_subjects_are_tried_again_much_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    node, replica = node_with_records(tmp_path)
    full = replica.log.subjects = SubjectIndex(0, bytes_max=200)
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: full.is_full)
        full._bytes_max = 1 << 20
        for _ in range(2):  # First it notes since when the index is full.
            await eventually(lambda: replica in driver._full_since_us or not full.is_full)
            node.clocks.advance(FULL_US)
        await eventually(lambda: is_known(replica))


@on_loop
async def test_subjects_of_removed_records_are_forgotten(tmp_path: Path) -> None:
    node, replica = node_with_records(tmp_path)
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: is_known(replica))
    replica.log.begin_advance(20)
    assert subjects.last_committed(replica, b"orders.7") is None
    assert subjects.expected_end(replica, b"orders.7") == 0
    assert subjects.count_if_known(replica) == COUNT - 20
    index = replica.log.subjects
    assert index is not None
    assert len(index) == COUNT - 20


@on_loop
async def test_one_of_a_busy_stream_reaches_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is appended whenever a step is read in a thread."""
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    node, replica = node_with_records(tmp_path)
    log, loop, read_subjects = replica.log, asyncio.get_running_loop(), CommitLog.read_subjects
    in_threads = 0

    async def append() -> None:
        replica.append(encode([b"new"], b"orders.new", keys=[b"orders.new"]))

    def read(log: CommitLog, offset: int, bytes_max: int, limit: int) -> Rows | None:
        nonlocal in_threads
        found = read_subjects(log, offset, bytes_max, limit)
        if threading.current_thread() is not threading.main_thread():
            in_threads += 1
            asyncio.run_coroutine_threadsafe(append(), loop).result()
        return found

    monkeypatch.setattr(CommitLog, "read_subjects", read)
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: in_threads > 0)
        index = log.subjects
        assert index is not None
        await eventually(lambda: index.reached == log.log_end_offset)
    assert in_threads == 1


@on_loop
async def test_what_the_background_has_read_lets_messages_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    node, replica = node_with_records(tmp_path)
    index = replica.log.subjects
    assert index is not None
    for _ in range(2 * subjects.STEPS_AT_ONCE):
        subjects.catch_up(replica, index, bytes_max=1)
    assert index.reached == subjects.STEPS_AT_ONCE
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: index.reached == COUNT and not index.steps_at_once)


@on_loop
async def test_of_streams_without_the_setting_the_largest_index_goes_if_all_take_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any publisher may begin one, of each stream that it may publish to."""
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(indexing, "OTHERS_BYTES_MAX", 100 * 160)
    node, keyed = node_with_records(tmp_path)
    others = [node.create(f"s{number}", f"s{number}.>") for number in range(3)]
    for replica, count in zip(others, (30, 60, 40), strict=True):
        for number in range(count):
            replica.append(encode([b"v"], b"%d" % number))
    node.flushes.run()
    indexes = [subjects.begin(replica) for replica in others]
    async with running(node) as driver:
        driver.role_changed(keyed)
        for replica in others:
            driver.track(replica)
        await eventually(lambda: any(index.is_full for index in indexes))
        await eventually(lambda: indexes[0].reached == 30 and indexes[2].reached == 40)
        assert [index.is_full for index in indexes] == [False, True, False]
        assert is_known(keyed)
        with pytest.raises(QuotaExceededError):
            subjects.expected_end(others[1], b"1")
        others[2].retire()
        driver.role_changed(others[2])
        assert driver._others_bytes == sum(index.size_bytes for index in indexes[:2])


def lose_what_is_there(replica: Replica) -> None:
    """As if the device could not read any record that the log has."""
    log = replica.log
    log.seal()
    segment = log.damage.segments()[0]
    bad = BadRange(0, 0, segment.next_offset, 0, segment.size, "the device cannot read it")
    assert log.damage.mark(segment, view(segment), [bad]) == [bad]


@on_loop
async def test_what_the_only_replica_has_lost_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    node, replica = node_with_records(tmp_path)
    lose_what_is_there(replica)
    replica.append(encode([b"later"], b"orders.7", keys=[b"orders.7"]))
    node.flushes.run()
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: is_known(replica))
    assert subjects.expected_end(replica, b"orders.7") == COUNT + 1
    assert subjects.expected_end(replica, b"orders.8") == 0


@on_loop
async def test_what_another_replica_may_have_is_not(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", level=FeatureLevel(6))
    node.start()
    node.cluster.register(1, feature_level_max=node.level)
    replica = node.create(replicas=(0, 1), config={"key": "subject"})
    replica.append(encode([b"v"], b"orders.7", keys=[b"orders.7"]))
    lose_what_is_there(replica)
    replica.log.subjects = SubjectIndex(0)
    with pytest.raises(UnavailableError, match="could not be read"):
        subjects.expected_end(replica, b"orders.7")


@on_loop
async def test_damage_that_it_finds_is_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: a file is not read again and again because a batch in it stays bad."""
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    suspected, tries = [], 0

    def read_subjects(log: CommitLog, offset: int, bytes_max: int, limit: int) -> Rows | None:
        nonlocal tries
        tries += 1
        raise CorruptBatchError("rotten")

    monkeypatch.setattr(CommitLog, "read_subjects", read_subjects)
    monkeypatch.setattr(Replica, "suspect", lambda self, offset, error: suspected.append(offset))
    node, replica = node_with_records(tmp_path)
    async with running(node) as driver:
        driver.role_changed(replica)
        await eventually(lambda: tries > 2)
    assert suspected == [0]


@on_loop
async def test_of_many_streams_gone_subjects_are_not_looked_for_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ROUND_SECONDS", 0.001)
    node, first = node_with_records(tmp_path)
    second = node.create("s", "s.>", config={"key": "subject"})
    happened: list[object] = []

    def forget_gone(replica: Replica) -> None:
        happened.append(replica)
        asyncio.get_running_loop().call_soon(happened.append, "turn")

    monkeypatch.setattr(subjects, "forget_gone", forget_gone)
    async with running(node) as driver:
        for replica in (first, second):
            driver.role_changed(replica)
        await eventually(lambda: len(driver._forget_at_us) == 2)
        node.clocks.advance(FORGET_US)
        await eventually(lambda: happened.count("turn") == 2)
    assert happened == [first, "turn", second, "turn"]
