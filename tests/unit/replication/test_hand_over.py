"""Handing a leadership over: in which order, and what is left when something fails in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    NotLeaderError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.clocks import monotonic_clock
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.drivers import hand_over
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.support.virtual_time import on_virtual_loop

from .cores import Log, nodes, request, stream

STREAM, TARGET = StreamId(1), NodeId(1)


class Bench:
    """Node 0 leads; everything around it is this object, and notes in which order it is called."""

    def __init__(self, end_offset: int = 10, led: StreamMetadata | None = None) -> None:
        led = led or stream()
        self.did: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.pending_batches = 0
        self.connected = True
        self.log = Log(log_end_offset=end_offset)
        self.log.epochs.assign(3, 0)
        self.leadership: LeaderState | None = LeaderState(
            stream=led, node_id=0, nodes=nodes(), log=self.log, high_watermark=0, now_us=0
        )
        self.replica = SimpleNamespace(
            stream=led,
            leadership=self.leadership,
            following=None,
            log=self.log,
        )
        self.log.offline_reason = ""  # type: ignore[attr-defined]
        self.registry = Tables()
        self.registry.nodes.update(nodes())
        self.hand_overs = HandOver(self, cast(ReplicaManager, self), self, self)

    def fetched(self, offset: int) -> None:
        assert self.leadership is not None
        self.leadership.fetch(request(TARGET, offset), 0)

    def deposed(self) -> None:
        self.replica.leadership = None

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    # Replicas

    def led_replica(self, stream_id: int) -> Any:
        if self.replica.leadership is None:
            raise NotLeaderError("not led here")
        return self.replica

    def get(self, stream_id: int) -> Any:
        return self.replica

    # Publishers

    @property
    def listens(self) -> bool:
        return self.connected

    async def pause(self, stream_id: int) -> None:
        self._do("pause")

    def resume(self, stream_id: int) -> None:
        self._do("resume")

    def pending(self, stream_id: int) -> int:
        return self.pending_batches

    # Successors

    async def prepare(self, node_id: NodeId, stream_id: StreamId, *, urgent: bool) -> None:
        self._do("prepare")

    async def stand_by(self, *arguments: Any) -> int:
        if isinstance(arguments[0], StreamMetadata):
            self._do(f"listen after {arguments[2]} of epoch {arguments[1]}")
            return int(arguments[3]) + 1
        assert arguments[2] == stream().leader_epoch
        self._do("stand by")
        return int(arguments[4])

    def cancel_stand_by(self, *arguments: int) -> Any:
        """The Publishers' here, with stream and epoch; the Successors' there, with the node too."""
        if len(arguments) == 3:
            return self.cancel_there(*arguments)
        self._do(f"listen no more for epoch {arguments[1]}")
        return None

    async def cancel_there(self, *arguments: int) -> None:
        self._do("cancel stand by")

    # Metadata

    async def propose(self, command: TransferLeader, *, patience: float) -> dict[str, Any]:
        self._do("transfer")
        assert (command.leader, command.stream_epoch) == (TARGET, 7)
        self.deposed()
        return {}


@pytest.fixture(autouse=True)
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CATCH_UP_SECONDS", "TAIL_SECONDS"):
        monkeypatch.setattr(hand_over, name, 0.1)


@on_virtual_loop
async def test_it_listens_no_more_then_the_target_does_then_it_leads() -> None:
    bench = Bench()
    bench.fetched(10)
    await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did == ["prepare", "prepare", "pause", "stand by", "transfer"]


@on_virtual_loop
async def test_a_target_that_lags_costs_no_silence() -> None:
    bench = Bench()
    bench.fetched(9)
    with pytest.raises(UnavailableError, match="does not keep up"):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did == []


@on_virtual_loop
async def test_it_waits_for_a_target_that_comes_near() -> None:
    bench = Bench()
    asyncio.get_running_loop().call_later(0.03, bench.fetched, 10)
    await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did[-1] == "transfer"


@on_virtual_loop
async def test_who_is_not_in_sync_is_not_even_asked() -> None:
    bench = Bench()
    with pytest.raises(UnavailableError, match="not in sync"):
        await bench.hand_overs.hand_over(STREAM, NodeId(5))
    assert bench.did == []


@pytest.mark.parametrize("drained", ["draining", "relieved"])
@on_virtual_loop
async def test_a_target_that_yields_leaderships_costs_no_silence(drained: str) -> None:
    bench = Bench()
    bench.fetched(10)
    nodes_now = bench.registry.nodes
    nodes_now[TARGET] = replace(nodes_now[TARGET], **{drained: True})  # type: ignore[arg-type]
    with pytest.raises(PreconditionFailedError, match="is draining"):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert {"pause", "stand by", "transfer"}.isdisjoint(bench.did)


@on_virtual_loop
async def test_the_target_gets_the_tail_and_publishers_their_acks_before_the_transfer() -> None:
    bench = Bench()
    bench.fetched(10)

    async def pause(stream_id: int) -> None:
        bench.log.log_end_offset = 12  # Delivered by NATS before, stored now.
        bench.pending_batches = 1

    def committed() -> None:
        assert "transfer" not in bench.did
        bench.pending_batches = 0

    bench.pause = pause  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, bench.fetched, 12)
    loop.call_later(0.04, committed)
    await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.pending_batches == 0
    assert bench.did[-1] == "transfer"


@on_virtual_loop
async def test_a_slow_third_replica_holds_nothing_up_for_long() -> None:
    bench = Bench()
    bench.fetched(10)
    bench.pending_batches = 3
    await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did[-1] == "transfer"


@on_virtual_loop
async def test_nobody_is_silent_for_acks_that_cannot_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """While too few replicas are in sync, messages without acks are stored and not committed."""
    monkeypatch.setattr(hand_over, "TAIL_SECONDS", 3_600.0)
    bench = Bench(led=stream((0, TARGET), minimum=3))
    bench.fetched(10)
    bench.pending_batches = 1
    async with asyncio.timeout(60):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did[-1] == "transfer"


@on_virtual_loop
async def test_a_target_that_does_not_get_the_tail_does_not_lead() -> None:
    bench = Bench()
    bench.fetched(10)

    async def pause(stream_id: int) -> None:
        bench.log.log_end_offset = 12

    bench.pause = pause  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="did not fetch the end"):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did == ["prepare", "prepare", "stand by", "cancel stand by", "resume"]


@pytest.mark.parametrize(
    ("step", "error", "resumes"),
    [
        ("prepare", UnavailableError("no session"), False),
        ("pause", UnavailableError("NATS does not answer"), True),
        ("stand by", UnavailableError("the node died"), True),
        ("transfer", PreconditionFailedError("the ISR changed"), True),
        ("transfer", UnknownOutcomeError("no metadata leader"), True),
    ],
)
@on_virtual_loop
async def test_whatever_fails_the_old_leader_listens_again(
    step: str, error: Exception, resumes: bool
) -> None:
    bench = Bench()
    bench.fetched(10)
    bench.fails[step] = error
    with pytest.raises(type(error)):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert (bench.did[-1] == "resume") is resumes
    is_asked = step in ("stand by", "transfer")
    is_cancelled = bench.did[-2:] == ["cancel stand by", "resume"]
    assert is_cancelled is is_asked, "before it may refuse anything"
    bench.fails.clear()
    await bench.hand_overs.hand_over(STREAM, TARGET)  # It may be tried again.
    assert bench.did[-1] == "transfer"


@on_virtual_loop
async def test_a_target_that_cannot_be_called_off_does_not_keep_the_old_leader_silent() -> None:
    bench = Bench()
    bench.fetched(10)
    bench.fails["stand by"] = bench.fails["cancel stand by"] = UnavailableError("the node died")
    with pytest.raises(UnavailableError):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert bench.did[-1] == "resume"


@on_virtual_loop
async def test_who_is_given_up_while_it_cancels_the_stand_by_listens_again_all_the_same() -> None:
    bench = Bench()
    bench.fetched(10)
    bench.fails["transfer"] = PreconditionFailedError("the ISR changed")
    begun = asyncio.Event()

    async def hangs(*arguments: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    bench.cancel_there = hangs  # type: ignore[method-assign]
    giving = asyncio.ensure_future(bench.hand_overs.hand_over(STREAM, TARGET))
    await begun.wait()
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert bench.did[-1] == "resume"


@on_virtual_loop
async def test_who_is_deposed_in_the_middle_neither_transfers_nor_listens_again() -> None:
    bench = Bench()
    bench.fetched(10)

    async def pause(stream_id: int) -> None:
        bench.did.append("pause")
        bench.deposed()

    bench.pause = pause  # type: ignore[method-assign]
    with pytest.raises(NotLeaderError):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    assert "transfer" not in bench.did
    assert "resume" not in bench.did


@on_virtual_loop
async def test_one_hand_over_of_a_stream_at_a_time() -> None:
    bench = Bench()
    first = asyncio.ensure_future(bench.hand_overs.hand_over(STREAM, TARGET))
    await asyncio.sleep(0.01)
    with pytest.raises(UnavailableError, match="already"):
        await bench.hand_overs.hand_over(STREAM, TARGET)
    bench.fetched(10)
    await first


@on_virtual_loop
async def test_a_cancelled_stand_by_ends_whatever_else_it_could_do() -> None:
    bench = Bench()
    bench.connected = False
    bench.hand_overs.cancel_stand_by(STREAM, 3)
    assert bench.did == ["listen no more for epoch 3"]


@on_virtual_loop
async def test_only_a_follower_that_could_listen_takes_over() -> None:
    bench = Bench()
    with pytest.raises(UnavailableError, match="does not follow"):
        bench.hand_overs.prepare(STREAM)
    bench.replica.following = object()
    bench.hand_overs.prepare(STREAM)
    bench.connected = False
    with pytest.raises(UnavailableError, match="not connected"):
        await bench.hand_overs.stand_by(STREAM, 4, 10, 5)
    bench.connected = True
    with pytest.raises(UnavailableError, match="is over"):
        await bench.hand_overs.stand_by(STREAM, stream().leader_epoch - 1, 10, 5)
    assert await bench.hand_overs.stand_by(STREAM, 4, 10, 5) == 6
    assert bench.did == ["listen after 10 of epoch 4"]
    bench.log.offline_reason = "a disk failed"  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="offline"):
        bench.hand_overs.prepare(STREAM)


@on_virtual_loop
async def test_who_could_not_serve_a_moment_ago_takes_over_only_what_is_urgent() -> None:
    bench = Bench()
    bench.replica.following = object()
    fitness = bench.hand_overs.fitness
    fitness.look("no room", 0)
    for urgent in (True, False):
        with pytest.raises(UnavailableError, match="no room"):
            bench.hand_overs.prepare(STREAM, urgent=urgent)
    fitness.look("", monotonic_clock())
    bench.hand_overs.prepare(STREAM, urgent=True)
    with pytest.raises(UnavailableError, match="a moment ago"):
        bench.hand_overs.prepare(STREAM, urgent=False)
