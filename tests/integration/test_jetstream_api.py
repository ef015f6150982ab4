"""The JetStream API as clients use it: nats-py with a domain, and requests by hand."""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from jetstream_client import Client
from tests.support.jetstream_api import api_server
from tests.support.leaf import LeafServer, answer, asked, asking, client_of
from tests.support.loops import on_loop
from tests.support.server import ServerProcess
from tests.support.stages import hub_stage

COUNT = 30


hub = hub_stage("max_payload: 256KB")


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a stream `orders` of 30 records on three subjects, and some others."""
    with api_server(tmp_path_factory.mktemp("api") / "data", hub) as running:
        with Client(running.grpc, timeout=60) as client:
            for name, subject in STREAMS.items():
                client.create_stream(name, subject)
        asyncio.run(_publish(hub.url))
        yield running


STREAMS = {"orders": "orders.>", "single": "single", "dotted.name": "dots.*", "empty": "empty.>"}


async def _publish(url: str) -> None:
    async with client_of(url) as client:
        for number in range(COUNT):
            headers = {"Number": str(number), "Nats-Sequence": "999"} if number % 2 else None
            subject = f"orders.{'abc'[number % 3]}"
            await client.request(subject, b"%d" % number, headers=headers, timeout=60)
        for number in range(5):
            await client.request("single", b"%d" % number, timeout=60)
        await asked(client, "INFO", b"")


async def error(client: NatsClient, verb: str, body: object = b"") -> tuple[int, int]:
    """Code and number of a refusal."""
    found = (await answer(client, verb, body))["error"]
    return found["code"], found["err_code"]


async def direct(client: NatsClient, stream: str, body: object = b"") -> Msg:
    """The answer to DIRECT.GET for one message."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.request(f"$JS.log.API.DIRECT.GET.{stream}", payload, timeout=60)


async def batch(client: NatsClient, body: dict[str, Any], stream: str = "orders") -> list[Msg]:
    """The answers to DIRECT.GET for a batch, up to the status that ends them."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    payload = json.dumps(body).encode()
    await client.publish(f"$JS.log.API.DIRECT.GET.{stream}", payload, reply=inbox)
    found: list[Msg] = []
    while not found or not status(found[-1]):
        found.append(await subscription.next_msg(60))
    await subscription.unsubscribe()
    return found


def status(message: Msg) -> str:
    """Code and text; "" for a message."""
    headers = message.headers or {}
    if "Status" not in headers:
        return ""
    text = next((value for name, value in headers.items() if name == "Description"), "")
    return f"{headers['Status']} {text}".strip()


def sequences(messages: list[Msg]) -> list[int]:
    return [int(each.headers["Nats-Sequence"]) for each in messages[:-1]]


@on_loop
async def test_a_library_finds_streams_with_a_domain(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        manager = client.jetstream(domain="log")
        info = await manager.account_info()
        assert (info.domain, info.streams, info.consumers) == ("log", len(STREAMS), 0)
        stream = await manager.stream_info("orders")
        assert stream.config.subjects == ["orders.>"]
        state = stream.state
        assert (state.first_seq, state.last_seq, state.messages) == (1, COUNT, COUNT)
        assert await manager.find_stream_name_by_subject("orders.x") == "orders"
        names = [each.config.name for each in await manager.streams_info()]
        assert names == ["dotted%2Ename", "empty", "orders", "single"]
        with pytest.raises(NotFoundError):
            await manager.stream_info("nothing")


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_library_reads_single_messages(
    server: ServerProcess, hub: LeafServer, is_direct: bool
) -> None:
    @on_loop
    async def scenario() -> None:
        async with asking(hub.url) as client:
            manager = client.jetstream(domain="log")
            by_sequence = await manager.get_msg("orders", 5, direct=is_direct)
            assert (by_sequence.seq, by_sequence.data) == (5, b"4")
            assert by_sequence.subject == "orders.b"
            last = await manager.get_msg("orders", subject="orders.b", direct=is_direct)
            assert (last.seq, last.data) == (29, b"28")
            following = await manager.get_msg(
                "orders", seq=6, subject="orders.a", next=True, direct=is_direct
            )
            assert (following.seq, following.data) == (7, b"6")
            with_headers = await manager.get_msg("orders", 6, direct=is_direct)
            assert with_headers.headers is not None
            assert with_headers.headers["Number"] == "5"
            for beyond in (COUNT + 1, COUNT + 1000):
                with pytest.raises(NotFoundError):
                    await manager.get_msg("orders", beyond, direct=is_direct)

    scenario()


@on_loop
async def test_a_message_is_read_as_soon_as_it_is_acknowledged(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        for number in range(20):
            ack = json.loads((await client.request("dots.x", b"%d" % number, timeout=60)).data)
            found = await direct(client, "dotted%2Ename", {"last_by_subj": "dots.x"})
            assert int(found.headers["Nats-Sequence"]) == ack["seq"]
            assert found.data == b"%d" % number


@on_loop
async def test_headers_that_a_publisher_gives_are_not_taken_for_the_servers(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        found = await direct(client, "orders", {"seq": 2})
        assert found.headers["Nats-Sequence"] == "2"
        assert found.headers["Number"] == "1"
        assert found.headers["Nats-Subject"] == "orders.b"
        assert found.headers["Nats-Stream"] == "orders"


@on_loop
async def test_the_last_message_of_a_subject_by_the_subject_of_the_request(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        assert (await direct(client, "orders.orders.c")).headers["Nats-Sequence"] == "30"
        assert (await direct(client, "orders.orders.*")).headers["Nats-Sequence"] == "30"
        assert status(await direct(client, "orders.orders.z")) == "404 Message Not Found"
        assert status(await direct(client, "orders.orders.c", {"seq": 1})) == "408 Bad Request"


@on_loop
async def test_batches(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        found = await batch(client, {"seq": 3, "batch": 4})
        assert sequences(found) == [3, 4, 5, 6]
        assert [each.headers["Nats-Num-Pending"] for each in found] == [
            "27", "26", "25", "24", "24",
        ]  # fmt: skip
        assert [each.headers["Nats-Last-Sequence"] for each in found] == ["0", "3", "4", "5", "6"]
        assert status(found[-1]) == "204 EOB"
        to_the_end = await batch(client, {"seq": 28, "batch": 100})
        assert sequences(to_the_end) == [28, 29, 30]
        assert to_the_end[-1].headers["Nats-Num-Pending"] == "0"
        filtered = await batch(client, {"next_by_subj": "orders.a", "seq": 5, "batch": 3})
        assert sequences(filtered) == [7, 10, 13]
        assert filtered[-1].headers["Nats-Num-Pending"] == "5"
        short = await batch(client, {"seq": 1, "batch": 100, "max_bytes": 20})
        assert 1 <= len(short) - 1 < 5
        since = await batch(client, {"start_time": "2020-01-01T00:00:00Z", "batch": 2})
        assert sequences(since) == [1, 2]
        later = await batch(client, {"start_time": "2999-01-01T00:00:00Z", "batch": 2})
        assert status(later[-1]) == "404 Message Not Found"


@on_loop
async def test_the_last_messages_of_many_subjects(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        found = await batch(client, {"multi_last": ["orders.a", "orders.c"]})
        assert sequences(found) == [28, 30]
        assert found[-1].headers["Nats-UpTo-Sequence"] == "30"
        assert sequences(await batch(client, {"multi_last": ["orders.>"]})) == [28, 29, 30]
        assert sequences(await batch(client, {"multi_last": ["orders.>"], "up_to_seq": 7})) == [
            5, 6, 7,
        ]  # fmt: skip
        cut = await batch(client, {"multi_last": ["orders.>"], "batch": 1})
        assert sequences(cut) == [28]
        assert cut[-1].headers["Nats-Num-Pending"] == "2"
        none = await batch(client, {"multi_last": ["other.x"]})
        assert status(none[-1]) == "404 No Results"


@on_loop
async def test_the_state_of_an_empty_stream_and_of_a_used_one(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        empty = (await answer(client, "STREAM.INFO.empty"))["state"]
        zero = "0001-01-01T00:00:00Z"
        assert empty == {
            "messages": 0, "bytes": 0, "first_seq": 0, "first_ts": zero, "last_seq": 0,
            "last_ts": zero, "consumer_count": 0,
        }  # fmt: skip
        used = (await answer(client, "STREAM.INFO.orders", {}))["state"]
        assert zero < used["first_ts"] <= used["last_ts"]
        assert used["bytes"] > 0
        config = {"durable_name": "counted", "ack_policy": "explicit"}
        asked = {"stream_name": "orders", "config": config}
        await answer(client, "CONSUMER.DURABLE.CREATE.orders.counted", asked)
        counted = (await answer(client, "STREAM.INFO.orders"))["state"]["consumer_count"]
        assert counted == used["consumer_count"] + 1
        await answer(client, "CONSUMER.DELETE.orders.counted")


@on_loop
async def test_subjects_are_counted_where_that_costs_nothing(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        found = await answer(client, "STREAM.INFO.single", {"subjects_filter": ">"})
        assert found["state"]["subjects"] == {"single": 5}
        assert (found["total"], found["state"]["num_subjects"]) == (1, 1)
        other = await answer(client, "STREAM.INFO.single", {"subjects_filter": "x"})
        assert "subjects" not in other["state"]
        assert await error(client, "STREAM.INFO.orders", {"subjects_filter": ">"}) == (500, 10052)


@on_loop
async def test_pages_and_filters_of_lists(server: ServerProcess, hub: LeafServer) -> None:
    async with asking(hub.url) as client:
        names = await answer(client, "STREAM.NAMES", {"subject": "*"})
        assert names["streams"] == ["single"]
        rest = await answer(client, "STREAM.NAMES", {"offset": 2})
        assert (rest["total"], rest["offset"]) == (len(STREAMS), 2)
        assert rest["streams"] == ["orders", "single"]
        assert (await answer(client, "STREAM.NAMES", {"offset": 99}))["streams"] is None
        assert (await answer(client, "STREAM.LIST", {"offset": 99}))["streams"] == []
        filtered = await answer(client, "STREAM.LIST", {"subject": "dots.>"})
        assert [each["config"]["name"] for each in filtered["streams"]] == ["dotted%2Ename"]
        assert (await answer(client, "STREAM.INFO.dotted%2Ename"))["config"]["metadata"][
            "jetstream.name"
        ] == "dotted.name"


REFUSED = {
    "STREAM.CREATE.x": (400, 10056), "STREAM.UPDATE.orders": (400, 10056),
    "STREAM.DELETE.missing": (404, 10059), "STREAM.PURGE.missing": (404, 10059),
    "STREAM.MSG.DELETE.orders": (500, 10057), "STREAM.SNAPSHOT.orders": (503, 10036),
    "STREAM.LEADER.STEPDOWN.orders": (503, 10036), "STREAM.PEER.REMOVE.orders": (503, 10036),
    "META.LEADER.STEPDOWN": (503, 10036), "SERVER.REMOVE": (503, 10036),
    "CONSUMER.CREATE.orders": (400, 10025), "CONSUMER.CREATE.orders.a.b": (400, 10025),
    "CONSUMER.DURABLE.CREATE.orders.a": (400, 10025), "CONSUMER.INFO.orders.a": (404, 10014),
    "CONSUMER.DELETE.orders.a": (404, 10014), "CONSUMER.PAUSE.orders.a": (404, 10014),
    "CONSUMER.NAMES.nothing": (404, 10059), "STREAM.INFO.nothing": (404, 10059),
    "STREAM.MSG.GET.nothing": (404, 10059), "STREAM.INFO.a.b": (400, 10003),
    "STREAM.FOO.x": (400, 10003), "FOO": (400, 10003),
}  # fmt: skip


@on_loop
async def test_what_is_not_served_is_refused_with_the_numbers_of_nats(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        for verb, numbers in REFUSED.items():
            assert await error(client, verb) == numbers, verb
        assert (await answer(client, "CONSUMER.LIST.orders"))["consumers"] == []


BODIES: tuple[bytes, ...] = (
    b"{", b"[1]", b"nothing", b"[" * 100_000, b'{"seq":"1"}', b'{"seq":-1}', b'{"seq":1.5}',
    b'{"seq":true}', b'{"seq":' + b"9" * 5_000 + b"}", b'{"last_by_subj":7}', b"\xff\xfe",
    b'{"start_time":"yesterday"}', b'{"start_time":5}', b'{"multi_last":"a"}', b"x" * 200_000,
    b'{"seq":99999999999999999999}',
)  # fmt: skip
CONTRADICTING: tuple[bytes, ...] = (
    b"", b"{}", b"null", b'{"seq":1,"last_by_subj":"a"}', b'{"last_by_subj":"a..b"}',
    b'{"last_by_subj":"a","next_by_subj":"a"}', b'{"seq":1,"batch":2}', b'{"up_to_seq":4}',
)  # fmt: skip


@on_loop
async def test_garbage_is_refused_and_costs_nobody_anything(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        for body in BODIES:
            assert await error(client, "STREAM.MSG.GET.orders", body) == (400, 10025), body[:50]
            assert status(await direct(client, "orders", body)) == "408 Malformed Request"
        for body in CONTRADICTING:
            assert await error(client, "STREAM.MSG.GET.orders", body) == (400, 10003), body
        assert await error(client, "STREAM.DELETE.orders", b'{"a":1}') == (400, 10038)
        assert (await direct(client, "orders", {"seq": 1})).data == b"0"


@on_loop
async def test_a_record_longer_than_nats_takes_is_answered_with_an_error(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        long = bytes(255 * 1024)
        ack = json.loads((await client.request("empty.long", long, timeout=60)).data)
        body = {"seq": ack["seq"]}
        assert await error(client, "STREAM.MSG.GET.empty", body) == (400, 10054)
        several = await client.request("empty.long", bytes(256 * 1024 - 50), timeout=60)
        found = await direct(client, "empty", {"seq": json.loads(several.data)["seq"]})
        assert status(found) == "413 Message Too Large"
        assert (await direct(client, "empty", body)).data == long
        with Client(server.grpc, timeout=60) as own:
            own.delete_stream("empty")
            own.create_stream("empty", "empty.>")


@on_loop
async def test_a_search_without_an_end_is_refused_with_how_far_it_came(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        with Client(server.grpc, timeout=60) as own:
            own.create_stream("noise", "noise.>")
        await client.request("noise.first", b"the first", timeout=60)
        for _ in range(40):
            await client.request("noise.long", os.urandom(240 * 1024), timeout=60)
        await client.request("noise.last", b"the last", timeout=60)
        assert (await direct(client, "noise.noise.last")).data == b"the last"
        assert (await direct(client, "noise", {"next_by_subj": "noise.first"})).data == b"the first"
        for body in ({"last_by_subj": "noise.first"}, {"next_by_subj": "noise.last"}):
            found = (await answer(client, "STREAM.MSG.GET.noise", body))["error"]
            assert (found["code"], found["err_code"]) == (503, 10023)
            assert re.search("sequence [0-9]+ was reached", found["description"])
        everything = {"multi_last": ["noise.>"]}
        assert status((await batch(client, everything, "noise"))[-1]) == (
            "500 Insufficient Resources"
        )
        first_half = await batch(client, {"next_by_subj": "noise.long", "batch": 5}, "noise")
        assert sequences(first_half) == [2, 3, 4, 5, 6]
        with Client(server.grpc, timeout=60) as own:
            own.delete_stream("noise")


@on_loop
async def test_a_level_that_is_not_served_is_refused(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client:
        level = {"Nats-Required-Api-Level": "2"}
        found = await client.request("$JS.log.API.STREAM.NAMES", b"", headers=level, timeout=60)
        assert json.loads(found.data)["error"]["err_code"] == 10185
        got = await client.request(
            "$JS.log.API.DIRECT.GET.orders", b'{"seq":1}', headers=level, timeout=60
        )
        assert status(got) == "412 Required Api Level"


@on_loop
async def test_ten_thousand_requests_that_nobody_reads_cost_nobody_else_an_answer(
    server: ServerProcess, hub: LeafServer
) -> None:
    async with asking(hub.url) as client, client_of(hub.url) as hostile:
        for number in range(10_000):
            reply = f"_INBOX.gone.{number}"
            await hostile.publish("$JS.log.API.DIRECT.GET.orders", b'{"seq":1}', reply=reply)
            await hostile.publish("$JS.log.API.INFO", b"", reply=f"forbidden.{number}")
        await hostile.flush(60)
        # Meanwhile an answer may be that there are too many requests.
        async with asyncio.timeout(60):
            while await metric(server, "jetstream_api_answers_dropped_total") < 10_000:
                pass
            while (await direct(client, "orders", {"seq": 1})).data != b"0":
                pass
        assert await metric(server, "jetstream_leaf_link_connected") == 1


async def metric(server: ServerProcess, name: str) -> float:
    def read() -> float:
        with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"there is no metric {name}")

    return await asyncio.to_thread(read)
