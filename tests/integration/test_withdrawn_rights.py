"""What waits and what is open when its caller loses its rights: a real server, over each port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jetstream_client import (
    Client,
    ClientConfig,
    JetstreamError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from jetstream_client.values.access import NewToken
from jetstream_protocol.errors import from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2, groups_pb2
from jetstream_protocol.services import Stub
from tests.support.api import Api, DataPlane, error_of
from tests.support.secured import SecuredServer
from tests.support.stages import secured_stage

WAIT_MS = 100_000
"""Longer than anything here may take: an answer that comes was not waited for."""
SECONDS = 60.0
NAMES = count(1)
Metadata = list[tuple[str, str]]


server = secured_stage()


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        client.create_stream("quiet", "quiet.>")
        client.create_stream("orders", "orders.>")
        client.publish("orders.eu", b"one")
        yield client


@dataclass
class Reader:
    """A principal that may read `quiet` by `rule`."""

    principal: str
    made: NewToken
    rule: int
    metadata: Metadata


@pytest.fixture
def reader(admin: Client) -> Reader:
    return reader_of(admin)


def reader_of(admin: Client, lifetime: float | None = None) -> Reader:
    principal = f"user:w{next(NAMES)}"
    rule = admin.add_acl(principal, ["read", "commit"], stream="quiet", subject="quiet.>")
    made = admin.create_token(principal, lifetime=lifetime)
    return Reader(principal, made, rule.id, [("authorization", f"Bearer {made.text}")])


class Waiting:
    """Every request that can wait, of one reader, on connections of its own."""

    def __init__(self, server: SecuredServer, reader: Reader, stack: ExitStack) -> None:
        self.data = DataPlane(server.data_address, token=reader.made.text)
        stack.callback(self.data.close)
        self.data.sock.settimeout(SECONDS)
        quiet = common_pb2.StreamRef(name="quiet")
        wait = dataplane_pb2.DataFetchRequest(stream=quiet, wait_ms_max=WAIT_MS)
        self.data.send(Kind.FETCH, 1, wait)
        wait.filter_subject = "quiet.eu"
        self.data.send(Kind.FETCH, 2, wait)
        self.data.fetch("quiet")  # Answered after them: they wait.
        self.followed = self._followed(server, reader, stack)
        self.api = Api(server.grpc)
        stack.callback(self.api.close)
        groups = Stub("Groups", self.api.channel)
        member = groups_pb2.ConsumerGroup.Member(id="m", session_timeout_ms=300_000)
        beat = groups_pb2.GroupHeartbeatRequest(
            group=reader.principal.removeprefix("user:"), source="quiet", member=member
        )
        joined = groups.GroupHeartbeat(beat, timeout=SECONDS, metadata=reader.metadata)
        beat.generation, beat.wait_ms = joined.generation, WAIT_MS
        beat.held.extend(joined.assigned)
        fetch = pb.FetchRequest(stream=quiet, wait_ms_max=WAIT_MS)
        of_call = {"timeout": 3 * SECONDS, "metadata": reader.metadata}
        self.fetch = self.api.reads.Fetch.future(fetch, **of_call)
        self.heartbeat = groups.GroupHeartbeat.future(beat, **of_call)
        self.consume = self.api.reads.Consume(pb.ConsumeRequest(stream=quiet), **of_call)
        groups.ListGroups(groups_pb2.ListGroupsRequest(), **of_call)  # Begun after them.

    def _followed(
        self, server: SecuredServer, reader: Reader, stack: ExitStack
    ) -> dict[str, DataPlane]:
        """Two follows, which have had their first answers."""
        found = {}
        for name, subject in (("follow", ""), ("filtered follow", "quiet.eu")):
            found[name] = data = DataPlane(server.data_address, token=reader.made.text)
            stack.callback(data.close)
            data.sock.settimeout(SECONDS)
            asked = dataplane_pb2.FollowRequest(credit=1_000_000)
            wanted = getattr(asked, "from")
            wanted.stream.name, wanted.filter_subject = "quiet", subject
            data.send(Kind.FOLLOW, 1, asked)
            _, answer, _ = data.receive(dataplane_pb2.DataFetchResponse)
            assert not answer.has_ended  # type: ignore[attr-defined]
        return found

    def errors(self) -> dict[str, JetstreamError]:
        """How each of them ends."""
        found = {name: _last_error(data) for name, data in self.followed.items()}
        for _ in range(2):
            correlation, answer, _ = self.data.receive(dataplane_pb2.DataFetchResponse)
            assert isinstance(answer, dataplane_pb2.DataFetchResponse)
            found[("", "data", "filtered")[correlation]] = from_proto(answer.error)
        for name in ("fetch", "heartbeat", "consume"):
            error = getattr(self, name).exception(timeout=SECONDS)
            assert isinstance(error, grpc.RpcError), name
            found[name] = error_of(error)
        return found


def _last_error(followed: DataPlane) -> JetstreamError:
    """Other answers say that nothing is new."""
    while True:
        _, answer, _ = followed.receive(dataplane_pb2.DataFetchResponse)
        assert isinstance(answer, dataplane_pb2.DataFetchResponse)
        if answer.HasField("error"):
            return from_proto(answer.error)


def remove_the_rule(admin: Client, reader: Reader) -> None:
    admin.remove_acl(reader.rule)


def deny(admin: Client, reader: Reader) -> None:
    admin.add_acl(reader.principal, "read", allow=False, stream="qui*")


def revoke(admin: Client, reader: Reader) -> None:
    admin.revoke_token(reader.made.token.id)


@pytest.mark.parametrize(
    ("withdraw", "expected"),
    [
        (remove_the_rule, PermissionDeniedError),
        (deny, PermissionDeniedError),
        (revoke, UnauthenticatedError),
    ],
)
def test_what_waits_ends_at_once_with_the_error_of_the_next_request(
    withdraw: Callable[[Client, Reader], None],
    expected: type[JetstreamError],
    server: SecuredServer,
    admin: Client,
    reader: Reader,
) -> None:
    with ExitStack() as stack:
        waiting, other = (Waiting(server, each, stack) for each in (reader, reader_of(admin)))
        withdraw(admin, reader)
        found = waiting.errors()
        assert {name: type(error) for name, error in found.items()} == dict.fromkeys(
            ("data", "filtered", "follow", "filtered follow", "fetch", "heartbeat", "consume"),
            expected,
        )
        assert not other.fetch.done(), "others wait on"
        with server.client(reader.made.text) as client, pytest.raises(expected):
            client.fetch("quiet")


def test_what_waits_ends_when_its_token_expires(server: SecuredServer, admin: Client) -> None:
    with ExitStack() as stack:
        waiting = Waiting(server, reader_of(admin, lifetime=12.0), stack)
        assert {type(error) for error in waiting.errors().values()} == {UnauthenticatedError}
        assert_is_ended(waiting.data)


@pytest.mark.parametrize("how", ["stream", "group"])
def test_a_token_that_is_renewed_in_its_file_interrupts_nobody(
    server: SecuredServer, admin: Client, tmp_path: Path, how: str
) -> None:
    """What waits gets the error of the old one, and is asked for again with the new one."""
    reader = reader_of(admin, lifetime=8.0)
    file = tmp_path / "token"
    file.write_text(reader.made.text)
    found: list[bytes] = []
    failures: list[JetstreamError] = []

    def read() -> None:
        try:
            config = ClientConfig.of(server.grpc, timeout=SECONDS, token_file=str(file))
            with Client.from_config(config) as client:
                name = reader.principal.removeprefix("user:")
                if how == "group":
                    with client.consume_group("quiet", name, start="latest") as members:
                        found.append(next(iter(members)).value)
                else:
                    with client.consume("quiet", start="latest") as consumer:
                        found.append(next(iter(consumer)).value)
        except JetstreamError as error:
            failures.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    time.sleep(1)
    renewed = tmp_path / "renewed"
    renewed.write_text(admin.create_token(reader.principal, lifetime=600.0).text)
    renewed.rename(file)
    time.sleep(8)  # The first one has expired.
    assert not failures
    deadline = time.monotonic() + SECONDS
    while reading.is_alive() and time.monotonic() < deadline:
        admin.publish("quiet.eu", b"later")  # Again, if the reader had not begun at the last one.
        reading.join(1)
    assert found == [b"later"]
    assert not failures


def assert_is_ended(connection: DataPlane) -> None:
    with pytest.raises(EOFError):
        connection.receive(dataplane_pb2.DataFetchResponse)


class Channel:
    """A gRPC connection that calls with tokens, and waits for nothing of theirs."""

    def __init__(self, server: SecuredServer, stack: ExitStack, *callers: Reader) -> None:
        self.api = Api(server.grpc)
        stack.callback(self.api.close)
        for caller in callers:
            self.call(caller)
        # Needs no token, so that only the end of the connection ends it.
        watch = health_pb2_grpc.HealthStub(self.api.channel).Watch
        self.watch = watch(health_pb2.HealthCheckRequest())
        next(self.watch)
        self.ended = threading.Event()
        self.watch.add_callback(self.ended.set)

    def call(self, caller: Reader) -> None:
        request = pb.DescribeClusterRequest()
        self.api.cluster.DescribeCluster(request, timeout=SECONDS, metadata=caller.metadata)


def test_idle_connections_of_a_revoked_token_are_closed_and_no_others(
    server: SecuredServer, admin: Client, reader: Reader
) -> None:
    other = reader_of(admin)
    with ExitStack() as stack:
        idle, others = (DataPlane(server.data_address, token=t.made.text) for t in (reader, other))
        for each in (idle, others):
            stack.callback(each.close)
            each.sock.settimeout(SECONDS)
        channel = Channel(server, stack, reader)
        of_other, shared = Channel(server, stack, other), Channel(server, stack, reader, other)
        revoke(admin, reader)
        assert channel.ended.wait(SECONDS)
        assert channel.watch.code() is grpc.StatusCode.UNAVAILABLE
        assert_is_ended(idle)
        others.fetch("quiet")
        for still in (of_other, shared):
            still.call(other)
            assert not still.ended.is_set()
        revoke(admin, other)
        assert of_other.ended.wait(SECONDS)
        assert shared.ended.wait(SECONDS), "the last of its callers is gone"
        assert_is_ended(others)
