"""The page's recipe for NATS, on a real nats-server: clients read only through Jetstream."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from jetstream_client import Client, NatsOptions, UnauthenticatedError
from tests.support.nats_server import NatsServer
from tests.support.secured import SecuredServer, administered

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PASSWORDS = {"$JETSTREAM_PASSWORD": "for-the-server", "$APP_PASSWORD": "for-the-app"}


@pytest.fixture(scope="module")
def locked() -> Iterator[NatsServer]:
    section = PAGE.read_text().partition("\n## NATS\n")[2]
    found = re.search(r"```\n(accounts .*?)```", section, re.DOTALL)
    assert found is not None
    config = found[1]
    for variable, password in PASSWORDS.items():
        assert variable in config
        config = config.replace(variable, password)
    with NatsServer(config) as running:
        yield running


@pytest.fixture(scope="module")
def server(locked: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    url = locked.url.replace("//", "//jetstream:for-the-server@")
    data = tmp_path_factory.mktemp("locked") / "data"
    with administered(SecuredServer(data, "--nats", url)) as server:
        yield server


def test_who_may_publish_is_acknowledged_and_reads_only_through_jetstream(
    locked: NatsServer, server: SecuredServer
) -> None:
    app = NatsOptions(user="app", password="for-the-app")
    with server.client() as admin:
        admin.create_stream("orders", "orders.>")
        admin.add_acl("user:app", "describe", stream="orders")
        token = admin.create_token("user:app").text
        with Client(
            server.grpc, nats=locked.url, nats_options=app, token=token, timeout=60
        ) as client:
            assert client.publish("orders.eu", b"1").offset == 0
        nobody = Client(server.grpc, token="", timeout=60)
        with nobody, pytest.raises(UnauthenticatedError):
            nobody.fetch("orders")
        assert admin.fetch("orders")[0].value == b"1"


@pytest.mark.parametrize("subject", ["orders.>", "orders.eu", ">", "*.eu", "secret", "$SYS.>"])
def test_an_application_hears_no_messages_of_others(
    locked: NatsServer, server: SecuredServer, subject: str
) -> None:
    async def listen() -> tuple[list[str], list[bytes]]:
        refused: list[str] = []
        heard: list[bytes] = []

        async def note(error: Exception) -> None:
            refused.append(str(error))

        async def hear(message: nats.aio.msg.Msg) -> None:
            heard.append(message.data)

        spy = await nats.connect(locked.url, user="app", password="for-the-app", error_cb=note)
        await spy.subscribe(subject, cb=hear)
        await spy.flush()
        await spy.publish("orders.eu", b"for the log only")
        await spy.flush()
        await asyncio.sleep(0.1)
        await spy.close()
        return refused, heard

    refused, heard = asyncio.run(listen())
    assert heard == []
    assert any("permissions violation" in each.lower() for each in refused)


def test_a_stranger_does_not_even_get_in(locked: NatsServer) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), 60) as stranger:
        stranger.sendall(b"CONNECT {}\r\nSUB orders.> 1\r\nPING\r\n")
        said = b""
        while more := stranger.recv(4096):
            said += more
    assert b"Authorization Violation" in said
    assert b"PONG" not in said
