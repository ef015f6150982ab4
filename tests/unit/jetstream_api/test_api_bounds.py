"""How many requests a node takes. With real parts: tests/integration/test_jetstream_api.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from jetstream_server.jetstream_api import api
from jetstream_server.jetstream_api.api import JetStreamApi
from jetstream_server.jetstream_api.catalogue import Catalogue
from jetstream_server.jetstream_api.leaf.connection import LeafConnection, OnMessages
from jetstream_server.jetstream_api.leaf.parser import LeafMessage
from jetstream_server.jetstream_api.messages import Messages
from tests.support.loops import eventually, on_loop


class Link:
    """Stands for the leaf link: remembers what is sent."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.has_room = True
        self.is_closed = False
        self.sent: list[tuple[bytes, bytes]] = []

    def may_answer(self, reply: bytes) -> bool:
        return reply.startswith(b"_INBOX.")

    def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> bool:
        self.sent.append((reply, payload or headers))
        return True

    async def withdraw(self) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True


class Slow:
    """Stands for the catalogue: describes no stream until it is let."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    async def info(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        await self.goes_on.wait()
        return {"config": {"name": name}}


def made() -> tuple[JetStreamApi, Link, Slow, OnMessages]:
    link, catalogue, takers = Link(), Slow(), []

    def connect(on_messages: OnMessages) -> LeafConnection:
        takers.append(on_messages)
        return cast(LeafConnection, link)

    served = JetStreamApi(
        "log", cast(Catalogue, catalogue), cast(Messages, None), connect, is_open=True
    )
    return served, link, catalogue, takers[0]


def request(reply: bytes = b"_INBOX.a") -> LeafMessage:
    return LeafMessage(b"$JS.log.API.STREAM.INFO.orders", reply, b"", b"")


def errors(link: Link) -> list[int]:
    found = [json.loads(payload).get("error", {}).get("err_code") for _, payload in link.sent]
    return [each for each in found if each is not None]


@on_loop
async def test_more_requests_than_the_bound_are_refused_at_once() -> None:
    served, link, catalogue, take = made()
    take([request()] * (api.REQUESTS_MAX + 3))
    assert errors(link) == [10023] * 3
    assert (served.counters.requests, served.counters.refused) == (api.REQUESTS_MAX, 3)
    catalogue.goes_on.set()
    await eventually(lambda: len(link.sent) == api.REQUESTS_MAX + 3)
    take([request()])
    await eventually(lambda: len(link.sent) == api.REQUESTS_MAX + 4)
    assert len(errors(link)) == 3


@on_loop
async def test_nothing_is_taken_while_answers_wait_to_be_written() -> None:
    served, link, _, take = made()
    link.has_room = False
    take([request()] * 5)
    assert served.counters.refused == 5
    assert not link.sent


@on_loop
async def test_what_cannot_be_answered_is_not_worked_on() -> None:
    served, link, _, take = made()
    take([request(b""), request(b"orders.eu")])
    assert served.counters.requests == 0
    assert not link.sent


@on_loop
async def test_a_node_that_stops_answers_what_it_has_taken() -> None:
    served, link, catalogue, take = made()
    take([request()] * 3)
    closing = asyncio.create_task(served.close())
    await eventually(lambda: served._is_closing)
    take([request()])
    catalogue.goes_on.set()
    await closing
    assert len(link.sent) == 3
    assert not errors(link)
    assert link.is_closed


@on_loop
async def test_a_fault_of_ours_is_answered_and_costs_no_other_request() -> None:
    _, link, catalogue, take = made()
    catalogue.goes_on.set()
    take([LeafMessage(b"$JS.log.API.STREAM.NAMES", b"_INBOX.a", b"", b""), request()])
    await eventually(lambda: len(link.sent) == 2)
    assert errors(link) == [10051]


@on_loop
async def test_an_answer_that_nats_would_not_take_is_an_error() -> None:
    """The link would drop it, and its client wait."""
    served, link, catalogue, take = made()
    catalogue.goes_on.set()
    link.max_payload = 40
    take([request()])
    await eventually(lambda: bool(link.sent))
    assert errors(link) == [10054]
    assert served.counters.errors == 1
