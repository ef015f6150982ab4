"""Leaf links to real NATS servers, and clients that ask over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import nats
from nats.aio.client import Client as NatsClient

from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.leaf.handshake import leaf_dialect
from jetstream_server.jetstream_api.leaf.parser import LeafMessage, LeafMessages
from jetstream_server.jetstream_api.requests import announcement, withdrawal
from tests.support.loops import eventually
from tests.support.nats_server import NatsServer
from tests.support.server import free_port_base

DOMAIN = "log"
LOST_AFTER_SECONDS = 5.0


class LeafServer(NatsServer):
    """A nats-server with a port for leaf nodes. leaf: more of the section `leafnodes`."""

    def __init__(self, config: str = "", leaf: str = "") -> None:
        self.leaf_port = free_port_base(1)
        section = f'leafnodes {{ listen: "127.0.0.1:{self.leaf_port}", {leaf} }}'
        super().__init__(f"{section}\n{config}", arguments=("-DV",))

    @property
    def leaf_url(self) -> str:
        return f"nats://127.0.0.1:{self.leaf_port}"


class Echo:
    """Answers each request with its own payload, and remembers it."""

    def __init__(self, servers: Sequence[str], options: LinkOptions, **more: object) -> None:
        self.messages: list[LeafMessage] = []
        dialect = leaf_dialect(DOMAIN, "test")
        self.link = LeafConnection(
            servers,
            replace(options, dialect=dialect),
            announcement(DOMAIN),
            withdrawal(DOMAIN),
            self.take,
            AckPolicy(),
            **more,  # type: ignore[arg-type]
        )

    def take(self, messages: LeafMessages) -> None:
        self.messages += messages
        for each in messages:
            if each.reply and self.link.may_answer(each.reply):
                self.link.send(each.reply, each.payload, each.headers)

    @property
    def subjects(self) -> list[bytes]:
        return [each.subject for each in self.messages]


@asynccontextmanager
async def echoing(
    servers: str | Sequence[str], options: LinkOptions | None = None, *, waits: bool = True
) -> AsyncIterator[Echo]:
    """An echo whose link is connected, closed in the end."""
    urls = [servers] if isinstance(servers, str) else servers
    echo = Echo(urls, options or LinkOptions(), random=Random(7))
    echo.link.start()
    try:
        if waits:
            await eventually(lambda: echo.link.is_connected)
        yield echo
    finally:
        await echo.link.close()


@asynccontextmanager
async def client_of(url: str, **options: object) -> AsyncIterator[NatsClient]:
    client = await nats.connect(url, **options)
    try:
        yield client
    finally:
        await client.close()


async def asked(client: NatsClient, verb: str, payload: bytes = b"x", seconds: float = 60) -> bytes:
    """The answer to a request. NATS passes an announcement on in its own time: until then it says
    that nobody answers, and the request is repeated. One that only reads is also repeated if it is
    lost: it may have gone to a server that was just killed."""
    reads = {"INFO", "NAMES", "LIST", "GET"}.intersection(verb.split("."))
    patience = LOST_AFTER_SECONDS if reads else seconds
    async with asyncio.timeout(seconds):
        while True:
            try:
                answer = await client.request(f"$JS.{DOMAIN}.API.{verb}", payload, timeout=patience)
                return bytes(answer.data)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.01)
            except nats.errors.TimeoutError:
                if not reads:
                    raise


async def answer(client: NatsClient, verb: str, body: object = b"") -> dict[str, Any]:
    """The answer to a request, as an object. body: JSON, or what to encode so."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    found: dict[str, Any] = json.loads(await asked(client, verb, payload))
    return found


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[NatsClient]:
    """A client of an API that answers."""
    async with client_of(url) as client:
        await asked(client, "INFO", b"")
        yield client
