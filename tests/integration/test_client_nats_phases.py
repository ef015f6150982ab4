"""The SDK's connection to a NATS server that stops answering, or hangs up, at any point: it ends in
time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from jetstream_client.migration.nats_stream import NatsStream
from jetstream_client.transport.connection_events import Callbacks, ConnectionEvents
from jetstream_client.transport.nats import NatsInbox, load_nats
from jetstream_client.values.config import NatsOptions
from jetstream_protocol.errors import UnavailableError
from tests.support.loops import on_loop

PATIENCE = 0.5
HUNG_SECONDS = 100.0
INFO = {"server_id": "x", "version": "2.11.0", "max_payload": 1 << 20, "headers": True, "proto": 1}


class Certificates:
    """Of the server, and the authority that clients trust."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self.context)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Nats:
    """Greets clients and answers their pings, up to the phase in which it stops or hangs up."""

    def __init__(self, phase: str, tls: ssl.SSLContext | None) -> None:
        self._phase = phase
        self._tls = tls
        self._over = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._serving)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            await self._stop_at("accepted", writer)
            info = {**INFO, "tls_required": self._tls is not None}
            writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
            await self._stop_at("greeted", writer)
            if self._tls is not None:
                await writer.start_tls(self._tls)
            await self._stop_at("encrypted", writer)
            while line := await reader.readline():
                if line.startswith(b"CONNECT"):
                    await self._stop_at("introduced", writer)
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
                    await self._stop_at("connected", writer)
        writer.transport.abort()

    async def _stop_at(self, phase: str, writer: asyncio.StreamWriter) -> None:
        if self._phase == f"silent once {phase}":
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await self._over.wait()
            raise ConnectionResetError
        if self._phase == f"gone once {phase}":
            writer.close()
            raise ConnectionResetError


@asynccontextmanager
async def nats(phase: str, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Its URL. Whatever the client leaves running is an error."""
    await load_nats()
    nats = Nats(phase, tls)
    server = await asyncio.start_server(nats.accept, "127.0.0.1", 0)
    before = asyncio.all_tasks()
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await nats.end()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


def inbox() -> NatsInbox:
    return NatsInbox(lambda *_: None, lambda *_: None, ConnectionEvents(Callbacks()))


PHASES = ["accepted", "greeted", "encrypted", "introduced"]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("what", ["silent", "gone"])
@pytest.mark.parametrize("phase", PHASES)
def test_connecting_ends_in_time(
    certificates: Certificates, phase: str, what: str, encrypted: bool
) -> None:
    @on_loop
    async def scenario() -> None:
        options = NatsOptions(tls_ca=certificates.ca) if encrypted else NatsOptions()
        async with nats(f"{what} once {phase}", certificates.context if encrypted else None) as url:
            async with asyncio.timeout(HUNG_SECONDS):
                with pytest.raises(UnavailableError, match="cannot connect to NATS"):
                    await inbox().connect([url], options, PATIENCE)

    scenario()


@on_loop
async def test_connecting_can_be_given_up_at_any_moment() -> None:
    """Also when an answer comes in the same moment: `asyncio.wait_for` before Python 3.12 then
    takes the answer and forgets that it was cancelled."""
    chance = random.Random(1)
    async with nats("gone once introduced", None) as url:
        for _ in range(300):
            async with asyncio.timeout(HUNG_SECONDS):
                with pytest.raises(UnavailableError):
                    await inbox().connect([url], NatsOptions(), chance.random() * 0.005)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_nats_that_takes_nothing_holds_up_neither_publishing_nor_closing(
    certificates: Certificates, encrypted: bool
) -> None:
    @on_loop
    async def scenario() -> None:
        options = NatsOptions(tls_ca=certificates.ca) if encrypted else NatsOptions()
        tls = certificates.context if encrypted else None
        async with nats("silent once connected", tls) as url, asyncio.timeout(HUNG_SECONDS):
            connection = inbox()
            await connection.connect([url], options, 60.0)

            async def publish_more_than_fits_into_the_buffers() -> None:
                for _ in range(64):
                    deadline = asyncio.get_running_loop().time() + PATIENCE
                    await connection.publish("orders", bytes(1_000_000), "", [], deadline)

            with pytest.raises(UnavailableError, match="takes no messages"):
                await publish_more_than_fits_into_the_buffers()
            await connection.close()

    scenario()


def test_an_import_tells_that_the_server_hung_up_and_leaves_no_thread() -> None:
    def read(url: str) -> None:
        with NatsStream([url], NatsOptions(), "orders"):
            pass

    @on_loop
    async def scenario() -> None:
        async with nats("gone once introduced", None) as url:
            before = set(threading.enumerate())
            with pytest.raises(UnavailableError, match="the server closed the connection"):
                await asyncio.to_thread(read, url)
            left = [thread.name for thread in set(threading.enumerate()) - before]
            assert "jetstream-client" not in left

    scenario()
