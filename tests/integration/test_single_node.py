"""One node, end to end: plain NATS messages in, a durable log out."""

from __future__ import annotations

import asyncio
import json
import time

import nats
import nats.errors
import nats.js.errors
import pytest

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import (
    InvalidRequestError,
    StreamExistsError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import api_pb2 as pb
from tests.support.api import Api, answer_of, raw_nats
from tests.support.server import ServerProcess
from tests.support.stages import server_on_disk_stage

server = server_on_disk_stage()


def test_creating_and_then_publishing_loses_nothing(server: ServerProcess, api: Api) -> None:
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.cycle")
        for cycle in range(100):
            api.create(f"cycle-{cycle}", f"cycle.{cycle}")
            client.publish(f"cycle.{cycle}", b"x", "_INBOX.cycle")
            assert answer_of(client.message()[1]) == {"stream": f"cycle-{cycle}", "seq": 1}


def test_creating_again_returns_the_same_stream_and_differing_is_an_error(api: Api) -> None:
    first = api.create("again", "again.>", flush=pb.FLUSH_INTERVAL)
    second = api.create("again", "again.>", flush=pb.FLUSH_INTERVAL)
    assert (first.created, second.created) == (True, False)
    assert first.stream.id == second.stream.id
    with pytest.raises(StreamExistsError, match="flush is 'interval', not 'none'"):
        api.create("again", "again.>", flush=pb.FLUSH_NONE)


@pytest.mark.parametrize("subject", [">", "_INBOX.>", "_INBOX.x", "$SYS.>", "*.x", "$JS.API.>"])
def test_a_subject_that_carries_acks_needs_acks_off(api: Api, subject: str) -> None:
    with pytest.raises(InvalidRequestError, match="acks: off"):
        api.create("overlap", subject)
    api.create("overlap", subject, acks=pb.ACKS_OFF)
    api.delete("overlap")


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        *(("", "a"), ("a b", "a"), ("../x", "a")),
        *(("a", ""), ("a", "a..b"), ("a", "a.>.b"), ("a", "a b")),
    ],
)
def test_bad_names_and_subjects_are_refused(api: Api, name: str, subject: str) -> None:
    with pytest.raises(InvalidRequestError):
        api.create(name, subject)


def test_wildcards_keep_each_message_s_subject(server: ServerProcess, api: Api) -> None:
    api.create("wild", "wild.*.>")
    with raw_nats(server.nats) as client:
        for subject in ("wild.a.b", "wild.a.b.c", "wild.x", "wild.é.ü"):
            client.publish(subject, subject.encode())
        client.ping()
    wait_for_records(api, "wild", 3)
    subjects = [subject for batch in api.read_all("wild") for subject in batch.subjects()]
    assert subjects == [b"wild.a.b", b"wild.a.b.c", "wild.é.ü".encode()]


def test_headers_are_kept_byte_for_byte_and_the_key_is_set(server: ServerProcess, api: Api) -> None:
    api.create("headers", "headers")
    block = b"NATS/1.0\r\nJetstream-Key: k-1\r\nX: 1\r\nx:  two \r\nX: 3\r\n\r\n"
    with raw_nats(server.nats) as client:
        client.publish("headers", b"v", headers=block)
        client.publish("headers", b"w")
        client.ping()
    wait_for_records(api, "headers", 2)
    batches = api.read_all("headers")
    assert [block for batch in batches for block in batch.header_blocks()] == [block, b""]
    assert [key for batch in batches for key in Batch.keys(batch)] == [b"k-1", None]


def test_an_empty_payload_is_an_empty_value_and_a_tombstone_is_null(
    server: ServerProcess, api: Api
) -> None:
    api.create("null", "null")
    with raw_nats(server.nats) as client:
        client.publish("null", b"")
        client.publish("null", b"", headers=header("Jetstream-Tombstone", "true"))
        client.ping()
    wait_for_records(api, "null", 2)
    assert api.values("null") == [b"", None]


def header(name: str, value: str) -> bytes:
    return f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (header("Nats-Expected-Stream", "refuse"), None),
        (header("Nats-Expected-Stream", "other"), 10060),
        (header("Nats-Expected-Last-Msg-Id", "x"), 20001),
        (header("Nats-TTL", "1s"), 20001),
        (header("Nats-Rollup", "all"), 20001),
        (header("Jetstream-Ack", "sometimes"), 10003),
        (header("Jetstream-Unheard", "x"), 20001),
    ],
)
def test_what_is_not_supported_is_refused_and_never_ignored(
    server: ServerProcess, api: Api, block: bytes, code: int | None
) -> None:
    api.create("refuse", "refuse")
    before = api.describe("refuse").log_end_offset
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.refuse")
        client.publish("refuse", b"x", "_INBOX.refuse", headers=block)
        answer = json.loads(client.message()[1])
    stored = api.describe("refuse").log_end_offset - before
    if code is None:
        assert (answer["stream"], stored) == ("refuse", 1)
    else:
        assert (answer["error"]["err_code"], stored) == (code, 0)


def test_ack_levels_none_and_leader(server: ServerProcess, api: Api) -> None:
    api.create("levels", "levels")
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.levels")
        client.publish("levels", b"1", "_INBOX.levels", headers=header("Jetstream-Ack", "none"))
        client.publish("levels", b"2", "_INBOX.levels", headers=header("Jetstream-Ack", "leader"))
        assert json.loads(client.message()[1])["seq"] == 2


def test_a_publisher_cannot_make_the_server_publish_elsewhere(
    server: ServerProcess, api: Api
) -> None:
    api.create("victim", "victim")
    with raw_nats(server.nats) as spy, raw_nats(server.nats) as client:
        spy.subscribe("forbidden.>")
        client.subscribe("_INBOX.mine")
        client.publish("victim", b"x", "forbidden.subject")
        client.publish("victim", b"y", "_INBOX.mine")
        assert json.loads(client.message()[1])["seq"] == 2
        spy.ping()  # No message comes before the answer.
    assert api.describe("victim").acks_suppressed == 1


def test_every_stream_on_a_subject_stores_and_acknowledges(server: ServerProcess, api: Api) -> None:
    api.create("one", "many.*")
    api.create("two", "many.>")
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.many")
        client.publish("many.x", b"v", "_INBOX.many")
        answers = {json.loads(client.message()[1])["stream"] for _ in range(2)}
    assert answers == {"one", "two"}


def test_streams_of_one_group_share_the_messages(server: ServerProcess, api: Api) -> None:
    api.create("left", "shared", group="g")
    api.create("right", "shared", group="g")
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.shared")
        for index in range(200):
            client.publish("shared", b"%d" % index, "_INBOX.shared")
        for _ in range(200):
            client.message()
    left, right = api.values("left"), api.values("right")
    assert left
    assert right
    assert sorted(map(int, [*left, *right])) == list(range(200))  # type: ignore[arg-type]


def test_a_request_reply_service_is_unharmed_under_acks_envelope(
    server: ServerProcess, api: Api
) -> None:
    api.create("audit", "service", acks=pb.ACKS_ENVELOPE)

    async def ask() -> list[bytes]:
        client = await nats.connect(server.nats)

        async def answer(message: nats.aio.msg.Msg) -> None:
            await message.respond(b"answer to " + message.data)

        await client.subscribe("service", cb=answer)
        await client.flush()
        answers = []
        for index in range(50):
            reply = await client.request("service", b"%d" % index, timeout=60)
            answers.append(reply.data)
        await client.close()
        return answers

    assert asyncio.run(ask()) == [b"answer to %d" % index for index in range(50)]
    wait_for_records(api, "audit", 50)
    assert api.describe("audit").acks_sent == 0


def test_js_publish_of_nats_py_works_unchanged_and_no_stream_fails_at_once(
    server: ServerProcess, api: Api
) -> None:
    api.create("library", "library.>")

    async def publish() -> tuple[str, int]:
        client = await nats.connect(server.nats)
        context = client.jetstream(timeout=60)
        ack = await context.publish("library.x", b"v", stream="library")
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await context.publish("nobody.listens", b"v")
        await client.close()
        return ack.stream, ack.seq

    assert asyncio.run(publish()) == ("library", 1)


def test_a_deleted_stream_is_gone_and_can_be_created_anew(server: ServerProcess, api: Api) -> None:
    first = api.create("gone", "gone").stream.id
    with raw_nats(server.nats) as client:
        client.publish("gone", b"x")
        client.ping()
    wait_for_records(api, "gone", 1)
    folder = server.data / "streams" / str(first)
    assert folder.exists()
    api.delete("gone")
    assert not folder.exists()
    with pytest.raises(StreamNotFoundError):
        api.describe("gone")
    second = api.create("gone", "gone").stream
    assert second.id > first
    assert api.describe("gone").log_end_offset == 0


def test_every_acknowledged_message_is_read_back_in_order_after_kill_9(
    own_server: ServerProcess,
) -> None:
    """nats-py's js.publish() publishes 3,000 messages through a kill -9 and a restart."""
    own_server.start()
    api = Api(own_server.grpc)
    api.create("orders", "orders")
    api.close()
    acknowledged = asyncio.run(_publish_through_a_crash(own_server, 3_000))
    api = Api(own_server.grpc)
    values = api.values("orders")
    api.close()
    assert len(acknowledged) == 3_000
    for value, sequence in acknowledged.items():
        assert values[sequence - 1] == value
    ours = [int(value) for value in values if value is not None]
    first_seen = list(dict.fromkeys(ours))
    assert first_seen == sorted(first_seen)


async def _publish_through_a_crash(server: ServerProcess, count: int) -> dict[bytes, int]:
    """Publish in order, one after another, retrying what is not acknowledged."""
    client = await nats.connect(server.nats, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    context = client.jetstream()
    acknowledged: dict[bytes, int] = {}
    restart: asyncio.Task[None] | None = None
    for index in range(count):
        if index == count // 2:
            restart = asyncio.create_task(asyncio.to_thread(_kill_and_start, server))
        value = b"%d" % index
        while value not in acknowledged:
            try:
                ack = await context.publish("orders", value, timeout=1)
                acknowledged[value] = ack.seq
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.02)
    assert restart is not None
    await restart
    await client.close()
    return acknowledged


def _kill_and_start(server: ServerProcess) -> None:
    server.kill()
    server.start()


def wait_for_records(api: Api, name: str, count: int) -> None:
    """Until `count` records are committed: publishes without ack are acknowledged by nobody."""
    deadline = time.monotonic() + 60
    while api.describe(name).high_watermark < count:
        assert time.monotonic() < deadline, api.describe(name)
        time.sleep(0.01)
