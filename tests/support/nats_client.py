"""What tests of the NATS connection share: connections that are closed with the test, a collector
of deliveries, publishing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.handshake import LinkOptions


class Collector:
    """An owner of subscriptions that remembers everything it is told."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.refusals: list[tuple[int, PermissionDeniedError]] = []
        self.disconnects: list[str] = []
        self.connection: NatsConnection | None = None

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def refuse(self, sid: int, error: PermissionDeniedError) -> None:
        self.refusals.append((sid, error))

    def disconnected(self, reason: str) -> None:
        self.disconnects.append(reason)

    @property
    def reconnects(self) -> int:
        return 0 if self.connection is None else self.connection.counters.reconnects

    @property
    def values(self) -> list[bytes]:
        return [value for delivery in self.deliveries for value in delivery.values]

    @property
    def subjects(self) -> list[bytes]:
        return [subject for delivery in self.deliveries for subject in delivery.subjects]

    @property
    def replies(self) -> list[bytes]:
        return [reply for delivery in self.deliveries for reply in delivery.replies]


class PatientConnection(NatsConnection):
    """For machines that stand still for seconds."""

    async def flush(self, timeout_s: float = 60.0) -> None:
        await super().flush(timeout_s)


@asynccontextmanager
async def connected(
    servers: str | Sequence[str],
    collector: Collector | None = None,
    options: LinkOptions | None = None,
    **more: Any,
) -> AsyncIterator[NatsConnection]:
    """A connection that has connected within a minute, closed in the end."""
    if collector is not None:
        more = {"on_disconnect": collector.disconnected, **more}
    urls = [servers] if isinstance(servers, str) else servers
    connection = PatientConnection(urls, options, **more)
    if collector is not None:
        collector.connection = connection
    try:
        await connection.connect(60.0)
        yield connection
    finally:
        await connection.close()


def pub(subject: str, value: bytes = b"", reply: str = "") -> bytes:
    reply = f"{reply} " if reply else ""
    return f"PUB {subject} {reply}{len(value)}\r\n".encode() + value + b"\r\n"


def hpub(subject: str, block: bytes, value: bytes = b"") -> bytes:
    lengths = f"{len(block)} {len(block) + len(value)}"
    return f"HPUB {subject} {lengths}\r\n".encode() + block + value + b"\r\n"


def url_of(connection: NatsConnection) -> str:
    """The server it is connected to, without credentials; "" while there is none."""
    link = connection._link
    return "" if link is None else link.address.url
