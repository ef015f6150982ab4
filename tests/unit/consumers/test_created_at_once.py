"""Two programs create a consumer of one name at once: none is told that it has what it has not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import StreamId
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.jetstream_api.consumers import ConsumerRequests
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from tests.support.loops import on_loop

STREAM: Any = SimpleNamespace(
    id=StreamId(7), name="orders", subject="o", full_name="orders@o",
    lake=SimpleNamespace(holds_records=False), config=SimpleNamespace(keeps_last_of_subjects=False),
)  # fmt: skip


class Leader:
    """Of the stream. Another program's consumer, `faster`, is stored first."""

    def __init__(self, faster: ConsumerConfig) -> None:
        self.faster: Any = SimpleNamespace(config=faster, replica=self, is_bound=False)
        self.stream = STREAM
        self.log = SimpleNamespace(log_start_offset=0)
        self.high_watermark = 5
        self.leadership = self
        self.knows_end, self.seeks_end = True, False
        self.altered: list[ConsumerConfig] = []

    def check_readable(self) -> None: ...

    def check_end(self) -> None:
        if not self.knows_end:
            raise UnavailableError("it is not known where what is committed ends; try again")

    def find(self, stream_id: StreamId, name: str) -> None: ...

    async def note_change(self, *_: object) -> None: ...

    async def loaded(self, _: object) -> None: ...

    async def add(self, *_: object) -> Any:
        return self.faster

    async def alter(self, _: object, config: ConsumerConfig) -> None:
        self.altered.append(config)


class Service(ConsumersService):
    def __init__(self, leader: Any) -> None:
        access: Any = SimpleNamespace(control=SimpleNamespace(quota_holder=lambda _: ""))
        super().__init__(None, leader, leader, leader, leader, access, leader)
        self.leader = leader

    async def _led(self, _: object) -> Any:
        return self.leader

    def _check_commit(self, *_: object) -> None: ...

    async def _described(self, _: object) -> pb.ConsumerDescription:
        return pb.ConsumerDescription()


CALL: Any = SimpleNamespace(made_at=0, identity=None)
FASTER = ConsumerConfig(name="c", is_durable=True, ack_wait_us=5_000_000)


@on_loop
async def test_it_gets_what_it_asks_for() -> None:
    leader = Leader(FASTER)
    request = pb.CreateConsumerRequest(name="c", ack_wait_ms=7000)
    await Service(leader).CreateConsumer(request, CALL)
    assert leader.altered == [replace(FASTER, ack_wait_us=7_000_000)]


@on_loop
async def test_a_client_of_the_api_is_refused() -> None:
    leader = Leader(FASTER)
    served = ConsumerRequests.__new__(ConsumerRequests)
    parts: dict[str, Any] = {
        "consumers": leader, "_leaderships": leader, "_creator": "",
        "_registry": SimpleNamespace(stream_of=lambda _: STREAM),
        "_replicas": SimpleNamespace(led_replica_of=lambda _: leader),
        "_catalogue": SimpleNamespace(check_commit=lambda *_: None),
    }  # fmt: skip
    vars(served).update(parts)
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 7_000_000_000}
    body = {"stream_name": "orders", "config": config, "action": "create"}
    with pytest.raises(ApiError, match="already exists"):
        await served.answer_here(STREAM.id, "CONSUMER.CREATE", "c", json.dumps(body).encode(), 0)


@on_loop
async def test_a_start_that_a_new_leader_does_not_know_yet_is_not_taken_for_its_end() -> None:
    """What was committed before would be delivered as new."""
    leader = Leader(FASTER)
    leader.knows_end = False
    with pytest.raises(UnavailableError, match="not known"):
        await Service(leader).CreateConsumer(
            pb.CreateConsumerRequest(name="c", start_offset=9), CALL
        )
