"""Batches that come straight to a node: from strangers, from who may not write, from enemies, and
faster than a quota allows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import grpc
import pytest

from jetstream_client import Client, PermissionDeniedError
from jetstream_protocol import frames
from jetstream_protocol.batch import encode
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2, common_pb2
from jetstream_protocol.generated.dataplane_pb2 import ProduceRequest, ProduceResponse
from jetstream_protocol.services import Stub
from tests.support.api import DataPlane
from tests.support.secured import SecuredServer, secured_server
from tests.support.server import ServerProcess

RATE = 200_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    data = tmp_path_factory.mktemp("secured") / "data"
    with secured_server(data, write_bytes_per_second=RATE) as running:
        with running.client() as admin:
            admin.create_stream("orders", "orders.>")
        yield running


def token_of(server: SecuredServer, name: str, *rules: tuple[str, str]) -> str:
    """rules: operation and subject."""
    with server.client() as admin:
        for operation, subject in rules:
            admin.add_acl(f"user:{name}", operation, stream="orders", subject=subject)
        return admin.create_token(f"user:{name}").text


def test_who_may_read_may_not_write(secured: SecuredServer) -> None:
    token = token_of(secured, "reader", ("read", ">"))
    with secured.client(token) as client, client.publisher("orders.eu", via="direct") as publisher:
        delivery = publisher.send(b"x")
        with pytest.raises(PermissionDeniedError, match="may not write to orders@orders"):
            delivery.result()


def test_the_right_to_a_subject_is_the_right_to_that_subject(secured: SecuredServer) -> None:
    token = token_of(secured, "eu", ("write", "orders.eu"), ("describe", ">"))
    with secured.client(token) as client:
        with client.publisher("orders.eu", via="direct") as publisher:
            publisher.send(b"x").result()
        with client.publisher("orders.us", via="direct") as publisher:
            delivery = publisher.send(b"x")
            with pytest.raises(PermissionDeniedError):
                delivery.result()
        with pytest.raises(PermissionDeniedError):
            client.fetch("orders", 0)


def test_who_may_write_elsewhere_learns_no_stream_s_subject(secured: SecuredServer) -> None:
    with secured.client() as admin:
        admin.add_acl("user:guess", "write", stream="*", subject="mine.>")
        token, hidden = admin.create_token("user:guess").text, admin.describe_stream("orders").id
    told = []
    with grpc.insecure_channel(secured.grpc) as channel:
        for ref in ({"name": "orders"}, {"name": "absent"}, {"id": hidden}, {"id": 1}):
            request = api_pb2.ProduceBatchRequest(
                stream=common_pb2.StreamRef(**ref), subject="mine.x", batch=b"x" * 100
            )
            with pytest.raises(grpc.RpcError) as refused:
                Stub("Streams", channel).ProduceBatch(
                    request, timeout=60, metadata=(("authorization", f"Bearer {token}"),)
                )
            name = str(next(iter(ref.values())))
            told.append(str(refused.value.details()).replace(name, "NAME"))
    assert told[0] == told[1] == "there is no stream 'NAME'"
    assert told[2] == told[3]


def test_a_right_that_is_taken_away_ends_at_once(secured: SecuredServer) -> None:
    token = token_of(secured, "leaver", ("write", ">"))
    with secured.client(token) as client, client.publisher("orders.a", via="direct") as publisher:
        publisher.send(b"x").result()
        with secured.client() as admin:
            admin.add_acl("user:leaver", "write", allow=False, stream="orders", subject=">")
        deadline = time.monotonic() + 60
        while (error := publisher.send(b"y").exception()) is None:
            assert time.monotonic() < deadline
        assert isinstance(error, PermissionDeniedError)


def test_a_stranger_sends_no_long_frame(secured: SecuredServer) -> None:
    plane = DataPlane(("127.0.0.1", secured.port_base + 1))
    request = ProduceRequest(stream=common_pb2.StreamRef(name="orders"), subject="orders.eu")
    try:
        head = request.SerializeToString()
        plane.sock.sendall(frames.encode(Kind.PRODUCE, 7, head, frames.PRODUCE_BYTES_MAX))
        with pytest.raises((EOFError, ConnectionError)):
            plane.receive(ProduceResponse)
    finally:
        plane.close()


def test_a_batch_that_another_principal_sends_again_is_stored_nowhere(
    secured: SecuredServer,
) -> None:
    """Readers get the batch with its producer id and number, as it was sent."""
    with secured.client() as admin:
        admin.create_stream("bills", "bills.>")
        admin.create_stream("copies", "copies.>")
        for name, subject in (("bills", "bills.theirs"), ("copies", ">")):
            admin.add_acl("user:thief", "write", stream=name, subject=subject)
        admin.add_acl("user:thief", "read", stream="bills", subject=">")
        admin.add_acl("user:colleague", "write", stream="bills", subject="bills.ours")
        thief = admin.create_token("user:thief").text
        colleague = admin.create_token("user:colleague").text
        with admin.publisher("bills.ours", via="direct", linger=0) as publisher:
            assert publisher.send(b"0").result().offset == 0
            with secured.client(thief) as reader:
                captured = reader.fetch_batches("bills", 0).data
            for subject in ("bills.ours", "bills.theirs", "copies.x"):
                name = subject.partition(".")[0]
                reply = sent_again(secured, thief, captured, name, subject)
                assert reply.HasField("error"), subject
            reply = sent_again(secured, colleague, captured, "bills", "bills.ours")
            assert (reply.base_offset, reply.duplicate, reply.HasField("error")) == (0, True, False)
            assert publisher.send(b"1").result().offset == 1
            for number in range(2, 8):
                publisher.send(b"%d" % number).result()
            reply = sent_again(secured, colleague, captured, "bills", "bills.ours")
            assert reply.error.message.startswith("batch 0 of producer")
        assert [each.value for each in admin.fetch("bills", 0)] == [b"%d" % n for n in range(8)]
        assert admin.offset_at("copies", "latest") == 0


def sent_again(
    server: SecuredServer, token: str, batch: bytes, stream: str, subject: str
) -> ProduceResponse:
    plane = DataPlane(("127.0.0.1", server.port_base + 1), token=token)
    try:
        request = ProduceRequest(stream=common_pb2.StreamRef(name=stream), subject=subject)
        plane.send(Kind.PRODUCE, 7, request, batch)
        _, reply, _ = plane.receive(ProduceResponse)
    finally:
        plane.close()
    assert isinstance(reply, ProduceResponse)
    return reply


def test_who_writes_faster_waits_and_stores_everything(secured: SecuredServer) -> None:
    token = token_of(secured, "fast", ("write", ">"))
    with secured.client(token) as client:
        begun = time.monotonic()
        with client.publisher("orders.eu", via="direct", max_bytes=32_768) as publisher:
            many = publisher.publish_many([random.randbytes(1000)] * (3 * RATE // 1000))
            publisher.flush()
            assert many.result().count == 3 * RATE // 1000
        assert time.monotonic() - begun > 1.0  # Three seconds' bytes, of which one is the burst.


# Without security.


@pytest.fixture
def plane(server: ServerProcess, client: Client) -> Iterator[DataPlane]:
    if "hostile" not in {each.name for each in client.list_streams()}:
        client.create_stream("hostile", "hostile.>")
    plane = DataPlane(("127.0.0.1", server.port_base + 1))
    yield plane
    plane.close()


def produce(plane: DataPlane, tail: bytes, **fields: object) -> ProduceResponse:
    request = ProduceRequest(
        **{"stream": common_pb2.StreamRef(name="hostile"), "subject": "hostile.a", **fields}  # type: ignore[arg-type]
    )
    plane.send(Kind.PRODUCE, 7, request, tail)
    correlation, reply, _ = plane.receive(ProduceResponse)
    assert correlation == 7
    assert isinstance(reply, ProduceResponse)
    return reply


def batch(subject: bytes = b"hostile.a") -> bytes:
    encoded = encode([b"value"], [subject])
    return bytes(encoded.header + encoded.body)


def test_what_is_no_batch_of_the_stream_is_refused_and_the_connection_lives(
    plane: DataPlane, client: Client
) -> None:
    offset = client.offset_at("hostile", "latest")
    good, seed = batch(), random.randrange(1 << 30)
    rng = random.Random(seed)
    refused = [b"", good[:10], good[:-1], good + b"x", batch(b"hostile.b"), bytes(1_000_000)]
    for tail in refused:
        assert produce(plane, tail).HasField("error"), (tail[:20], len(tail))
    for subject in ("", "hostile.>", "other.a", "hostile.a b", "hostile..a", "x" * 5000):
        assert produce(plane, good, subject=subject).HasField("error"), subject
    assert produce(plane, good, expected_offset=-5).HasField("error")
    assert produce(plane, good, expected_offset=offset + 1).HasField("error")
    for name in ("", "nobody", "__cursors", "x" * 3000):
        stream = common_pb2.StreamRef(name=name)
        assert produce(plane, good, stream=stream).HasField("error"), name
    assert client.offset_at("hostile", "latest") == offset
    for _ in range(300):  # One byte of the batch is another one: refused, or a record that reads.
        torn = bytearray(good)
        torn[rng.randrange(len(torn))] ^= 1 << rng.randrange(8)
        produce(plane, bytes(torn))
    reply = produce(plane, good)
    assert not reply.HasField("error"), seed
    assert client.fetch("hostile", reply.base_offset)[0].value == b"value", seed


def test_a_frame_longer_than_may_be_ends_the_connection(plane: DataPlane) -> None:
    length = frames.PRODUCE_FRAME_BYTES_MAX + 1
    plane.sock.sendall(frames.encode(Kind.PRODUCE, 1, b"", length))
    with pytest.raises((EOFError, ConnectionError)):
        plane.receive(ProduceResponse)


def test_a_program_that_reads_no_answer_holds_nobody_else(
    plane: DataPlane, client: Client, server: ServerProcess
) -> None:
    """Its answers fill its socket, and then nothing more of it is read."""
    request = ProduceRequest(
        stream=common_pb2.StreamRef(name="hostile"), subject="hostile.a", ack_leader=True
    )
    tail = batch()
    frame = frames.encode(Kind.PRODUCE, 7, request.SerializeToString(), len(tail)) + tail
    plane.sock.setblocking(False)
    ends, sent = time.monotonic() + 5, 0
    data = frame * 200
    while time.monotonic() < ends:
        try:
            sent += plane.sock.send(data[sent % len(frame) :])
        except BlockingIOError:
            break
    with client.publisher("hostile.b", via="direct") as publisher:
        assert publisher.send(b"x").result(timeout=60).stream == "hostile"


def test_an_earlier_server_is_named_with_advice(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("earlier", "earlier")
    from jetstream_client.transport.data_connection import DataConnection

    greet = DataConnection._greet

    async def as_before(self: DataConnection) -> None:
        await greet(self)
        self.produce_bytes_max = 0

    monkeypatch.setattr(DataConnection, "_greet", as_before)
    with pytest.raises(InvalidRequestError, match="publish with via='nats'"):
        client.publisher("earlier", via="direct")
