"""The page's configuration of a nats-server, as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from jetstream_client import Client
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, asked, client_of
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "jetstream_api.md"
PASSWORDS = {"$JETSTREAM_PASSWORD": "jetstream", "$LEAF_PASSWORD": "leaf", "$APP_PASSWORD": "app"}
APP = {"user": "app", "password": "app"}


def printed() -> str:
    """With one user more, who may do everything."""
    found = re.search(r"```\nleafnodes .*?\n(accounts .*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    config = found[1]
    for variable, password in PASSWORDS.items():
        assert variable in config
        config = config.replace(variable, password)
    return config.replace("users = [", "users = [ { user: reader, password: reader }")


@pytest.fixture(scope="module")
def hub() -> Iterator[LeafServer]:
    with LeafServer(f"default_js_domain: {{ APP: log }}\n{printed()}") as running:
        yield running


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("page") / "data"
    with api_server(data, hub, user="jetstream", leaf_user="leaf") as running:
        with Client(running.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
            client.create_stream("other", "orders.us.>")
        yield running


@on_loop
async def test_an_application_reads_its_stream_and_no_other(
    hub: LeafServer, server: ServerProcess
) -> None:
    async with client_of(hub.url, **APP) as client:
        await asked(client, "INFO", b"")
        await client.request("orders.eu", b"value", timeout=60)
        manager = client.jetstream(domain="log")
        assert await manager.find_stream_name_by_subject("orders.eu") == "orders"
        assert (await manager.stream_info("orders")).state.messages == 1
        for is_direct in (False, True):
            assert (await manager.get_msg("orders", 1, direct=is_direct)).data == b"value"
        assert (await manager.get_msg("orders", subject="orders.eu", direct=True)).seq == 1
        with pytest.raises(NatsTimeoutError):  # NATS says nothing of what a user may not do.
            await client.request("$JS.log.API.STREAM.INFO.other", b"", timeout=0.5)


@on_loop
async def test_a_client_that_names_no_domain_reads_where_nats_has_a_default(
    hub: LeafServer, server: ServerProcess
) -> None:
    async with client_of(hub.url, user="reader", password="reader") as client:
        await asked(client, "INFO", b"")
        manager = client.jetstream()
        assert (await manager.account_info()).domain == "log"
        assert (await manager.stream_info("orders")).config.name == "orders"
