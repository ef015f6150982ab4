"""Every way in which a record leaves a server needs the right to read: by gRPC, the data plane,
HTTP and the JetStream API over NATS.

One principal asks on each port: without rights, with those to read another stream and to see this
one, with the right to read it, and with that denied again.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import nats
import pytest

from jetstream_client import (
    Client,
    JetstreamError,
    PermissionDeniedError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2, groups_pb2
from jetstream_protocol.services import Stub
from tests.support.api import DataPlane, call
from tests.support.jetstream_api import secured_api_server
from tests.support.leaf import LeafServer, answer, client_of
from tests.support.secured import SecuredServer

PRINCIPAL = "user:reader"
VALUE = b"secret"
SUBJECT = "table.x"
NAMES = count(1)
TABLE = common_pb2.StreamRef(name="table")


@pytest.fixture(scope="module")
def hub() -> Iterator[LeafServer]:
    with LeafServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(hub: LeafServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    folder = tmp_path_factory.mktemp("rights")
    with secured_api_server(folder / "data", hub, PRINCIPAL) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        client.create_stream("table", "table.>", compact=True, key="subject")
        client.create_stream("other", "other.>")
        client.publish(SUBJECT, VALUE)
        yield client


@dataclass
class Caller:
    server: SecuredServer
    hub: LeafServer
    token: str
    channel: grpc.Channel

    def ask(self, service: str, method: str, request: Any) -> Any:
        metadata = [("authorization", f"Bearer {self.token}")]
        rpc = getattr(Stub(service, self.channel), method)
        return call(lambda asked, timeout: rpc(asked, timeout=timeout, metadata=metadata), request)


@pytest.fixture(scope="module")
def caller(server: SecuredServer, hub: LeafServer, admin: Client) -> Iterator[Caller]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield Caller(server, hub, admin.create_token(PRINCIPAL).text, channel)


# The ways in. Each returns the value that it has read, b"" for a fact about the records alone.


def fetch(caller: Caller) -> bytes:
    found = caller.ask("Reads", "Fetch", pb.FetchRequest(stream=TABLE))
    return first_value(found.batches)


def consume(caller: Caller) -> bytes:
    metadata = [("authorization", f"Bearer {caller.token}")]

    def first(asked: pb.ConsumeRequest, timeout: float) -> pb.FetchResponse:
        answers = Stub("Reads", caller.channel).Consume(asked, timeout=timeout, metadata=metadata)
        try:
            return next(each for each in answers if each.batches)
        finally:
            answers.cancel()

    return first_value(call(first, pb.ConsumeRequest(stream=TABLE)).batches)


def offset_of_last(caller: Caller) -> bytes:
    query = pb.ListOffsetsRequest.Query(stream=TABLE, last_of_subject=SUBJECT)
    found = caller.ask("Reads", "ListOffsets", pb.ListOffsetsRequest(queries=[query])).results[0]
    if found.HasField("error"):
        raise from_proto(found.error)
    assert found.offset == 0
    return b""


def subjects(caller: Caller) -> bytes:
    found = caller.ask("Reads", "ListSubjects", pb.ListSubjectsRequest(stream=TABLE, limit=10))
    assert [each.subject for each in found.subjects] == [SUBJECT]
    return b""


def get_last(caller: Caller) -> bytes:
    with caller.server.client(caller.token) as client:
        found = client.get_last("table")
        assert found is not None
        return bytes(found.value or b"")


def get_last_of_subject(caller: Caller) -> bytes:
    with caller.server.client(caller.token) as client:
        found = client.get_last("table", subject=SUBJECT)
        assert found is not None
        return bytes(found.value or b"")


def data_plane(caller: Caller, subject: str = "") -> bytes:
    data = DataPlane(caller.server.data_address, token=caller.token)
    try:
        request = dataplane_pb2.DataFetchRequest(stream=TABLE, filter_subject=subject)
        data.send(Kind.FETCH, 1, request)
        return answered(data)
    finally:
        data.close()


def data_plane_filtered(caller: Caller) -> bytes:
    return data_plane(caller, SUBJECT)


def follow(caller: Caller) -> bytes:
    data = DataPlane(caller.server.data_address, token=caller.token)
    try:
        request = dataplane_pb2.FollowRequest(credit=1_000_000)
        getattr(request, "from").stream.CopyFrom(TABLE)
        data.send(Kind.FOLLOW, 1, request)
        return answered(data)
    finally:
        data.close()


def answered(data: DataPlane) -> bytes:
    while True:
        _, found, batches = data.receive(dataplane_pb2.DataFetchResponse)
        assert isinstance(found, dataplane_pb2.DataFetchResponse)
        if found.HasField("error"):
            raise from_proto(found.error)
        if batches:
            return first_value(bytes(batches))


def http(caller: Caller, query: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {caller.token}"}
    url = f"{caller.server.http}/v1/streams/table/records{query}"
    request = urllib.request.Request(url, None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return str(json.loads(found.readline())["value"]).encode()
    except urllib.error.HTTPError as error:
        with error:
            kinds = {403: PermissionDeniedError, 404: StreamNotFoundError}
            raise kinds[error.code](error.read().decode()) from error


def http_filtered(caller: Caller) -> bytes:
    return http(caller, f"?filter={SUBJECT}")


def http_followed(caller: Caller) -> bytes:
    return http(caller, "?follow=true")


def api(verb: str, body: dict[str, object]) -> Callable[[Caller], bytes]:
    async def ask(caller: Caller) -> bytes:
        async with client_of(caller.hub.url) as client:
            if verb.startswith("DIRECT"):
                asked = json.dumps(body).encode() if body else b""
                try:
                    found = await client.request(f"$JS.log.API.{verb}", asked, timeout=60)
                except nats.errors.NoRespondersError as error:
                    raise StreamNotFoundError(verb) from error
                if (found.headers or {}).get("Status", "") == "403":
                    raise PermissionDeniedError(verb)
                return bytes(found.data)
            told = await answer(client, verb, body)
        if "error" in told:
            code = told["error"]["code"]
            raise {403: PermissionDeniedError, 404: StreamNotFoundError}[code](str(told))
        return b""

    def run(caller: Caller) -> bytes:
        return asyncio.run(ask(caller))

    run.__name__ = verb
    return run


def first_value(batches: bytes) -> bytes:
    return bytes(next(iter(iterate(batches))).values()[0] or b"")


CONSUMER = {"stream_name": "table", "config": {"ack_policy": "none", "filter_subject": SUBJECT}}
WAYS = [
    fetch,
    consume,
    offset_of_last,
    subjects,
    get_last,
    get_last_of_subject,
    data_plane,
    data_plane_filtered,
    follow,
    http,
    http_filtered,
    http_followed,
    api("STREAM.MSG.GET.table", {"last_by_subj": SUBJECT}),
    api("STREAM.MSG.GET.table", {"seq": 1}),
    api("DIRECT.GET.table", {"last_by_subj": SUBJECT}),
    api("DIRECT.GET.table", {"multi_last": [SUBJECT]}),
    api(f"DIRECT.GET.table.{SUBJECT}", {}),
    api("CONSUMER.CREATE.table", CONSUMER),
    api("STREAM.INFO.table", {"subjects_filter": ">"}),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_record_is_read_by_who_may_read_its_stream(
    way: Callable[[Caller], bytes], caller: Caller, admin: Client
) -> None:
    rules = []
    try:
        with pytest.raises((PermissionDeniedError, StreamNotFoundError)):
            way(caller)
        rules.append(admin.add_acl(PRINCIPAL, "read", stream="other", subject="other.>"))
        with pytest.raises((PermissionDeniedError, StreamNotFoundError)):
            way(caller)
        rules.append(admin.add_acl(PRINCIPAL, "describe", stream="table", subject="table.>"))
        with pytest.raises(PermissionDeniedError):
            way(caller)
        rules.append(admin.add_acl(PRINCIPAL, "read", stream="table", subject="table.>"))
        assert way(caller) in (VALUE, b"")
        denial = admin.add_acl(PRINCIPAL, "read", stream="table", allow=False)
        rules.append(denial)
        with pytest.raises(PermissionDeniedError):
            way(caller)
        admin.remove_acl(rules.pop().id)
        assert way(caller) in (VALUE, b"")
    finally:
        for rule in rules:
            admin.remove_acl(rule.id)


def test_who_may_purge_learns_no_subject(caller: Caller, admin: Client) -> None:
    purge = api("STREAM.PURGE.table", {"filter": SUBJECT})
    rule = admin.add_acl(PRINCIPAL, "purge", stream="table", subject="table.>")
    try:
        with pytest.raises(PermissionDeniedError, match="lacks the right `read`"):
            purge(caller)
    finally:
        admin.remove_acl(rule.id)


def test_a_member_of_a_group_reads_and_joins_with_both_rights_only(
    caller: Caller, admin: Client
) -> None:
    group = f"workers-{next(NAMES)}"

    def read() -> bytes:
        member = groups_pb2.ConsumerGroup.Member(id="m", session_timeout_ms=300_000)
        beat = groups_pb2.GroupHeartbeatRequest(group=group, source="table", member=member)
        caller.ask("Groups", "GroupHeartbeat", beat)
        return fetch(caller)

    rules = []
    where: dict[str, str] = {"stream": "table", "subject": "table.>"}
    try:
        for operations in ("describe", "commit", "read"):
            with pytest.raises(JetstreamError) as refused:
                read()
            assert isinstance(refused.value, PermissionDeniedError | StreamNotFoundError)
            rules.append(admin.add_acl(PRINCIPAL, operations, **where))  # type: ignore[arg-type]
        assert read() == VALUE
        for operation in ("commit", "read"):
            denial = admin.add_acl(PRINCIPAL, operation, stream="table", allow=False)
            with pytest.raises(PermissionDeniedError):
                read()
            admin.remove_acl(denial.id)
        assert read() == VALUE
    finally:
        for rule in rules:
            admin.remove_acl(rule.id)


def test_a_lost_table_is_adopted_by_who_may_change_the_cluster(
    caller: Caller, admin: Client
) -> None:
    """What the right lets through is refused later, for want of a lake."""
    request = pb.AdoptLakeRequest(stream=TABLE, table_url="file:///nowhere/table")
    everything = admin.add_acl(PRINCIPAL, "all", stream="*", subject=">")
    try:
        with pytest.raises(PermissionDeniedError, match="cluster_alter"):
            caller.ask("Streams", "AdoptLake", request)
        rule = admin.add_acl(PRINCIPAL, "cluster_alter")
        with pytest.raises(PreconditionFailedError, match="no lake"):
            caller.ask("Streams", "AdoptLake", request)
        admin.remove_acl(rule.id)
        with pytest.raises(PermissionDeniedError, match="cluster_alter"):
            caller.ask("Streams", "AdoptLake", request)
    finally:
        admin.remove_acl(everything.id)
