"""Key-value buckets of NATS's own clients: what nats-py does with one, and requests by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
)
from nats.js.kv import KeyValue

from jetstream_client import Client
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, answer, asked, client_of
from tests.support.loops import on_loop
from tests.support.server import ServerProcess
from tests.support.stages import hub_stage

hub = hub_stage()


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with api_server(tmp_path_factory.mktemp("buckets") / "data", hub) as running:
        with Client(running.grpc, timeout=60) as sdk:
            # The cluster is new: it waits until buckets may be made.
            sdk.create_stream("first", "first.>", key="subject")
        yield running


@asynccontextmanager
async def asking(hub: LeafServer) -> AsyncIterator[tuple[NatsClient, JetStreamContext]]:
    async with client_of(hub.url) as client:
        await asked(client, "INFO", b"")
        yield client, client.jetstream(domain="log", timeout=60)


@asynccontextmanager
async def bucket(hub: LeafServer, name: str) -> AsyncIterator[KeyValue]:
    """A new one."""
    async with asking(hub) as (_, js):
        yield await js.create_key_value(config=KeyValueConfig(bucket=name))


@on_loop
async def test_keys_are_put_read_updated_and_deleted(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with bucket(hub, "life") as kv:
        with pytest.raises(KeyNotFoundError):
            await kv.get("age")
        first = await kv.create("age", b"30")
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.create("age", b"31")
        second = await kv.update("age", b"31", last=first)
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.update("age", b"32", last=first)
        entry = await kv.get("age")
        assert (entry.value, entry.revision) == (b"31", second)
        assert (await kv.get("age", revision=first)).value == b"30"
        await kv.put("empty", b"")
        assert (await kv.get("empty")).value in (b"", None)
        await kv.delete("age", last=second)
        with pytest.raises(KeyNotFoundError):
            await kv.get("age")
        assert (await kv.get("empty")).revision == second + 1
        again = await kv.create("age", b"1")
        assert (await kv.get("age")).revision == again
        async with client_of(hub.url) as client:
            for more, wrong in (({"keep": 1}, None), ({}, 10110)):
                body = {"filter": "$KV.life.age"} | more
                purged = await answer(client, "STREAM.PURGE.KV_life", body)
                assert (purged.get("error", {}).get("err_code"), purged["purged"]) == (wrong, 0)
        assert (await kv.get("age")).revision == again, "it was put since its deletion"
        await kv.purge("age")
        with pytest.raises(KeyNotFoundError):
            await kv.get("age")
        await kv.purge_deletes(olderthan=-1)
        status = await kv.status()
        assert (status.bucket, status.history, status.ttl) == ("life", 1, 0)


@on_loop
async def test_keys_are_listed_and_watched(server: ServerProcess, hub: LeafServer) -> None:
    async with bucket(hub, "seen") as kv:
        with pytest.raises(NoKeysError):
            await kv.keys()
        for number in range(5):
            for key in ("a", "b.c", "b.d"):
                await kv.put(key, b"%d" % number)
        await kv.delete("b.d")
        assert sorted(await kv.keys()) == ["a", "b.c"]
        assert [each.value for each in await kv.history("a")] == [b"4"]
        watcher = await kv.watch("b.*")
        initial = [await watcher.updates(timeout=60) for _ in range(3)]
        assert [(e.key, e.value, e.operation) for e in initial if e is not None] == [
            ("b.c", b"4", None),
            ("b.d", b"", "DEL"),
        ]
        assert initial[2] is None, "the end of the initial values"
        await kv.put("b.e", b"new")
        update = await watcher.updates(timeout=60)
        assert update is not None
        assert (update.key, update.value) == ("b.e", b"new")
        await watcher.stop()


@on_loop
async def test_of_clients_that_create_one_key_one_is_right(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with bucket(hub, "locks") as kv:
        found = await asyncio.gather(
            *(kv.create("leader", b"%d" % number) for number in range(15)), return_exceptions=True
        )
        revisions = [each for each in found if not isinstance(each, BaseException)]
        assert revisions == [1]
        # A client that is refused reads the key, which may not be committed yet.
        refused = {type(each) for each in found} - {int}
        assert refused <= {KeyWrongLastSequenceError, KeyNotFoundError}


@on_loop
async def test_a_bucket_is_a_stream_for_everybody_else(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with bucket(hub, "shared") as kv:
        for value in (b"1", b"2"):
            await kv.put("x", value)
        await kv.put("gone", b"")
        await kv.delete("gone")
    with Client(server.grpc, timeout=60) as sdk:
        described = sdk.describe_stream("KV_shared")
        assert (described.subject, described.key, described.compact) == (
            "$KV.shared.>", "subject", True,
        )  # fmt: skip
        last = sdk.get_last("KV_shared", subject="$KV.shared.x")
        assert last is not None
        assert (last.key, last.value) == (b"$KV.shared.x", b"2")
        with sdk.table("KV_shared") as table:
            assert dict(table) == {b"$KV.shared.x": b"2"}


@on_loop
async def test_what_is_put_by_the_subjects_of_the_domain_is_stored(
    server: ServerProcess, hub: LeafServer
) -> None:
    """As nats.go, nats.js and others put it; and what is not for a bucket is not."""
    async with bucket(hub, "domain") as kv:
        async with client_of(hub.url) as client:
            for number in range(3):
                headers = {"Nats-Expected-Last-Subject-Sequence": str(number)}
                ack = await client.request(
                    "$JS.log.API.$KV.domain.k", b"%d" % number, timeout=60, headers=headers
                )
                assert json.loads(ack.data)["seq"] == number + 1
        assert (await kv.get("k")).value == b"2"


@on_loop
async def test_streams_are_created_altered_purged_and_deleted(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub) as (client, js):
        config = {"name": "made", "subjects": ["made.>"], "max_age": 3600 * 10**9, "max_msgs": -1,
                  "storage": "file", "retention": "limits", "num_replicas": 1}  # fmt: skip
        made = await answer(client, "STREAM.CREATE.made", config)
        assert (made["did_create"], made["config"]["max_age"]) == (True, 3600 * 10**9)
        again = await answer(client, "STREAM.CREATE.made", config)
        assert "did_create" not in again
        other = await answer(client, "STREAM.CREATE.made", config | {"max_age": 0})
        assert other["error"]["err_code"] == 10058
        overlap = await answer(client, "STREAM.CREATE.o", {"name": "o", "subjects": ["made.x"]})
        assert overlap["error"]["err_code"] == 10065
        for number in range(10):
            await js.publish("made.x", b"%d" % number, timeout=60)
        altered = await answer(client, "STREAM.UPDATE.made", made["config"] | {"max_msgs": 1000})
        assert (altered["config"]["max_msgs"], altered["config"]["max_age"]) == (1000, 3600 * 10**9)
        moved = await answer(client, "STREAM.UPDATE.made", made["config"] | {"subjects": ["b"]})
        assert moved["error"]["err_code"] == 10052
        purged = await answer(client, "STREAM.PURGE.made", {"seq": 4})
        assert (purged["success"], purged["purged"]) == (True, 3)
        purged = await answer(client, "STREAM.PURGE.made", {"keep": 2})
        assert purged["purged"] == 5
        refused = await answer(client, "STREAM.PURGE.made", {"filter": "made.x"})
        assert (refused["error"]["err_code"], refused["purged"]) == (10110, 0)
        everything = await answer(client, "STREAM.PURGE.made", {"filter": "made.>"})
        assert everything["purged"] == 2
        assert (await answer(client, "STREAM.PURGE.made"))["purged"] == 0
        assert (await js.stream_info("made")).state.messages == 0
        assert await js.delete_stream("made")
        missing = await answer(client, "STREAM.INFO.made")
        assert missing["error"]["err_code"] == 10059
        assert (await answer(client, "STREAM.DELETE.made"))["error"]["err_code"] == 10059


@pytest.mark.parametrize(
    "config",
    [
        {"max_msgs_per_subject": 5},
        {"max_msgs_per_subject": 1, "max_age": 10**9},
        {"max_msgs_per_subject": 1, "max_bytes": 1000},
        {"retention": "workqueue"},
        {"subjects": ["refused.a", "refused.b"]},
        {"sources": [{"name": "other"}]},
        {"mirror": {"name": "other"}},
        {"republish": {"src": ">", "dest": "x.>"}},
        {"allow_msg_ttl": True},
        {"sealed": True},
        {"discard": "new", "max_msgs": 5},
        {"allow_rollup_hdrs": True},
        {"compression": "s2"},
        {"num_replicas": 3},
        {"subjects": ["$JS.log.API.>"]},
    ],
)
def test_what_we_do_not_have_is_refused(
    server: ServerProcess, hub: LeafServer, config: dict[str, Any]
) -> None:
    @on_loop
    async def scenario() -> None:
        async with asking(hub) as (client, _):
            body = {"name": "refused", "subjects": ["refused.>"]} | config
            found = await answer(client, "STREAM.CREATE.refused", body)
            assert found["error"]["err_code"] in (10052, 10008), found
            assert (await answer(client, "STREAM.INFO.refused"))["error"]["err_code"] == 10059

    scenario()


@on_loop
async def test_nats_py_is_told_of_a_history_that_we_do_not_keep(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub) as (_, js):
        for wanted in ({"history": 3}, {"ttl": 5}):
            with pytest.raises(APIError) as refused:
                await js.create_key_value(config=KeyValueConfig(bucket="more", **wanted))
            assert refused.value.err_code == 10052
        with pytest.raises(BucketNotFoundError):
            await js.key_value("more")
        kv = await js.create_key_value(config=KeyValueConfig(bucket="less"))
        await kv.put("k", b"v")
        assert await js.delete_key_value("less")
        with pytest.raises(BucketNotFoundError):
            await js.key_value("less")
