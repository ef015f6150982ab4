"""A late copy of a request about a durable consumer, which another node has taken, changes
nothing; and a request that comes too early to a new leader is asked again."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.manager import Consumers
from jetstream_server.jetstream_api.consumers import ConsumerRequests
from tests.support.loops import on_loop
from tests.unit.consumers.test_keeper import Log
from tests.unit.consumers.test_manager import made

STREAM: Any = SimpleNamespace(id=StreamId(7), name="orders", subject="o", full_name="orders@o")
CONFIG = {"ack_policy": "explicit"}
REQUESTS = {
    "pause": ("CONSUMER.PAUSE", "c", {"pause_until": "2099-01-01T00:00:00Z"}),
    "delete": ("CONSUMER.DELETE", "c", None),
    "alter": ("CONSUMER.CREATE", "c", {"config": CONFIG | {"durable_name": "c"}}),
    "create": ("CONSUMER.CREATE", "new", {"config": CONFIG | {"durable_name": "new"}}),
}


def leader(consumers: Consumers, *, seeks_end: bool = False) -> ConsumerRequests:
    """Of `STREAM`, which has the consumer `c`. seeks_end: it finds out what was acknowledged."""

    async def loaded(_: object) -> None: ...

    def check_readable() -> None:
        raise AssertionError("it makes a consumer")

    replica = SimpleNamespace(stream=STREAM, check_readable=check_readable)
    replica.leadership = SimpleNamespace(seeks_end=seeks_end)
    served = ConsumerRequests.__new__(ConsumerRequests)
    served.consumers = consumers
    parts: dict[str, Any] = {
        "_registry": SimpleNamespace(stream_of=lambda _: STREAM),
        "_replicas": SimpleNamespace(led_replica_of=lambda _: replica),
        "_leaderships": SimpleNamespace(loaded=loaded),
    }
    vars(served).update(parts)
    config = ConsumerConfig(name="c", is_durable=True, description="as it is")
    consumers._by_stream[STREAM.id] = {
        "c": SimpleNamespace(config=config, replica=replica, is_interrupted=False)  # type: ignore[dict-item]
    }
    return served


@pytest.mark.parametrize(("verb", "rest", "body"), REQUESTS.values(), ids=REQUESTS)
@on_loop
async def test_it_is_refused(verb: str, rest: str, body: dict[str, Any] | None) -> None:
    noted = list[tuple[str, int]]()

    async def note_change(what: str, made_at: int) -> None:
        noted.append((what, made_at))
        raise UnavailableError(f"{what} was changed after this call was sent")

    payload = b"" if body is None else json.dumps(body | {"stream_name": "orders"}).encode()
    with pytest.raises(UnavailableError, match="changed after this call was sent"):
        await leader(made(Log(), note_change=note_change)).answer_for(
            STREAM.id, verb, rest, payload, 5
        )
    assert noted == [(f"consumer {rest!r} of orders@o", 5)]


@pytest.mark.parametrize(
    ("verb", "rest"), [("CONSUMER.INFO", "c"), ("CONSUMER.LIST", ""), REQUESTS["create"][:2]]
)
@on_loop
async def test_a_new_leader_tells_of_no_consumer_how_much_is_left_before_it_knows(
    verb: str, rest: str
) -> None:
    body = CONFIG | {"durable_name": "new"}
    payload = (
        json.dumps({"stream_name": "orders", "config": body}).encode() if rest == "new" else b""
    )
    with pytest.raises(UnavailableError, match="does not know its end yet"):
        await leader(made(Log()), seeks_end=True).answer_for(STREAM.id, verb, rest, payload, 5)
