"""ISR changes on their way to the metadata group: one at a time, and again under the first id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import LeaderEpoch, NodeId, StreamId
from jetstream_server.metadata.client.raft_metadata_log import Proposal, RaftMetadataLog
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.pending_isr import Outcome
from jetstream_server.replication.drivers.isr_driver import TICK_SECONDS, IsrDriver
from jetstream_server.replication.replica import Replica
from tests.support.virtual_time import on_virtual_loop
from tests.unit.metadata.cluster import Cluster

CHANGE = ChangeIsr(
    stream_id=StreamId(1),
    leader=NodeId(0),
    leader_epoch=LeaderEpoch(0),
    stream_epoch=0,
    isr=(NodeId(0),),
    incarnations=(5,),
)


class FakeLeadership:
    """Notes who is silent."""

    def __init__(self) -> None:
        self.silent: dict[int, bool] = {}

    def hear(self, follower: int, *, is_silent: bool) -> None:
        self.silent[follower] = is_silent


class FakeReplica:
    """A leadership that wants what the test says."""

    def __init__(self) -> None:
        self.stream: StreamMetadata = Cluster(nodes=3).create()
        self.leadership: FakeLeadership | None = FakeLeadership()
        self.wanted: ChangeIsr | None = CHANGE
        self.settled: list[tuple[ChangeIsr, Outcome]] = []
        self.ticks = 0

    def tick(self, _: int) -> None:
        self.ticks += 1

    def is_settled(self, _: int) -> bool:
        return self.wanted is None

    def propose(self, _: int) -> ChangeIsr | None:
        return self.wanted

    def settle(self, change: ChangeIsr, outcome: Outcome, _: int) -> None:
        self.settled.append((change, outcome))
        self.wanted = change if outcome is Outcome.UNKNOWN else None


class FakeMetadata:
    """Numbers proposals, and answers as told: an error, or an applied result."""

    def __init__(self, *answers: JetstreamError | dict[str, Any]) -> None:
        self.answers = list(answers)
        self.texts: list[str] = []
        self.numbered = 0

    def prepare(self, command: ChangeIsr) -> Proposal:
        return Proposal(command, self._submit)

    async def _submit(self, proposal: Proposal, _: float) -> dict[str, Any]:
        if not proposal.text:
            proposal.number(9, self.numbered)
            self.numbered += 1
        self.texts.append(proposal.text)
        answer = self.answers.pop(0)
        if isinstance(answer, JetstreamError):
            raise answer
        return answer


def failed(error: JetstreamError) -> dict[str, Any]:
    """A refusal that was applied."""
    return {"revision": 1, "error": {"code": error.code, "message": error.message}}


async def drive(replica: FakeReplica, metadata: FakeMetadata) -> None:
    driver = IsrDriver(cast(RaftMetadataLog, metadata), node_id=0, monotonic_clock=lambda: 0)
    driver.role_changed(cast(Replica, replica))
    driver.progressed(cast(Replica, replica))
    driver.start()
    try:
        for _ in range(500):
            if not metadata.answers and len(replica.settled) == len(metadata.texts):
                break
            await asyncio.sleep(0.01)
    finally:
        await driver.close()


@on_virtual_loop
async def test_a_change_of_unknown_outcome_is_the_same_command_again() -> None:
    replica = FakeReplica()
    unknown = UnknownOutcomeError("no answer")
    metadata = FakeMetadata(unknown, UnavailableError("no leader"), {"revision": 3})
    await drive(replica, metadata)
    assert len(metadata.texts) == 3
    assert len(set(metadata.texts)) == 1
    outcomes = [outcome for _, outcome in replica.settled]
    assert outcomes == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.ACCEPTED]


@on_virtual_loop
async def test_another_change_is_another_command() -> None:
    replica = FakeReplica()
    metadata = FakeMetadata(failed(PreconditionFailedError("stale")))
    await drive(replica, metadata)
    replica.wanted = replace(CHANGE, stream_epoch=1)
    metadata.answers.append({"revision": 4})
    await drive(replica, metadata)
    assert metadata.numbered == 2


@on_virtual_loop
async def test_a_change_that_can_take_effect_no_more_is_reverted() -> None:
    replica = FakeReplica()
    metadata = FakeMetadata(UnknownOutcomeError("lost"), failed(UnknownOutcomeError("too old")))
    await drive(replica, metadata)
    assert replica.settled[-1] == (CHANGE, Outcome.INELIGIBLE)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidRequestError("not alive"), Outcome.INELIGIBLE),
        (PreconditionFailedError("stream epoch"), Outcome.STALE),
        (FencedEpochError("leader epoch"), Outcome.STALE),
        (StreamNotFoundError("deleted"), Outcome.STALE),
    ],
)
def test_a_refusal_means_what_the_core_makes_of_it(error: JetstreamError, outcome: Outcome) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        replica = FakeReplica()
        await drive(replica, FakeMetadata(failed(error)))
        assert replica.settled == [(CHANGE, outcome)]

    scenario()


@on_virtual_loop
async def test_a_settled_stream_is_ticked_again_only_once_it_is_stirred() -> None:
    replica = FakeReplica()
    replica.wanted = None
    driver = IsrDriver(cast(RaftMetadataLog, FakeMetadata()), node_id=0, monotonic_clock=lambda: 0)
    driver.role_changed(cast(Replica, replica))
    driver.progressed(cast(Replica, replica))
    driver.start()
    try:
        await _until(lambda: replica.ticks == 1)
        await asyncio.sleep(3 * TICK_SECONDS)
        assert replica.ticks == 1
        driver.progressed(cast(Replica, replica))
        await _until(lambda: replica.ticks == 2)
    finally:
        await driver.close()


@on_virtual_loop
async def test_nothing_is_ticked_that_is_not_led_any_more() -> None:
    replica = FakeReplica()
    driver = IsrDriver(cast(RaftMetadataLog, FakeMetadata()), node_id=0, monotonic_clock=lambda: 0)
    driver.progressed(cast(Replica, replica))
    replica.leadership = None
    driver.role_changed(cast(Replica, replica))
    driver.progressed(cast(Replica, replica))
    driver.start()
    try:
        await asyncio.sleep(2 * TICK_SECONDS)
    finally:
        await driver.close()
    assert replica.ticks == 0


@on_virtual_loop
async def test_leaderships_are_told_which_of_their_followers_fell_silent() -> None:
    """Observers too: compaction does not wait for one that is gone."""
    now_us = [0]
    replica, other, alone = FakeReplica(), FakeReplica(), FakeReplica()
    other.stream = replace(
        other.stream, replicas=(NodeId(0), NodeId(2), NodeId(3)), observers=(NodeId(4),)
    )
    alone.stream = replace(alone.stream, replicas=(NodeId(0),), observers=(NodeId(1),))
    driver = IsrDriver(
        cast(RaftMetadataLog, FakeMetadata()), node_id=0, monotonic_clock=lambda: now_us[0]
    )
    for each in (replica, other, alone):
        each.wanted = None
        driver.role_changed(cast(Replica, each))
    assert replica.leadership is not None
    assert other.leadership is not None
    assert alone.leadership is not None
    driver.start()
    try:
        while now_us[0] < 3_000_000:
            driver.heard(NodeId(2))
            driver.heard(NodeId(3))
            await asyncio.sleep(2 * TICK_SECONDS)
            now_us[0] += 500_000
        await _until(lambda: replica.leadership.silent == {0: False, 1: True, 2: False})  # type: ignore[union-attr]
        assert other.leadership.silent == {0: False, 2: False, 3: False, 4: True}
        assert alone.leadership.silent == {0: False, 1: True}
        moved = FakeReplica()
        moved.stream = replace(moved.stream, replicas=(NodeId(0),), observers=(NodeId(1),))
        driver.role_changed(cast(Replica, moved))
        assert moved.leadership is not None
        assert moved.leadership.silent == {0: False, 1: True}
        driver.heard(NodeId(1))
        for each in (replica, alone, moved):
            await _until(lambda each=each: not each.leadership.silent[1])  # type: ignore[misc]
        assert other.leadership.silent[4]
    finally:
        await driver.close()


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(4_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")
