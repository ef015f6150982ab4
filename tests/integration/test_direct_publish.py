"""Single messages that go straight to the leader of their stream, past NATS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import nats
import pytest

from jetstream_client import AsyncClient, Client
from jetstream_client.publishing import batched_publisher, direct_publisher, in_flight, ways
from jetstream_protocol.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    NoStreamError,
    PreconditionFailedError,
    StreamPausedError,
    StreamReadonlyError,
    UnknownOutcomeError,
    UnsupportedHeaderError,
)
from tests.support.gate import gated_node
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess

STRAIGHT: list[Literal["direct", "auto"]] = ["direct", "auto"]
NOWHERE = ["nats://127.0.0.1:1"]
MESSAGES: list[dict[str, Any]] = [
    {"value": b"x", "headers": {"traceparent": "00-1-2-03"}, "ack_level": "leader"},
    {"value": b"3 pears"},
    {"value": b""},
    {"value": None, "key": "gone"},
    {"value": "text", "key": b"\xff\x00", "headers": {"a": ["1", "2"], "b": "3"}},
]


def records_of(client: Client, stream: str) -> list[tuple[Any, ...]]:
    return [
        (each.offset, each.subject, each.key, each.value, each.headers.multi_items())
        for each in client.consume(stream, stop="latest", patience=60)
    ]


@pytest.mark.parametrize("via", STRAIGHT)
def test_a_message_is_stored_as_one_on_nats_is(
    client: Client, name: str, via: Literal["direct", "auto"]
) -> None:
    client.create_stream(name, f"{name}.>")
    for offset, message in enumerate(MESSAGES):
        ack = client.publish(f"{name}.a", **message, via=via)
        assert (ack.stream, ack.offset, ack.duplicate) == (name, offset, False)
    for message in MESSAGES:
        client.publish(f"{name}.a", **message)
    found = records_of(client, name)
    straight, by_nats = found[: len(MESSAGES)], found[len(MESSAGES) :]
    assert [each[1:4] for each in straight] == [each[1:4] for each in by_nats]
    for mine, other in zip(straight, by_nats, strict=True):
        asking = [pair for pair in other[4] if not pair[0].startswith("Jetstream-")]
        assert mine[4] == asking


@pytest.mark.parametrize("via", STRAIGHT)
def test_an_id_is_known_by_both_ways_and_after_a_restart(
    own_server: ServerProcess, via: Literal["direct", "auto"]
) -> None:
    own_server.start()
    with Client(own_server.grpc) as client:
        client.create_stream("ids", "ids.>")
        first = client.publish("ids.a", b"0", msg_id="one", via=via)
        assert (first.offset, first.duplicate) == (0, False)
        assert client.publish("ids.b", b"1", msg_id="one", via=via).offset == 1
        client.publish("ids.a", b"2", msg_id="two", via="nats")
        own_server.kill()
        own_server.start()
        for way in ("nats", "direct", "auto"):
            again = client.publish("ids.a", b"0", msg_id="one", via=way)  # type: ignore[arg-type]
            assert (again.offset, again.duplicate) == (0, True)
            again = client.publish("ids.a", b"2", msg_id="two", via=way)  # type: ignore[arg-type]
            assert (again.offset, again.duplicate) == (2, True)
        assert [each[3] for each in records_of(client, "ids")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("via", STRAIGHT)
def test_what_a_message_on_nats_is_refused_for_it_is_refused_for_here(
    client: Client, name: str, via: Literal["direct", "auto"]
) -> None:
    with pytest.raises(NoStreamError):
        client.publish(name, b"x", via=via)
    client.create_stream(name, name, max_message_bytes=100)
    with pytest.raises(PreconditionFailedError, match="is 0, not the expected one"):
        client.publish(name, b"x", expected_offset=7, via=via)
    assert client.publish(name, b"x", expected_offset=0, via=via).offset == 0
    with pytest.raises(MessageTooLargeError):
        client.publish(name, bytes(200), via=via)
    with pytest.raises(UnsupportedHeaderError):
        client.publish(name, b"x", headers={"Nats-Rollup": "sub"}, via=via)
    with pytest.raises(InvalidRequestError, match="msg_id is empty"):
        client.publish(name, b"x", msg_id="", via=via)
    with pytest.raises(InvalidRequestError, match="say 'nats', 'direct' or 'auto'"):
        client.publish(name, b"x", via="kafka")  # type: ignore[arg-type]
    client.set_stream_readonly(name)
    with pytest.raises(StreamReadonlyError):
        client.publish(name, b"x", via=via)
    client.set_stream_readonly(name, False)
    client.pause_stream(name)
    with pytest.raises(StreamPausedError):
        client.publish(name, b"x", via=via)
    client.resume_stream(name)
    assert client.publish(name, b"y", ack_level="none", via=via).acks == ()
    assert client.publish(name, b"z", via=via).offset == 2


def test_a_message_may_be_longer_than_nats_takes(client: Client, name: str) -> None:
    client.create_stream(name, name)
    value = bytes(8 * 1024 * 1024)
    assert client.publish(name, value, via="direct").offset == 0
    with pytest.raises(MessageTooLargeError):
        client.publish(name, bytes(17 * 1024 * 1024), via="direct")
    assert client.fetch(name, 0)[0].value == value


def test_several_streams_each_get_the_message(client: Client, name: str) -> None:
    client.create_stream(f"{name}_all", f"{name}.>")
    client.create_stream(f"{name}_one", f"{name}.a")
    subject = f"{name}.a"
    acks = client.publish(subject, b"0", via="direct").acks
    assert {each.stream for each in acks} == {f"{name}_all", f"{name}_one"}
    assert client.publish(subject, b"1", acks=[f"{name}_one"], via="direct").stream == f"{name}_one"
    with pytest.raises(PreconditionFailedError) as raised:
        client.publish(subject, b"2", expected_offset=1, via="direct")
    assert f"stream '{name}_all' has stored the message" in "".join(raised.value.__notes__)
    assert client.publish(subject, b"3", acks="any", via="direct").acks


def test_others_on_the_subject_hear_what_goes_by_nats(server: ServerProcess) -> None:
    """With "auto": what is on a subject with one stream goes straight, else by NATS."""

    async def main() -> None:
        listener = await nats.connect(server.nats)
        heard = await listener.subscribe("heard.>")
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("heard_one", "heard.one")
            await client.create_stream("heard_two", "heard.two")
            await client.create_stream("heard_both", "heard.two")
            await client.create_stream("heard_service", "heard.service", acks="envelope")
            for via in ("direct", "auto"):
                await client.publish("heard.one", b"straight", via=via)  # type: ignore[arg-type]
            acks = (await client.publish("heard.two", b"by nats", via="auto")).acks
            assert {each.stream for each in acks} == {"heard_two", "heard_both"}
            with pytest.raises(InvalidRequestError, match="no stream"):
                await client.publish("heard.service", b"x", via="auto")
            await client.publish("heard.service", b"for the service", ack_level="none", via="auto")
            await client.publish("heard.one", b"last")
            for value in (b"by nats", b"for the service", b"last"):
                assert (await heard.next_msg(timeout=60)).data == value
        await listener.close()

    asyncio.run(main())


def test_a_key_chooses_the_same_stream_by_both_ways(client: Client, name: str) -> None:
    client.create_group(name, name, streams=3)
    for number in range(20):
        found = {
            client.publish(name, b"x", key=b"%d" % number, via=via).stream  # type: ignore[arg-type]
            for via in ("nats", "direct", "auto")
        }
        assert len(found) == 1


def test_messages_of_many_calls_are_stored_in_the_order_of_the_calls(
    server: ServerProcess, name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"first", via="direct")
            results = await asyncio.gather(
                *(client.publish(name, b"%d" % number, via="direct") for number in range(2_000))
            )
            assert [each.offset for each in results] == list(range(1, 2_001))

    asyncio.run(main())


def test_one_connection_is_kept_and_nats_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, seconds in (  # A node that stands still for seconds is waited for.
        (direct_publisher, "_ANSWER_SECONDS"), (direct_publisher, "REACH_SECONDS"),
        (batched_publisher, "REACH_SECONDS"), (ways, "REACH_SECONDS"),
        (in_flight, "ANSWER_SECONDS"), (in_flight, "_ANSWER_SECONDS_MAX"),
    ):  # fmt: skip
        monkeypatch.setattr(module, seconds, 60.0)
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        client.create_stream("kept", "kept")
        for via in STRAIGHT * 50:
            client.publish("kept", b"x", via=via)
        with client.publisher("kept", via="auto") as publisher:
            publisher.send(b"y").result()
        assert (node.data_gate.connections, node.nats_gate.connections) == (1, 0)


@pytest.mark.parametrize("via", STRAIGHT)
def test_a_client_needs_no_nats(own_server: ServerProcess, via: Literal["direct", "auto"]) -> None:
    own_server.start()
    with Client(own_server.grpc, nats=NOWHERE, timeout=60) as client:
        client.create_stream("alone", "alone")
        assert client.publish("alone", b"x", via=via).offset == 0
        own_server.kill()
        own_server.start()
        assert client.publish("alone", b"y", msg_id="y", via=via).offset == 1


def test_auto_goes_by_nats_while_the_leader_cannot_be_reached(tmp_path: Path) -> None:
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        client.create_stream("apart", "apart")
        offsets = [client.publish("apart", b"0", via="auto").offset]
        node.data_gate.shut()
        for number in (b"1", b"2"):
            # Perhaps the client has not noticed yet: without an id the outcome would be unknown.
            ack = client.publish("apart", number, msg_id=number.decode(), via="auto")
            offsets.append(ack.offset)
        node.data_gate.open()
        node.data_gate.fall_silent()
        # Without an id a message that was sent straight waits there for its answer.
        offsets += [client.publish("apart", b"3", msg_id="3", via="auto", timeout=60).offset]
        node.data_gate.open()
        offsets += [client.publish("apart", b"4", via="auto").offset]
        assert offsets == [0, 1, 2, 3, 4]
        assert [each[3] for each in records_of(client, "apart")] == [
            b"0", b"1", b"2", b"3", b"4",
        ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_without_an_answer_is_unknown_once_the_client_is_closed(
    tmp_path: Path, count: int
) -> None:
    """Its caller's own task is not cancelled."""

    @on_loop
    async def scenario() -> None:
        with gated_node(tmp_path) as node:
            client = AsyncClient(node.grpc, timeout=60)
            for number in range(count):
                await client.create_stream(f"s{number}", "both.>")
            await client.publish("both.x", b"1", via="direct")
            node.data_gate.fall_silent()
            publishing = asyncio.create_task(client.publish("both.x", b"2", via="direct"))
            (connection,) = client._data_plane._producing.values()
            await eventually(lambda: connection.pending == count)
            await client.aclose()
            with pytest.raises(UnknownOutcomeError):
                await publishing

    scenario()
