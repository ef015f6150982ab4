"""Which streams are listened to: also while they are handed over, and while NATS is asked."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    CODES,
    NotLeaderError,
    PermissionDeniedError,
    StorageError,
    UnavailableError,
)
from jetstream_server.ingest import ingest as ingests
from jetstream_server.ingest.ingest import Ingest, wants_to_listen
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.node import Node, read_values
from tests.support.virtual_time import on_virtual_loop


class Nats:
    """The table of subscriptions, and a server that confirms when the test says so."""

    def __init__(self) -> None:
        self.listening: dict[int, Any] = {}
        self.is_connected = self.is_responsive = True
        self.during_flush: list[Any] = []
        self.drained: list[int] = []
        self.written: list[bytes] = []
        self.last_sid = 0

    def subscribe(
        self, subject: str, group: str, on_delivery: Any, on_refusal: Any, prefix: str = ""
    ) -> int:
        self.last_sid += 1
        self.listening[self.last_sid] = (on_delivery, on_refusal)
        return self.last_sid

    def unsubscribe(self, sid: int) -> None:
        self.listening.pop(sid, None)

    async def drain_subscriptions(self, sids: list[int], timeout_s: float) -> None:
        for sid in sids:
            on_delivery, _ = self.listening[sid]
            on_delivery(message(b"on its way"))
            del self.listening[sid]
            self.drained.append(sid)

    async def flush(self, timeout_s: float) -> None:
        await asyncio.sleep(0)
        if self.during_flush:
            self.during_flush.pop(0)()

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    def deliver(self, value: bytes) -> None:
        """To the present subscriptions."""
        for on_delivery, _ in list(self.listening.values()):
            on_delivery(message(value))


def message(value: bytes) -> Delivery:
    return Delivery(1, [b"orders.a"], [b""], [value])


class Bench:
    def __init__(self, tmp_path: Path, flush: str = "group") -> None:
        self.nats = Nats()
        self.lease_held = True
        self.node = Node(tmp_path / "streams")
        replicas = self.node.open()
        self.ingest = Ingest(
            cast(NatsConnection, self.nats),
            replicas,
            AckPolicy(),
            Bounds(1000, 1 << 20),
            lambda: self.lease_held,
        )
        self.node.begin(Listeners(leadership=self.ingest))
        self.replica = self.node.create(config={"flush": flush})
        self.id = self.replica.stream.id

    def values(self) -> list[bytes | None]:
        self.node.flushes.run()
        return read_values(self.replica)


@pytest.fixture(autouse=True)
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingests, "CONFIRM_SECONDS", 0.1)


@on_virtual_loop
async def test_what_was_on_its_way_is_stored_and_then_nobody_listens(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.nats.deliver(b"before")
    await bench.ingest.pause(bench.id)
    bench.nats.deliver(b"after")
    assert bench.values() == [b"before", b"on its way"]
    bench.ingest.check_lease()
    assert bench.nats.listening == {}, "a look at the lease listens again"


@on_virtual_loop
async def test_what_was_delivered_before_a_stream_is_paused_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.nats.deliver(b"before")
    bench.replica.stream = dataclasses.replace(bench.replica.stream, paused=True)
    bench.ingest.access_changed(bench.replica)
    await bench.ingest.drained()
    bench.nats.deliver(b"after")
    assert bench.values() == [b"before", b"on its way"]


@on_virtual_loop
async def test_what_is_on_its_way_from_a_server_that_is_not_heard_is_not_waited_for(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.nats.is_responsive = False
    assert not bench.ingest.listens
    await bench.ingest.pause(bench.id)
    assert (bench.nats.listening, bench.nats.drained) == ({}, [])
    assert bench.values() == []


@on_virtual_loop
async def test_a_hand_over_that_failed_listens_again_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.ingest.pause(bench.id)
    bench.ingest.resume(bench.id)
    assert len(bench.nats.listening) == 1
    bench.nats.deliver(b"again")
    assert bench.values() == [b"on its way", b"again"]


@on_virtual_loop
async def test_what_is_on_its_way_when_the_leadership_ends_is_neither_stored_nor_answered(
    tmp_path: Path,
) -> None:
    """The next leader may have received it, too."""
    bench = Bench(tmp_path)
    ends = asyncio.Event()

    async def drain_subscriptions(sids: list[int], timeout_s: float) -> None:
        await ends.wait()
        bench.nats.deliver(b"on its way")

    bench.nats.drain_subscriptions = drain_subscriptions  # type: ignore[method-assign]
    pausing = asyncio.ensure_future(bench.ingest.pause(bench.id))
    await asyncio.sleep(0)
    assert len(bench.nats.listening) == 1
    bench.ingest.stopped_leading(bench.replica)
    ends.set()
    await pausing
    assert (bench.values(), bench.nats.written, bench.nats.listening) == ([], [], {})


@on_virtual_loop
@pytest.mark.parametrize("flush", ["group", "none"])
async def test_what_commits_without_a_session_is_acknowledged_once_it_is_back(
    tmp_path: Path, flush: str
) -> None:
    """Another node may lead by then: what this one says about it would be a guess."""
    bench = Bench(tmp_path, flush)
    (on_delivery, _) = next(iter(bench.nats.listening.values()))
    bench.lease_held = flush == "group"  # Without a flush it commits at once.
    on_delivery(Delivery(1, [b"orders.x"], [b"_INBOX.x"], [b"asks"]))
    bench.lease_held = False
    assert bench.values() == [b"asks"], "it is committed"
    bench.ingest.check_lease()
    assert bench.nats.written == []
    bench.lease_held = True
    bench.ingest.check_lease()
    (ack,) = bench.nats.written
    assert b'"seq":1' in ack


@on_virtual_loop
async def test_without_a_session_nobody_is_told_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    """Metadata that was held up tells a leader of long ago that its ISR fell below the minimum."""
    bench = Bench(tmp_path)
    (on_delivery, _) = next(iter(bench.nats.listening.values()))
    on_delivery(Delivery(1, [b"orders.x"], [b"_INBOX.x"], [b"asks"]))
    bench.lease_held = False
    bench.ingest.fell_below_minimum(bench.replica)
    bench.ingest.failed(bench.replica, StorageError("a disk failed"))
    assert bench.nats.written == []
    bench.lease_held = True
    bench.ingest.fell_below_minimum(bench.replica)
    (answer,) = bench.nats.written
    assert b"unknown" in answer


@on_virtual_loop
async def test_without_a_session_nothing_is_resumed_before_it_is_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.ingest.pause(bench.id)
    bench.lease_held = False
    bench.ingest.check_lease()
    bench.ingest.resume(bench.id)
    assert bench.nats.listening == {}
    bench.lease_held = True
    bench.ingest.check_lease()
    assert len(bench.nats.listening) == 1


@on_virtual_loop
async def test_a_stream_led_elsewhere_cannot_be_paused(tmp_path: Path) -> None:
    with pytest.raises(NotLeaderError):
        await Bench(tmp_path).ingest.pause(77)


def before(replica: Replica) -> int:
    """The epoch of the leader before this one."""
    return replica.stream.leader_epoch - 1


def led_next(bench: Bench) -> Replica:
    """Another stream, which this node is about to lead."""
    replicas = bench.node.replicas
    replicas._services.listeners = Listeners()
    replica = bench.node.create("next", "next.>")
    replicas._services.listeners = Listeners(leadership=bench.ingest)
    return replica


@on_virtual_loop
async def test_what_comes_before_the_leadership_is_kept_and_stored_by_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)
    gap_us = await bench.ingest.stand_by(replica.stream, before(replica), 0, 5_000)
    assert gap_us >= 5_000
    bench.nats.deliver(b"early")
    bench.ingest.leading(replica)
    bench.nats.deliver(b"late")
    bench.node.flushes.run()
    assert read_values(replica) == [b"early", b"late"]
    counters = replica.counters
    assert (counters.hand_overs, counters.hand_over_gap_us) == (1, gap_us)
    assert len(bench.nats.listening) == 2


@on_virtual_loop
async def test_a_leadership_that_begins_further_on_drops_what_was_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)
    bench.node.append(replica, b"the old leader's")
    await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    bench.nats.deliver(b"perhaps the same")
    kept_sid, (on_its_way, _) = list(bench.nats.listening.items())[-1]
    bench.ingest.leading(replica)
    on_its_way(message(b"sent before the leadership"))
    assert kept_sid not in bench.nats.listening, "the old leader may have had what comes there"
    bench.nats.deliver(b"new")
    bench.node.flushes.run()
    assert read_values(replica) == [b"the old leader's", b"new"]
    assert (replica.counters.suspected_gaps, replica.counters.hand_overs) == (1, 0)


@on_virtual_loop
async def test_who_is_called_off_listens_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)
    await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    bench.ingest.cancel_stand_by(replica.stream.id, before(replica) - 1)
    assert len(bench.nats.listening) == 2, "an earlier leader's word comes late"
    bench.ingest.cancel_stand_by(replica.stream.id, before(replica))
    assert len(bench.nats.listening) == 1


@on_virtual_loop
async def test_nobody_stands_by_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingests, "STAND_BY_SECONDS", 0.02)
    bench = Bench(tmp_path)
    replica = led_next(bench)
    await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    assert len(bench.nats.listening) == 2
    await asyncio.sleep(0.05)
    assert len(bench.nats.listening) == 1
    bench.ingest.leading(replica)
    assert replica.counters.hand_overs == 0


@on_virtual_loop
async def test_who_loses_its_session_stands_by_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)
    await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    bench.lease_held = False
    bench.ingest.check_lease()
    assert bench.nats.listening == {}


@on_virtual_loop
async def test_what_stood_by_is_subscribed_once_when_the_session_is_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)
    bench.lease_held = False
    bench.ingest.check_lease()
    bench.lease_held = True  # Which nobody has looked at yet.
    await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    bench.ingest.leading(replica)
    bench.ingest.check_lease()
    assert len(bench.nats.listening) == 2, "what is published is stored twice"


@on_virtual_loop
async def test_a_node_that_nats_does_not_let_listen_does_not_take_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)

    def refuse() -> None:
        bench.nats.listening[2][1](2, PermissionDeniedError("not allowed"))

    bench.nats.during_flush.append(refuse)
    with pytest.raises(UnavailableError, match="not allowed"):
        await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    assert len(bench.nats.listening) == 1


@on_virtual_loop
async def test_who_is_not_confirmed_stands_by_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    replica = led_next(bench)

    def fail() -> None:
        raise UnavailableError("NATS did not confirm")

    bench.nats.during_flush.append(fail)
    with pytest.raises(UnavailableError, match="did not confirm"):
        await bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    assert len(bench.nats.listening) == 1, "the old leader misses what comes here"


@on_virtual_loop
async def test_who_is_waited_for_no_longer_stands_by_no_more(tmp_path: Path) -> None:
    """The old leader gives up a target that was frozen, and may not reach it to cancel."""
    bench = Bench(tmp_path)
    replica = led_next(bench)
    standing_by = asyncio.ensure_future(
        bench.ingest.stand_by(replica.stream, before(replica), 0, 0)
    )
    await asyncio.sleep(0)
    assert len(bench.nats.listening) == 2
    standing_by.cancel()
    with pytest.raises(asyncio.CancelledError):
        await standing_by
    assert len(bench.nats.listening) == 1


# Confirming.


@on_virtual_loop
async def test_a_subscription_given_up_while_nats_is_asked_is_not_confirmed(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)

    def lose_session() -> None:
        bench.lease_held = False
        bench.ingest.check_lease()
        asyncio.get_running_loop().call_later(0.03, regain)

    def regain() -> None:
        bench.lease_held = True
        bench.ingest.check_lease()

    bench.nats.during_flush.append(lose_session)
    await bench.ingest.confirm(bench.id)
    assert len(bench.nats.listening) == 1


@on_virtual_loop
async def test_without_a_session_a_subscription_is_not_confirmed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.lease_held = False
    bench.ingest.check_lease()
    with pytest.raises(UnavailableError, match="does not listen"):
        await bench.ingest.confirm(bench.id)


@on_virtual_loop
async def test_a_leadership_lost_while_nats_is_asked_is_said_to_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.nats.during_flush.append(lambda: bench.ingest.stopped_leading(bench.replica))
    with pytest.raises(NotLeaderError):
        await bench.ingest.confirm(bench.id)


@on_virtual_loop
async def test_a_member_whose_disk_failed_has_left_its_group_when_its_publishers_hear_of_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    listening_at_nack: list[bool] = []

    def heard(data: bytes) -> bool:
        listening_at_nack.append(sid in bench.nats.listening)
        return True

    bench.nats.write = heard  # type: ignore[method-assign]
    member = bench.node.create("left", "shared", group="both")
    (sid,) = set(bench.nats.listening) - {1}
    on_delivery, _ = bench.nats.listening[sid]
    on_delivery(Delivery(sid, [b"shared"], [b"_INBOX.x"], [b"lost"]))
    member.fail(StorageError("a disk failed"))
    assert listening_at_nack == [False]


@on_virtual_loop
async def test_who_publishes_to_a_failed_log_tries_again_where_another_replica_will_lead(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.node.cluster.register(1)
    bench.node.apply()
    replicated = bench.node.create("replicated", "replicated", replicas=(0, 1))
    if replicated.leadership is None:
        bench.node.cluster.do(TransferLeader(stream_id=replicated.stream.id, leader=0))
        bench.node.apply()
    first, second = bench.nats.listening
    told = {first: (bench.replica, StorageError), second: (replicated, UnavailableError)}
    for sid, (replica, error) in told.items():
        replica.log.health.fail("the disk said no")
        on_delivery, _ = bench.nats.listening[sid]
        on_delivery(Delivery(sid, [b"x"], [b"_INBOX.x"], [b"refused"]))
        answer = bench.nats.written.pop()
        assert f'"err_code":{CODES[error].nats_err_code}'.encode() in answer
        assert b"the disk said no" not in answer


@on_virtual_loop
async def test_who_stands_by_leaves_when_another_was_elected(tmp_path: Path) -> None:
    """In a queue group it would go on taking messages from the new leader, and store none."""
    bench = Bench(tmp_path)
    replica = led_next(bench)
    epoch = replica.stream.leader_epoch
    await bench.ingest.stand_by(replica.stream, epoch, 0, 0)
    bench.ingest.led_elsewhere(replica)
    assert len(bench.nats.listening) == 2, "the epoch of the leader that hands over"
    replica.stream = dataclasses.replace(replica.stream, leader_epoch=epoch + 1)
    bench.ingest.led_elsewhere(replica)
    assert len(bench.nats.listening) == 1


@on_virtual_loop
async def test_a_follower_of_a_new_epoch_is_said_to_be_led_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    heard: list[int] = []
    bench.ingest.led_elsewhere = heard.append  # type: ignore[method-assign, assignment]
    bench.node.cluster.register(1)
    bench.node.apply()
    stream = bench.node.create("moved", "moved.>", replicas=(0, 1))
    for leader in (0, 1):
        bench.node.cluster.do(TransferLeader(stream_id=stream.stream.id, leader=leader))
        bench.node.apply()
    assert heard[-1:] == [stream]


@on_virtual_loop
async def test_a_refused_subscription_is_shown_and_asked_for_again_when_confirmed(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    (sid,) = bench.nats.listening

    def told(error: PermissionDeniedError | None) -> None:
        (current,) = bench.nats.listening
        bench.nats.listening[current][1](current, error)

    told(PermissionDeniedError("not allowed"))
    assert bench.replica.why_unheard == "not allowed"
    assert bench.ingest.hears_nothing
    bench.nats.during_flush.append(lambda: told(PermissionDeniedError("still not")))
    with pytest.raises(PermissionDeniedError, match="still not"):
        await bench.ingest.confirm(bench.id)
    await bench.ingest.confirm(bench.id)  # Nothing is said against it now.
    assert set(bench.nats.listening) == {sid + 2}
    assert bench.replica.why_unheard == ""
    told(PermissionDeniedError("of a connection that is lost"))
    told(None)
    assert not bench.ingest.hears_nothing
    told(PermissionDeniedError("again"))
    bench.ingest.stopped_leading(bench.replica)
    assert bench.replica.why_unheard == ""


@pytest.mark.parametrize(
    ("group", "fields", "is_handed_over", "can_store", "wanted"),
    [
        ("", {}, False, True, True),
        ("", {}, False, False, True),  # It tells publishers why it stores nothing.
        ("", {"readonly": True}, False, True, True),
        ("", {}, True, True, False),
        ("", {"paused": True}, False, True, False),
        ("g", {}, False, True, True),
        ("g", {}, False, False, False),
        ("g", {"readonly": True}, False, True, False),
        ("g", {}, True, True, False),
    ],
)
@on_virtual_loop
async def test_what_is_wanted_follows_from_the_state_alone(
    tmp_path: Path,
    group: str,
    fields: dict[str, bool],
    is_handed_over: bool,
    can_store: bool,
    wanted: bool,
) -> None:
    known = Bench(tmp_path).replica.stream
    stream = dataclasses.replace(known, group=group, **fields)  # type: ignore[arg-type]
    found = wants_to_listen(stream, is_handed_over=is_handed_over, can_store=can_store)
    assert found == wanted
