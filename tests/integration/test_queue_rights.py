"""Whose a consumer is: who may not use its name neither reads, acknowledges, alters nor ends it,
whichever way the request comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import grpc
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.services import Stub
from tests.support.jetstream_api import secured_api_server
from tests.support.leaf import LeafServer, answer, asking
from tests.support.loops import eventually, on_loop
from tests.support.secured import SecuredServer
from tests.support.stages import hub_stage

NATS, OWNER, READER = "user:app", "user:owner", "user:reader"
"""NATS clients have the rights of the first. OWNER may use every consumer, NATS clients `app…`, and
READER none; all may read."""
STREAM = "jobs"
REF = common_pb2.StreamRef(name=STREAM)
MESSAGES = 5
Ack = pb.AcknowledgeMessagesRequest

hub = hub_stage()
_numbers = count()


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    data = tmp_path_factory.mktemp("rights") / "data"
    with secured_api_server(data, hub, NATS) as running, running.client() as admin:
        admin.create_stream(STREAM, f"{STREAM}.>")
        for number in range(MESSAGES):
            admin.publish(f"{STREAM}.x", b"%d" % number)
        for principal in (NATS, OWNER, READER):
            admin.add_acl(principal, "read", stream=STREAM, subject=f"{STREAM}.>")
        admin.add_acl(OWNER, "commit", stream=STREAM, cursor="*")
        admin.add_acl(NATS, "commit", stream=STREAM, cursor="app*")
        yield running


@pytest.fixture
def consumer(server: SecuredServer) -> str:
    """A durable consumer of OWNER's, with messages."""
    name = f"mailers-{next(_numbers)}"
    with calling(server, OWNER) as calls:
        calls.CreateConsumer(pb.CreateConsumerRequest(stream=REF, name=name, ack_wait_ms=60_000))
    return name


@contextmanager
def calling(server: SecuredServer, principal: str) -> Iterator[Any]:
    """The RPCs as that principal."""
    with server.client() as admin:
        token = admin.create_token(principal).text
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(server.grpc) as channel:
        stub = Stub("Consumers", channel)

        class Calls:
            def __getattr__(self, name: str) -> Any:
                rpc = getattr(stub, name)
                return lambda request: rpc(request, metadata=metadata, timeout=60)

        yield Calls()


def described(server: SecuredServer, name: str) -> pb.ConsumerDescription:
    with calling(server, OWNER) as calls:
        return calls.DescribeConsumer(pb.DescribeConsumerRequest(stream=REF, name=name))


def pull(name: str) -> pb.PullMessagesRequest:
    return pb.PullMessagesRequest(stream=REF, name=name, messages_max=10, wait_ms=300_000)


def take_all(calls: Any, name: str) -> None:
    """Have every message delivered, and acknowledge none."""
    found = 0
    while found < MESSAGES:
        found += len(calls.PullMessages(pull(name)).messages)


def requests_for(name: str) -> dict[str, Any]:
    """By RPC: what only those may ask for who may use the consumer."""
    acks = [Ack.Acknowledgement(offset=0)]
    return {
        "CreateConsumer": pb.CreateConsumerRequest(stream=REF, name=name, max_ack_pending=1),
        "PauseConsumer": pb.PauseConsumerRequest(stream=REF, name=name, until_us=2**60),
        "PullMessages": pull(name),
        "AcknowledgeMessages": Ack(stream=REF, name=name, acknowledgements=acks),
        "DeleteConsumer": pb.DeleteConsumerRequest(stream=REF, name=name),
    }


def refused(calls: Any, rpc: str, request: Any) -> bool:
    try:
        getattr(calls, rpc)(request)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.PERMISSION_DENIED
    return False


@on_loop
@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "of a client"])
async def test_who_may_not_use_a_name_can_do_nothing_to_its_consumer(
    server: SecuredServer, hub: LeafServer, consumer: str, is_durable: bool
) -> None:
    async with asking(hub.url) as client:
        name = consumer
        if not is_durable:
            name = f"ordered-{next(_numbers)}"
            config = {"name": name, "ack_policy": "explicit", "inactive_threshold": 600 * 10**9}
            created = await answer(client, f"CONSUMER.CREATE.{STREAM}.{name}", wanted(config))
            assert "error" not in created, created
        before = described(server, name)
        with calling(server, READER) as calls:
            allowed = {
                rpc: request
                for rpc, request in requests_for(name).items()
                if not refused(calls, rpc, request)
            }
        assert not allowed
        assert described(server, name) == before


def wanted(config: dict[str, object]) -> dict[str, object]:
    return {"stream_name": STREAM, "config": config}


async def pulled(client: NatsClient, name: str, count: int = 1) -> list[tuple[str, Msg]]:
    """What a pull brings: of each message its status, "" if it has none, and itself."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    verb = f"$JS.log.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"
    await client.publish(verb, b'{"batch":10,"expires":20000000000}', reply=inbox)
    found = [await subscription.next_msg(20) for _ in range(count)]
    await subscription.unsubscribe()
    return [((each.headers or {}).get("Status", ""), each) for each in found]


@on_loop
async def test_nats_clients_use_only_the_durable_consumers_whose_names_they_may_use(
    server: SecuredServer, hub: LeafServer, consumer: str
) -> None:
    limits = {"ack_policy": "explicit", "max_ack_pending": 1}
    create = f"CONSUMER.CREATE.{STREAM}.{consumer}"
    changes = [
        (create, wanted(limits | {"name": consumer, "durable_name": consumer})),
        (create, wanted(limits | {"name": consumer})),
        (f"CONSUMER.PAUSE.{STREAM}.{consumer}", {"pause_until": "2100-01-01T00:00:00Z"}),
        (f"CONSUMER.DELETE.{STREAM}.{consumer}", b""),
    ]
    async with asking(hub.url) as client:
        before = described(server, consumer)
        ((status, _),) = await pulled(client, consumer)
        assert status == "403"
        of_it = [each for each in server.log_text.splitlines() if f'"{consumer} in' in each]
        assert [json.loads(each)["outcome"] for each in of_it] == ["refused"]
        for verb, body in changes:
            found = await answer(client, verb, body)
            assert found.get("error", {}).get("code") == 403, (verb, found)
        assert described(server, consumer) == before


@on_loop
async def test_nats_clients_acknowledge_no_messages_of_others(
    server: SecuredServer, hub: LeafServer, consumer: str
) -> None:
    own = f"app-{next(_numbers)}"
    async with asking(hub.url) as client:
        config = {"name": own, "durable_name": own, "ack_policy": "explicit"}
        created = await answer(client, f"CONSUMER.CREATE.{STREAM}.{own}", wanted(config))
        assert "error" not in created, created
        with calling(server, OWNER) as calls:
            take_all(calls, consumer)
        messages = [message for _, message in await pulled(client, own, MESSAGES)]
        mark = f"{described(server, consumer).created_us:x}"
        for message in messages:
            tokens = message.reply.split(".")
            tokens[5], tokens[11] = consumer, mark
            await client.publish(".".join(tokens), b"+ACK")
        for message in messages:
            await message.respond(b"+ACK")
        # They come in order.
        await eventually(lambda: not described(server, own).ack_pending)
        assert described(server, consumer).ack_pending == MESSAGES


@on_loop
async def test_a_request_of_another_kind_does_not_let_a_durable_consumer_be_forgotten(
    server: SecuredServer, hub: LeafServer
) -> None:
    """A consumer that is not durable is forgotten five seconds after its last client."""
    name = f"app-{next(_numbers)}"
    with calling(server, OWNER) as calls:
        calls.CreateConsumer(pb.CreateConsumerRequest(stream=REF, name=name))
    async with asking(hub.url) as client:
        changed = {"name": name, "ack_policy": "explicit", "max_ack_pending": 7}
        found = await answer(client, f"CONSUMER.CREATE.{STREAM}.{name}", wanted(changed))
        assert found["config"]["max_ack_pending"] == 7
        assert found["config"]["durable_name"] == name
        assert not found["config"].get("inactive_threshold")


@on_loop
async def test_what_nats_clients_do_to_durable_consumers_is_in_the_audit_log(
    server: SecuredServer, hub: LeafServer
) -> None:
    name = f"app-{next(_numbers)}"
    config = {"name": name, "durable_name": name, "ack_policy": "explicit"}
    create = f"CONSUMER.CREATE.{STREAM}.{name}"
    async with asking(hub.url) as client:
        for verb, body in (
            (create, wanted(config)),
            (create, wanted(config)),  # It changes nothing.
            (create, wanted(config | {"max_ack_pending": 7})),
            (f"CONSUMER.PAUSE.{STREAM}.{name}", {"pause_until": "2100-01-01T00:00:00Z"}),
            (f"CONSUMER.DELETE.{STREAM}.{name}", b""),
        ):
            found = await answer(client, verb, body)
            assert "error" not in found, found
    of_it = f'"{name} in {STREAM}@'
    lines = [json.loads(each) for each in server.log_text.splitlines() if of_it in each]
    assert [each["operation"] for each in lines] == [
        "CONSUMER.CREATE", "CONSUMER.UPDATE", "CONSUMER.PAUSE", "CONSUMER.DELETE",
    ]  # fmt: skip
    assert {each["principal"] for each in lines} == {NATS}


def test_a_pull_that_waits_ends_when_the_right_to_the_name_is_taken(
    server: SecuredServer, consumer: str
) -> None:
    """The right to read stays."""
    with server.client() as admin, calling(server, READER) as calls:
        rule = admin.add_acl(READER, "commit", stream=STREAM, cursor=consumer)
        take_all(calls, consumer)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(calls.PullMessages, pull(consumer))
            while not described(server, consumer).waiting:
                time.sleep(0.02)
            admin.remove_acl(rule.id)
            error = waiting.exception(60)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


def test_an_acknowledgement_of_a_kind_that_this_version_does_not_know_is_refused(
    server: SecuredServer, consumer: str
) -> None:
    with calling(server, OWNER) as calls:
        take_all(calls, consumer)
        created_us = described(server, consumer).created_us
        for kind in (4, 99, -1):
            acks = [Ack.Acknowledgement(offset=0, kind=kind)]  # type: ignore[arg-type]
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                calls.AcknowledgeMessages(
                    Ack(stream=REF, name=consumer, created_us=created_us, acknowledgements=acks)
                )
        assert described(server, consumer).ack_pending == MESSAGES
