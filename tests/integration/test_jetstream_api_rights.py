"""With security on, clients of the JetStream API have the rights of one principal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nats.aio.client import Client as NatsClient

from jetstream_client import Client
from tests.support.jetstream_api import api_cluster, secured_api_server
from tests.support.leaf import LeafServer, answer, asked, client_of
from tests.support.loops import eventually, on_loop

PRINCIPAL = "user:app"


def create_streams(client: Client) -> None:
    for name in ("orders", "shown", "secret"):
        client.create_stream(name, f"{name}.>")
        client.publish(f"{name}.x", b"value of " + name.encode())


async def status(client: NatsClient, stream: str) -> str:
    verb = f"$JS.log.API.DIRECT.GET.{stream}"
    found = await client.request(verb, b'{"seq":1}', timeout=60)
    return (found.headers or {}).get("Status", "") or found.data.decode()


@on_loop
async def test_a_principal_sees_what_it_may_describe_and_reads_what_it_may_read(
    tmp_path: Path,
) -> None:
    with LeafServer() as hub, secured_api_server(tmp_path / "data", hub, PRINCIPAL) as server:
        with server.client() as admin:
            create_streams(admin)
            admin.add_acl(PRINCIPAL, "read", stream="orders", subject="orders.>")
            admin.add_acl(PRINCIPAL, "describe", stream="shown", subject="shown.>")
        async with client_of(hub.url) as client:
            assert (await answer(client, "STREAM.NAMES"))["streams"] == ["orders", "shown"]
            assert await status(client, "orders") == "value of orders"
            assert (await answer(client, "STREAM.INFO.shown"))["state"]["messages"] == 1
            assert await status(client, "shown") == "403"
            refused = (await answer(client, "STREAM.MSG.GET.shown", b'{"seq":1}'))["error"]
            assert refused["code"] == 403
            assert "lacks the right `read`" in refused["description"]
            unknown = {}
            for name in ("secret", "nothing"):
                unknown[name] = [
                    (await answer(client, f"{verb}.{name}", b'{"seq":1}'))["error"]
                    for verb in ("STREAM.INFO", "STREAM.MSG.GET")
                ]
            assert unknown["secret"] == unknown["nothing"]
            assert unknown["secret"][0]["err_code"] == 10059


@on_loop
async def test_a_right_counts_as_soon_as_it_is_given_and_ends_as_soon_as_it_is_taken(
    tmp_path: Path,
) -> None:
    with (
        LeafServer() as hub,
        secured_api_server(tmp_path / "data", hub, PRINCIPAL) as server,
        server.client() as admin,
    ):
        create_streams(admin)
        async with client_of(hub.url) as client:
            assert (await answer(client, "STREAM.NAMES"))["streams"] is None
            rule = admin.add_acl(PRINCIPAL, "read", stream="secret", subject="secret.>")
            assert (await answer(client, "STREAM.NAMES"))["streams"] == ["secret"]
            assert await status(client, "secret") == "value of secret"
            admin.remove_acl(rule.id)
            assert (await answer(client, "STREAM.NAMES"))["streams"] is None
            found = await answer(client, "STREAM.MSG.GET.secret", b'{"seq":1}')
            assert found["error"]["err_code"] == 10059


@on_loop
async def test_each_change_of_a_stream_needs_its_own_right(tmp_path: Path) -> None:
    config = {"name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1}
    body = json.dumps(config).encode()
    changes = {
        "create": ("STREAM.CREATE", body),
        "alter": ("STREAM.UPDATE", json.dumps(config | {"max_msg_size": 99}).encode()),
        "purge": ("STREAM.PURGE", b""),
        "delete": ("STREAM.DELETE", b""),
    }
    put = "$JS.log.API.$KV.b.k"
    with (
        LeafServer() as hub,
        secured_api_server(tmp_path / "data", hub, PRINCIPAL) as server,
        server.client() as admin,
    ):
        admin.create_stream("first", "first.>", key="subject")
        async with client_of(hub.url) as client:
            for right, (verb, payload) in changes.items():
                refused = (await answer(client, f"{verb}.KV_b", payload))["error"]
                if right == "create":
                    assert refused["code"] == 403
                    admin.add_acl(PRINCIPAL, "describe", stream="KV_b", subject="$KV.b.>")
                else:
                    assert (refused["code"], refused["err_code"]) == (403, 10003)
                admin.add_acl(PRINCIPAL, right, stream="KV_b", subject="$KV.b.>")
                if right == "purge":
                    with pytest.raises(TimeoutError):
                        await client.request(put, b"v", timeout=0.5)
                    await asked(client, "INFO")  # What was put before has been refused by now.
                    admin.add_acl(PRINCIPAL, "write", stream="KV_b", subject="$KV.b.>")
                    assert (
                        json.loads((await client.request(put, b"v", timeout=60)).data)["seq"] == 1
                    )
                done = await answer(client, f"{verb}.KV_b", payload)
                assert "error" not in done, done
            assert (await answer(client, "STREAM.INFO.KV_b"))["error"]["err_code"] == 10059
    log = server.log_text
    for verb in ("CREATE", "UPDATE", "PURGE", "DELETE"):
        assert f'"operation": "STREAM.{verb}"' in log


@on_loop
async def test_without_a_principal_nobody_has_a_right(tmp_path: Path) -> None:
    with LeafServer() as hub, secured_api_server(tmp_path / "data", hub, "") as server:
        with server.client() as admin:
            create_streams(admin)
            admin.add_acl("*", "read", stream="*", subject=">")
        async with client_of(hub.url) as client:
            for verb in ("INFO", "STREAM.NAMES", "STREAM.INFO.orders", "FOO"):
                assert (await answer(client, verb))["error"]["err_code"] == 10039
            with pytest.raises(Exception, match="no responders"):
                await status(client, "orders")


@on_loop
async def test_nodes_read_for_each_other_while_security_is_on(tmp_path: Path) -> None:
    with LeafServer() as hub, api_cluster(tmp_path / "nodes", hub, PRINCIPAL) as cluster:
        token = cluster.bootstrap()
        with Client(cluster.servers, token=token, timeout=60) as admin:
            admin.create_stream("orders", "orders.>", replicas=1)
            admin.publish("orders.x", b"value", msg_id="value")
            admin.add_acl(PRINCIPAL, "read", stream="orders", subject="orders.>")
        for address in cluster.cluster.grpc_addresses:
            with Client(address, token=token, timeout=60) as at_node:
                await eventually(lambda at_node=at_node: len(at_node.list_acls(PRINCIPAL)) == 1)
        await eventually(lambda: hub.log.count("LS+ $JS.log.API.STREAM.>") >= 3)
        async with client_of(hub.url) as client:
            await asked(client, "INFO", b"")
            for _ in range(30):
                assert await status(client, "orders") == "value"
                state = (await answer(client, "STREAM.INFO.orders"))["state"]
                assert state["messages"] == 1
