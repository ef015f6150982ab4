"""Publishing where NATS wants to know who it is, and forbids some things."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from jetstream_client import (
    Client,
    ClientConfig,
    InvalidRequestError,
    NatsOptions,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.nats import NatsInbox, login_of
from tests.support.loops import on_loop
from tests.support.nats_jwt import new_operator, new_user
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server

CONFIG = """
authorization {
  users: [
    { user: server, password: s1 }
    {
      user: app, password: "p@ss"
      permissions: { publish: ["open.>"], subscribe: ["_INBOX.>"] }
    }
    {
      user: deaf, password: d1
      permissions: { publish: [">"], subscribe: { deny: [">"] } }
    }
  ]
}
"""


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer(CONFIG) as nats:
        yield nats


@pytest.fixture(scope="module")
def guarded(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a NATS with accounts, and a stream on open.> and closed.>."""
    url = nats.url.replace("://", "://server:s1@")
    data = tmp_path_factory.mktemp("guarded") / "data"
    with running_server(data, "--nats", url) as server:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("open", "open.>")
            client.create_stream("closed", "closed.>")
        yield server


def test_a_client_without_credentials_is_turned_away(
    guarded: ServerProcess, nats: NatsServer
) -> None:
    with (
        Client(guarded.grpc, nats=nats.url) as client,
        pytest.raises(UnauthenticatedError, match="refuses to let us in"),
    ):
        client.publish("open.x", b"1")


@pytest.mark.parametrize("in_url", [True, False])
def test_user_and_password_are_given_in_the_url_or_as_options(
    guarded: ServerProcess, nats: NatsServer, in_url: bool
) -> None:
    url = nats.url.replace("://", "://app:p%40ss@") if in_url else nats.url
    options = None if in_url else NatsOptions(user="app", password="p@ss")
    with Client(guarded.grpc, nats=url, nats_options=options) as client:
        assert client.publish("open.x", b"1").stream == "open"


def test_a_forbidden_subject_is_an_error_of_its_own(
    guarded: ServerProcess, nats: NatsServer
) -> None:
    options = NatsOptions(user="app", password="p@ss")
    with Client(guarded.grpc, nats=nats.url, nats_options=options, timeout=60) as client:
        with pytest.raises(PermissionDeniedError, match=r"closed\.Upper"):
            client.publish("closed.Upper", b"1")
        assert client.publish("open.x", b"1").stream == "open"
    with Client(guarded.grpc, timeout=60) as client:
        assert client.describe_stream("closed").log_end_offset == 0


def test_where_answers_cannot_be_heard_outcomes_are_unknown(
    guarded: ServerProcess, nats: NatsServer
) -> None:
    options = NatsOptions(user="deaf", password="d1")
    with Client(guarded.grpc, nats=nats.url, nats_options=options, timeout=60) as client:
        assert client.publish("open.x", b"0", ack_level="none").acks == ()  # It has connected.
        with pytest.raises(UnknownOutcomeError):
            client.publish("open.x", b"1", timeout=1)


def test_secrets_stay_out_of_errors(guarded: ServerProcess, nats: NatsServer) -> None:
    url = nats.url.replace("://", "://app:hush-hush@")
    with (
        Client(guarded.grpc, nats=url, timeout=60) as client,
        pytest.raises(UnauthenticatedError) as caught,
    ):
        client.publish("open.x", b"1")
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(client.config)


def test_a_missing_credentials_file_is_said(guarded: ServerProcess, tmp_path: Path) -> None:
    options = NatsOptions(credentials=str(tmp_path / "nobody.creds"))
    with (
        Client(guarded.grpc, nats_options=options, timeout=60) as client,
        pytest.raises(InvalidRequestError, match=r"cannot read .*nobody\.creds"),
    ):
        client.publish("open.x", b"1")


def test_logins_are_taken_out_of_urls_and_decoded() -> None:
    urls, options = login_of(["nats://a%40b:p%3Aw@h:1", "h:2"], NatsOptions())
    assert urls == ["nats://h:1", "nats://h:2"]
    assert (options.user, options.password, options.token) == ("a@b", "p:w", None)
    assert login_of(["tls://t0ken@h:1"], NatsOptions())[1].token == "t0ken"
    assert login_of(["nats://u:p@h"], NatsOptions(user="me"))[1].user == "me"


async def echo(url: str, options: NatsOptions) -> None:
    """Connect, publish to the own inbox, and hear it."""
    heard = asyncio.get_running_loop().create_future()
    inbox = NatsInbox(
        lambda token, payload: heard.set_result((token, payload)), print, ConnectionEvents()
    )
    await inbox.connect([url], options, timeout=60.0)
    try:
        deadline = asyncio.get_running_loop().time() + 60.0
        await inbox.publish(f"{inbox.prefix}7", b"hello", "", [], deadline)
        assert await heard == ("7", b"hello")
    finally:
        await inbox.close()


@on_loop
async def test_an_nkey_opens_the_door(tmp_path: Path) -> None:
    seed, public_key = new_user()
    path = tmp_path / "seed"
    path.write_text(seed)
    with NatsServer(f"authorization {{ users: [ {{ nkey: {public_key} }} ] }}") as nats:
        await echo(nats.url, NatsOptions(nkey_seed=str(path)))


@on_loop
async def test_a_credentials_file_opens_the_door(tmp_path: Path) -> None:
    operator = new_operator()
    path = tmp_path / "user.creds"
    path.write_text(operator.credentials())
    with NatsServer(operator.config) as nats:
        await echo(nats.url, NatsOptions(credentials=str(path)))


@on_loop
async def test_a_token_opens_the_door() -> None:
    with NatsServer("authorization { token: 's3cr3t+t/ken' }") as nats:
        await echo(nats.url, NatsOptions(token="s3cr3t+t/ken"))
        await echo(nats.url.replace("://", "://s3cr3t+t%2Fken@"), NatsOptions())


@on_loop
async def test_tls_is_checked_against_the_authority_given(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "strangers.pem")
    files = f'cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem"'
    with NatsServer(f"tls {{ {files} }}") as nats:
        await echo(nats.url, NatsOptions(tls_ca=str(tmp_path / "ca.pem")))
        strangers = NatsOptions(tls_ca=str(tmp_path / "strangers.pem"))
        for seconds in PATIENCES:
            with pytest.raises(UnavailableError) as refused:
                await echo_soon(nats.url, strangers, seconds)
            if "certificate" in str(refused.value):
                break
        assert "certificate" in str(refused.value)


def test_a_publisher_is_told_why_it_cannot_connect(guarded: ServerProcess, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = f'cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem"'
    with NatsServer(f"tls {{ {files} }}") as nats:
        config = ClientConfig(
            servers=(guarded.grpc,), nats=(nats.url,), nats_options=NatsOptions(tls=True)
        )
        with Client.from_config(config) as client:
            for seconds in PATIENCES:
                with pytest.raises(UnavailableError, match=r"; nothing was published") as refused:
                    client.publish("open.x", b"1", timeout=seconds)
                if "certificate" in str(refused.value):
                    break
        assert "certificate" in str(refused.value)


PATIENCES = (1.0, 5.0, 25.0)
"""Of who tries for as long as it may: the server may not have answered in the shortest."""


async def echo_soon(url: str, options: NatsOptions, seconds: float = 1.0) -> None:
    await NatsInbox(print, print, ConnectionEvents()).connect([url], options, timeout=seconds)


@on_loop
async def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(InvalidRequestError, match="TLS cannot use"):
        await echo_soon("nats://127.0.0.1:1", NatsOptions(tls_ca=str(path)))
