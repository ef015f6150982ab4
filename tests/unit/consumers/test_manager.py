"""Which states of durable consumers a leader takes over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from jetstream_server.clocks import Clocks
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Reader
from jetstream_server.consumers.kept import Kept
from jetstream_server.consumers.manager import Consumers
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.support.loops import on_loop
from tests.unit.consumers.test_keeper import Log


@on_loop
async def test_a_leader_that_was_replaced_does_not_claim_what_a_later_one_has_claimed() -> None:
    log = Log()
    deliveries = Deliveries(ConsumerConfig(name="c", is_durable=True), 0)
    log.value, log.revision = Kept.of(deliveries, epoch=6).encode(), 3
    consumers = Consumers(
        cast(ReplicaManager, {}), cast(Reader, None), cast(Outlet, None), cast(Clocks, None), log
    )
    stale = SimpleNamespace(stream=SimpleNamespace(id=7, leader_epoch=5), leadership=None)
    await consumers.load([cast(Replica, stale)])
    assert Kept.decode(log.value).epoch == 6
    assert log.writes == 0
