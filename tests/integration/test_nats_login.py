"""Every way to log in to NATS, and TLS, each against a nats-server configured so."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats.auth import Credentials
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.handshake import LinkOptions
from tests.support.loops import eventually, on_loop
from tests.support.nats_certificates import issued
from tests.support.nats_client import Collector, connected, pub
from tests.support.nats_jwt import new_operator, new_seed, new_user
from tests.support.nats_server import NatsServer

USER = "authorization { user: me, password: 'p@ss:w/rd' }"
TOKEN = "authorization { token: 's3cr3t+t/ken' }"


async def round_trip(url: str, options: LinkOptions) -> None:
    """Log in, subscribe, and receive what is published."""
    got = Collector()
    async with connected(url, got, options) as connection:
        connection.subscribe("a", "", got.deliver)
        connection.write(pub("a", b"v"))
        await connection.flush()
    assert got.values == [b"v"]


async def refusal(url: str, options: LinkOptions, **more: Any) -> str:
    """What `connect` says of a login that is refused; everything logged meanwhile is added."""
    async with asyncio.timeout(60):
        while True:
            connection = NatsConnection([url], options, **more)
            try:
                with capture_logs() as logs, pytest.raises(UnavailableError) as caught:
                    await connection.connect(0.5)
            finally:
                await connection.close()
            assert connection.counters.connects == 0
            if "no server has answered yet" not in str(caught.value):
                return f"{caught.value} {logs}"


def login(**fields: Any) -> LinkOptions:
    return LinkOptions(credentials=Credentials(**fields))


@on_loop
async def test_user_and_password() -> None:
    with NatsServer(USER) as server:
        await round_trip(server.url, login(user="me", password="p@ss:w/rd"))
        await round_trip(server.url.replace("://", "://me:p%40ss%3Aw%2Frd@"), LinkOptions())


@on_loop
async def test_a_wrong_password_is_said_clearly_never_shown_and_tried_again() -> None:
    with NatsServer(USER) as server:
        text = await refusal(server.url, login(user="me", password="wr0ng"))
        assert "Authorization Violation" in text
        assert "nats_login_refused" in text
        assert "wr0ng" not in text
        connection = NatsConnection([server.url], login(user="me", password="n3w"))
        try:
            with pytest.raises(UnavailableError):
                await connection.connect(0.3)
            server.reconfigure("authorization { user: me, password: n3w }")
            await connection.connect(5.0)
        finally:
            await connection.close()


@on_loop
async def test_a_server_that_wants_a_login_refuses_none() -> None:
    with NatsServer(USER) as server:
        assert "Authorization Violation" in await refusal(server.url, LinkOptions())


@on_loop
async def test_token() -> None:
    with NatsServer(TOKEN) as server:
        await round_trip(server.url, login(token="s3cr3t+t/ken"))
        await round_trip(server.url.replace("://", "://s3cr3t+t%2Fken@"), LinkOptions())
        assert "wr0ng" not in await refusal(server.url, login(token="wr0ng"))


@on_loop
async def test_nkey_from_text_and_from_a_file(tmp_path: Path) -> None:
    seed, public_key = new_user()
    path = tmp_path / "seed"
    path.write_text(seed + "\n")
    with NatsServer(f"authorization {{ users: [ {{ nkey: {public_key} }} ] }}") as server:
        await round_trip(server.url, login(nkey_seed=seed))
        await round_trip(server.url, login(nkey_seed_file=path))
        other = new_seed(nkeys.PREFIX_BYTE_USER).decode()
        text = await refusal(server.url, login(nkey_seed=other))
        assert "Authorization Violation" in text
        assert other not in text


@on_loop
async def test_credentials_file_is_read_anew_for_every_connection(tmp_path: Path) -> None:
    operator = new_operator()
    path = tmp_path / "user.creds"
    path.write_text(operator.credentials(expires=int(time.time()) - 60))
    got = Collector()
    with NatsServer(operator.config) as server:
        assert "Authorization Violation" in await refusal(server.url, login(credentials_file=path))
        path.write_text(operator.credentials())
        async with connected(server.url, got, login(credentials_file=path)) as connection:
            path.write_text(operator.credentials())
            server.kill()
            server.start()
            await eventually(lambda: got.reconnects == 1)
            await connection.flush()


@on_loop
async def test_a_login_that_expires_is_a_disconnect_with_its_reason(tmp_path: Path) -> None:
    operator = new_operator()
    path = tmp_path / "user.creds"
    got = Collector()

    async def renew() -> None:
        """However late the login, it is valid then."""
        while True:
            path.write_text(operator.credentials(expires=int(time.time()) + 2))
            await asyncio.sleep(0.5)

    with NatsServer(operator.config) as server:
        renewing = asyncio.create_task(renew())
        async with connected(server.url, got, login(credentials_file=path)):
            renewing.cancel()
            path.write_text(operator.credentials())
            await eventually(lambda: got.reconnects == 1)
    assert got.disconnects == ["User Authentication Expired"]


@pytest.mark.parametrize("text", [None, "", "no creds", "-----BEGIN NATS USER JWT-----\nx\n"])
@on_loop
async def test_unusable_credentials_are_named_with_their_file(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "user.creds"
    if text is not None:
        path.write_text(text)
    with NatsServer() as server:
        found = await refusal(server.url, login(credentials_file=path))
        assert str(path) in found
        assert "nats_login_refused" in found


@on_loop
async def test_tls_begins_after_info_where_the_server_requires_it(tmp_path: Path) -> None:
    made = issued(tmp_path)
    with NatsServer(f"tls {{ {made.config} }}\n{USER}") as server:
        options = LinkOptions(
            tls=made.context(), credentials=Credentials(user="me", password="p@ss:w/rd")
        )
        await round_trip(server.url, options)
        await round_trip(server.url.replace("nats://", "tls://"), options)


@on_loop
async def test_large_deliveries_arrive_over_tls(tmp_path: Path) -> None:
    got = Collector()
    made = issued(tmp_path)
    with NatsServer(f"tls {{ {made.config} }}") as server:
        options = LinkOptions(tls=made.context())
        async with (
            connected(server.url, got, options) as connection,
            connected(server.url, None, options) as publisher,
        ):
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            values = [b"%d" % i * 40 for i in range(20_000)]
            publisher.write(b"".join([pub("a", value) for value in values]))
            await publisher.flush(60.0)
            await connection.flush(60.0)
    assert got.values == values


@on_loop
async def test_tls_handshake_first(tmp_path: Path) -> None:
    made = issued(tmp_path)
    with NatsServer(f"tls {{ {made.config}, handshake_first: true }}") as server:
        await round_trip(server.url, LinkOptions(tls=made.context(), tls_handshake_first=True))


@on_loop
async def test_mutual_tls(tmp_path: Path) -> None:
    made = issued(tmp_path)
    config = f'tls {{ {made.config}, ca_file: "{tmp_path}/ca.pem", verify: true }}'
    with NatsServer(config) as server:
        context = made.context()
        assert "certificate required" in await refusal(server.url, LinkOptions(tls=context))
        made.authority.issue_cert("client").configure_cert(context)
        await round_trip(server.url, LinkOptions(tls=context))


@on_loop
async def test_a_certificate_of_another_authority_or_name_is_refused(tmp_path: Path) -> None:
    made = issued(tmp_path, "elsewhere.example")
    with NatsServer(f"tls {{ {made.config} }}") as server:
        stranger = LinkOptions(tls=ssl.create_default_context())
        assert "certificate verify failed" in await refusal(server.url, stranger)
        wrong_name = LinkOptions(tls=made.context())
        assert "not valid for" in await refusal(server.url, wrong_name)


@on_loop
async def test_credentials_are_not_sent_to_a_server_without_tls_where_tls_is_wanted(
    tmp_path: Path,
) -> None:
    made = issued(tmp_path)
    with NatsServer(USER, arguments=("-DV",)) as server:
        credentials = Credentials(user="me", password="p@ss:w/rd")
        options = LinkOptions(tls=made.context(), credentials=credentials)
        assert "does not offer TLS" in await refusal(server.url, options)
        tls_url = server.url.replace("nats://", "tls://")
        assert "does not offer TLS" in await refusal(tls_url, login(user="me", password="x"))
        assert "CONNECT" not in server.log
        await round_trip(server.url, LinkOptions(credentials=credentials))
        assert "CONNECT" in server.log  # so the log would have shown it
