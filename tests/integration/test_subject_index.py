"""Streams with `key: subject` on a real server: the last record of each subject is known, and is
what publishers are held to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.js.errors import APIError, NotFoundError

from jetstream_client import Client
from jetstream_protocol.errors import InvalidRequestError, StreamExistsError
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, asked, asking
from tests.support.loops import on_loop
from tests.support.server import ServerProcess
from tests.support.stages import hub_stage

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
BUCKET: dict[str, Any] = {"key": "subject", "compact": True}


hub = hub_stage()


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with api_server(tmp_path_factory.mktemp("subjects") / "data", hub) as running:
        with Client(running.grpc, timeout=60) as client:
            client.create_stream("far", "far.>", key="subject")
            client.create_stream("bucket", "bucket.>", **BUCKET)
            client.create_stream("counted", "counted.>", **BUCKET)
            client.create_stream("plain", "plain.>")
        yield running


async def answer(client: NatsClient, verb: str, **body: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await asked(client, verb, json.dumps(body).encode()))
    return found


@on_loop
async def test_the_last_record_of_a_subject_is_found_however_far_back_it_is(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        js = client.jetstream(domain="log")
        await js.publish("far.first", b"1", timeout=60)
        for _ in range(12):
            await js.publish("far.others", bytes(900_000), timeout=60)
        for is_direct in (False, True):
            found = await js.get_msg("far", subject="far.first", direct=is_direct)
            assert (found.seq, found.data) == (1, b"1")
            with pytest.raises(NotFoundError):
                await js.get_msg("far", subject="far.never", direct=is_direct)
        reply = await client.request(
            "$JS.log.API.DIRECT.GET.far", b'{"multi_last":["far.first","far.never"]}', timeout=60
        )
        assert (reply.data, (reply.headers or {})["Nats-Sequence"]) == (b"1", "1")
    with Client(server.grpc, timeout=60) as sdk:
        message = sdk.get_last("far", subject="far.first")
        assert message is not None
        assert (message.offset, message.value, message.key) == (0, b"1", b"far.first")
        assert sdk.get_last("far", subject="far.never") is None
        newest = sdk.fetch("far", reverse=True, max_messages=1, filter="far.first")
        assert [each.value for each in newest] == [b"1"]


@on_loop
async def test_subjects_are_counted(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        js = client.jetstream(domain="log")
        for number in range(30):
            await js.publish(f"counted.{'abc'[number % 3]}.x", b"%d" % number, timeout=60)
        info = await answer(client, "STREAM.INFO.counted", subjects_filter="counted.a.>")
        state = info["state"]
        assert (state["subjects"], state["num_subjects"]) == ({"counted.a.x": 1}, 3)
        assert (info["total"], info["offset"], state["messages"]) == (1, 0, 3)
        info = await answer(client, "STREAM.INFO.counted", subjects_filter=">", offset=1)
        assert info["state"]["subjects"] == {"counted.b.x": 1, "counted.c.x": 1}
        assert info["total"] == 3
        assert info["config"]["max_msgs_per_subject"] == 1
        info = await answer(client, "STREAM.INFO.counted")
        assert "subjects" not in info["state"]
        assert info["state"]["last_seq"] == 30
        refused = await answer(client, "STREAM.INFO.far", subjects_filter="far.>")
        assert refused["error"]["err_code"] == 10052


@pytest.mark.parametrize("stream", ["plain", "bucket"])
def test_of_publishers_with_one_expectation_one_is_right(
    server: ServerProcess, hub: LeafServer, stream: str
) -> None:
    @on_loop
    async def scenario() -> None:
        async with asking(hub.url) as client:
            js = client.jetstream(domain="log")
            subject, last = f"{stream}.contended", 0
            for _ in range(3):
                found = await asyncio.gather(
                    *(
                        js.publish(subject, b"%d" % n, timeout=60, headers={EXPECTED: str(last)})
                        for n in range(20)
                    ),
                    return_exceptions=True,
                )
                (ack,) = [each for each in found if not isinstance(each, BaseException)]
                last = ack.seq
                errors = [each for each in found if isinstance(each, APIError)]
                assert [each.err_code for each in errors] == [10071] * 19
                assert {each.description for each in errors} == {f"wrong last sequence: {last}"}

    scenario()


def test_what_a_key_is_is_chosen_once(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as sdk:
        assert sdk.create_stream("bucket", "bucket.>", **BUCKET).key == "subject"
        with pytest.raises(StreamExistsError, match="key is 'subject', not 'record'"):
            sdk.create_stream("bucket", "bucket.>", key="record")
        with pytest.raises(InvalidRequestError, match="invalid key 'offset'"):
            sdk.create_stream("other", "other.>", key="offset")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="have keys that publishers give"):
            sdk.create_group("keyed", "keyed.>", streams=2, key="subject")


def restart(server: ServerProcess) -> None:
    server.kill()
    server.start()


@on_loop
async def test_after_a_restart_all_is_as_before(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        js = client.jetstream(domain="log")
        ack = await js.publish("bucket.kept", b"1", timeout=60)
        for stream in ("bucket", "plain"):
            await js.publish(f"{stream}.known", b"1", timeout=60)
        await asyncio.to_thread(restart, server)
        await asked(client, "INFO", b"")
        for stream in ("bucket", "plain"):
            with pytest.raises(APIError) as refused:
                await js.publish(f"{stream}.known", b"", timeout=60, headers={EXPECTED: "0"})
            assert refused.value.err_code == 10071
        found = await js.get_msg("bucket", subject="bucket.kept", direct=True)
        assert (found.seq, found.data) == (ack.seq, b"1")
