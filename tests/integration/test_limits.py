"""Every size a stranger can send has a limit: one more is refused, and nothing else happens."""

from __future__ import annotations

import json
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from jetstream_client import Client
from jetstream_protocol import frames
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    TooManyRequestsError,
)
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_server.serving.grpc.error_interceptor import LIMITS
from tests.fuzz import http2
from tests.fuzz.vitals import vitals
from tests.support.api import Api, DataPlane, error_of, raw_nats
from tests.support.server import ServerProcess

NO_ROOM = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""What a call is told while others take every one there is; the second by gRPC itself, when very
many have come in that the server has not looked at yet; the third on a slow machine."""
PATIENCE_SECONDS = 120.0
"""Thousands of calls are begun and refused first."""


@contextmanager
def connection(server: ServerProcess, port: int) -> Iterator[socket.socket]:
    """A plain connection to the server's port number `port`, counted from its first."""
    with socket.create_connection(("127.0.0.1", server.port_base + port), timeout=60) as sock:
        yield sock


def raw_call(server: ServerProcess, method: str, data: bytes, **options: object) -> bytes:
    """A unary call of any bytes. Raises grpc.RpcError."""
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=unlimited) as channel:
        call = channel.unary_unary(f"/jetstream.v1.{method}", bytes, bytes)
        return bytes(call(data, timeout=60, **options))  # type: ignore[arg-type]


def refusal(server: ServerProcess, method: str, data: bytes) -> str:
    """What the server says against a request; "" for an answer."""
    try:
        raw_call(server, method, data)
    except grpc.RpcError as error:
        return error_of(error).message
    return ""


# gRPC.


@pytest.mark.parametrize("method", ["Streams/CreateStream", "Reads/Fetch", "Streams/ListStreams"])
def test_a_request_over_64_kib_is_refused(server: ServerProcess, method: str) -> None:
    # A field that no request has is skipped, so that only the size counts.
    longest = b"\x7a\xfc\xff\x03" + bytes(64 * 1024 - 4)
    assert "bytes" not in refusal(server, method, longest)
    assert "65537 bytes; at most 65536" in refusal(server, method, longest + b"\0")


def test_list_offsets_takes_100_000_queries_and_no_more(server: ServerProcess, api: Api) -> None:
    query = pb.ListOffsetsRequest.Query(stream=common_pb2.StreamRef(id=1), latest=True)
    one = pb.ListOffsetsRequest(queries=[query]).SerializeToString()
    answer = raw_call(server, "Reads/ListOffsets", one * 100_000)
    assert len(pb.ListOffsetsResponse.FromString(answer).results) == 100_000
    with pytest.raises(grpc.RpcError) as raised:
        raw_call(server, "Reads/ListOffsets", one * 100_001)
    assert isinstance(error_of(raised.value), InvalidRequestError)


def test_no_request_is_longer_than_its_method_allows(server: ServerProcess) -> None:
    longest = 4 * 1024 * 1024
    assert f"at most {longest}" in refusal(server, "Reads/ListOffsets", bytes(longest + 1))
    with pytest.raises(grpc.RpcError) as raised:
        raw_call(server, "Reads/ListOffsets", bytes(max(LIMITS.values()) + 1))
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_many_queries_do_not_keep_others_waiting(server: ServerProcess) -> None:
    query = pb.ListOffsetsRequest.Query(stream=common_pb2.StreamRef(id=1), latest=True)
    data = pb.ListOffsetsRequest(queries=[query]).SerializeToString() * 100_000
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/jetstream.v1.Reads/ListOffsets", bytes, bytes)
        running = [call.future(data, timeout=60) for _ in range(3)]
        answers, ended, hang = 0, 0, time.monotonic() + 60
        # Several answers to each of them. If the event loop were held, it would be one.
        while answers < 30 + 3 * ended:
            assert time.monotonic() < hang, f"{answers} answers beside {ended} calls"
            urllib.request.urlopen(f"{server.http}/healthz", timeout=60).close()
            answers += 1
            for place, each in enumerate(running):
                if each.done():
                    ended += 1
                    running[place] = call.future(data, timeout=60)
        for each in running:
            each.cancel()


def test_metadata_over_16_kib_is_refused(server: ServerProcess) -> None:
    raw_call(server, "Streams/ListStreams", b"", metadata=(("x", "v" * 10_000),))
    with pytest.raises(grpc.RpcError) as raised:
        raw_call(server, "Streams/ListStreams", b"", metadata=(("x", "v" * 20_000),))
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "path",
    [
        "/jetstream.v1.Reads/Fetch",
        "/jetstream.v1.Reads/Consume",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_what_is_no_request_is_refused_and_not_logged(server: ServerProcess, path: str) -> None:
    logged = len(server.log_text)
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.stream_stream(path, bytes, bytes)
        with pytest.raises(grpc.RpcError) as raised:
            list(call(iter([b"\xff\xff\xff\xff"]), timeout=60))
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert len(server.log_text) == logged


@pytest.mark.parametrize("name", ["n" * 60_000, "\u202e" * 20_000, "\x00" * 10_000])
def test_a_refusal_does_not_repeat_all_that_was_asked(
    server: ServerProcess, api: Api, name: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        api.create(name, "a")
    assert len(raised.value.message.encode()) <= 700
    plane = DataPlane(server.data_address)
    head, _ = plane.fetch(name)
    plane.close()
    assert head.error.code == "invalid_request"
    assert len(head.error.message.encode()) <= 700


def test_ambiguous_names_list_as_many_candidates_as_fit(server: ServerProcess, api: Api) -> None:
    subjects = [f"ambiguous.{index}." + "x" * 900 for index in range(120)]
    for subject in subjects:
        api.create("twins", subject)
    with pytest.raises(AmbiguousStreamError) as raised:
        api.describe("twins")
    assert raised.value.candidates
    plane = DataPlane(server.data_address)
    head, _ = plane.fetch("twins")
    plane.close()
    assert head.error.code == "ambiguous_stream"
    assert list(head.error.candidates) == list(raised.value.candidates)
    for subject in subjects:
        call = pb.DeleteStreamRequest(stream=common_pb2.StreamRef(name="twins", subject=subject))
        api.streams.DeleteStream(call)


def test_readers_that_do_not_read_cost_bounded_memory_and_keep_nobody_out(
    server: ServerProcess, api: Api
) -> None:
    """30 connections with 20 calls each, of a megabyte, none of which is ever read."""
    api.create("bulk", "bulk")
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.bulk")
        for _ in range(20):
            nats.publish("bulk", bytes(500_000), "_INBOX.bulk")
            nats.message()
    ref = common_pb2.StreamRef(name="bulk")
    request = pb.FetchRequest(stream=ref, bytes_max=2**32 - 1).SerializeToString()
    calls = b"".join(
        http2.call(2 * index + 1, b"/jetstream.v1.Reads/Fetch", request) for index in range(20)
    )
    before = vitals(server.pid).rss_mib
    with ExitStack() as stack:
        for _ in range(30):
            sock = stack.enter_context(connection(server, 0))
            sock.sendall(http2.PREFACE + http2.settings(id_4=0) + calls)
        time.sleep(1.0)
        for _ in range(3):
            assert api.fetch("bulk").batches
        assert vitals(server.pid).rss_mib - before < 256
    assert len(api.fetch("bulk", bytes_max=64 << 20).batches) <= 1024 * 1024


def test_a_decoded_answer_ends_after_10_000_messages_and_the_next_goes_on(
    server: ServerProcess, api: Api
) -> None:
    api.create("decoded", "decoded")
    with raw_nats(server.nats) as nats:
        nats.sock.sendall(b"PUB decoded 1\r\nx\r\n" * 25_000)
        nats.ping()
    deadline = time.monotonic() + 60
    while api.describe("decoded").high_watermark < 25_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    offsets: list[int] = []
    while len(offsets) < 25_000:
        messages = api.fetch("decoded", len(offsets), decode=True).messages
        assert 0 < len(messages) <= 10_000
        offsets += [message.offset for message in messages]
    assert offsets == list(range(25_000))
    request = pb.ConsumeRequest(stream=common_pb2.StreamRef(name="decoded"), decode=True)
    consumed: list[int] = []
    call = api.reads.Consume(request, timeout=60)
    for response in call:
        consumed += [message.offset for message in response.messages]
        if len(consumed) >= 25_000:
            break
    call.cancel()
    assert consumed == list(range(25_000))


def test_a_path_that_is_not_utf8_does_not_end_the_service(server: ServerProcess, api: Api) -> None:
    api.create("path", "path")
    with connection(server, 0) as sock:
        sock.sendall(http2.PREFACE + http2.settings() + http2.call(1, b"/\xff\xfe", b""))
        time.sleep(0.5)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert api.describe("path").stream.name == "path"
            break
        except grpc.RpcError:
            assert time.monotonic() < deadline, "gRPC has ended for good"
            time.sleep(0.1)


# The data plane.


def test_a_frame_may_be_64_kib_long_and_no_longer(server: ServerProcess, api: Api) -> None:
    api.create("frames", "frames")
    request = dataplane_pb2.DataFetchRequest(stream=common_pb2.StreamRef(name="frames"))
    head = request.SerializeToString()
    padding = frames.REQUEST_BYTES_MAX - frames.PREFIX_BYTES - len(head) - 4
    head += b"\x7a" + (padding & 0x7F | 0x80).to_bytes(1, "little")
    head += (padding >> 7 & 0x7F | 0x80).to_bytes(1, "little")
    head += (padding >> 14).to_bytes(1, "little") + bytes(padding)
    plane = DataPlane(server.data_address)
    frame = frames.encode(Kind.FETCH, 1, head)
    assert len(frame) == frames.REQUEST_BYTES_MAX
    plane.sock.sendall(frame)
    _, answer, _ = plane.receive(dataplane_pb2.DataFetchResponse)
    assert not answer.HasField("error")
    longer = frames.encode(Kind.FETCH, 1, head, tail_length=1)
    plane.sock.sendall(longer)
    with pytest.raises((EOFError, ConnectionError)):
        plane.receive(dataplane_pb2.DataFetchResponse)
    plane.close()


def test_more_than_64_requests_wait_for_those_before_them(server: ServerProcess, api: Api) -> None:
    api.create("pending", "pending")
    plane = DataPlane(server.data_address)
    ref = common_pb2.StreamRef(name="pending")
    waiting = dataplane_pb2.DataFetchRequest(stream=ref, wait_ms_max=1_500)
    for _ in range(64):
        plane.send(Kind.FETCH, 1, waiting)
    plane.send(Kind.FETCH, 2, dataplane_pb2.DataFetchRequest(stream=ref))
    first, _, _ = plane.receive(dataplane_pb2.DataFetchResponse)
    assert first == 1
    correlations = [plane.receive(dataplane_pb2.DataFetchResponse)[0] for _ in range(64)]
    assert correlations.count(2) == 1
    plane.close()


# HTTP.


def test_an_http_header_may_be_8_kib_long_and_no_longer(server: ServerProcess) -> None:
    logged = len(server.log_text)
    for length, status in ((8_000, b"200"), (8_300, b"400")):
        with connection(server, 3) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"v" * length + b"\r\n\r\n")
            assert sock.recv(100).split()[1] == status
    assert len(server.log_text) == logged


def test_silent_http_connections_make_room_for_those_that_ask(server: ServerProcess) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connection(server, 3)) for _ in range(400)]
        for _ in range(3):
            with urllib.request.urlopen(f"{server.http}/healthz", timeout=60) as answer:
                assert answer.read() == b"ok\n"
        sockets = vitals(server.pid).sockets
        assert sockets < 300, f"{sockets} sockets are open"
        silent[0].settimeout(60)
        assert silent[0].recv(1) == b"", "the oldest is the one to go"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"Content-Encoding: gzip\r\nContent-Length: 900", b"no gzip" * 100),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\nno length\r\n"),
    ],
)
def test_an_http_body_that_is_not_what_it_claims_is_nobodys_error(
    server: ServerProcess, header: bytes, body: bytes
) -> None:
    logged = len(server.log_text)
    with connection(server, 3) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
        answer = sock.recv(1000)
        assert answer.split()[1] == b"200"
        sock.sendall(body)
        time.sleep(0.2)
    urllib.request.urlopen(f"{server.http}/healthz", timeout=60).close()
    assert server.log_text[logged:] == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed_over_http(server: ServerProcess, method: str) -> None:
    request = urllib.request.Request(f"{server.http}/metrics", data=b"x" * 100, method=method)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=60)
    raised.value.close()
    assert raised.value.code == 405


# Names and configuration.


@pytest.mark.parametrize(
    ("name", "subject"),
    [("n" * 255, "longest.name"), ("longest-subject", "s" * 1024)],
)
def test_the_longest_names_are_taken_and_one_more_character_is_not(
    api: Api, name: str, subject: str
) -> None:
    api.create(name, subject)
    api.delete(name)
    longer = (name + "n", subject) if len(name) == 255 else (name, subject + "s")
    with pytest.raises(InvalidRequestError):
        api.create(*longer)


@pytest.mark.parametrize(
    "config",
    [
        {"replicas": 0},
        {"replicas": -1},
        {"replicas": 2**31 - 1},
        {"replicas": 2},
        {"min_insync_replicas": 0},
        {"min_insync_replicas": -(2**31)},
        {"min_insync_replicas": 2},
        {"flush": 4},
        {"acks": -1},
        {"group": "a b"},
        {"group": "g" * 256},
        {"group": "*"},
    ],
)
def test_a_configuration_out_of_range_is_refused(api: Api, config: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        api.create("wild", "wild", **config)


# NATS.


@pytest.mark.parametrize("filler", [b"\xff", b"\\", b'"', b"x"])
def test_a_refusal_that_quotes_a_header_stays_short_enough_for_nats(
    server: ServerProcess, api: Api, filler: bytes
) -> None:
    """NATS ends the connection of a client that publishes too large a message. The server's
    connection carries all streams."""
    api.create("quoted", "quoted")
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.quoted")
        block = b"NATS/1.0\r\nNats-Expected-Stream: " + filler * 900_000 + b"\r\n\r\n"
        client.publish("quoted", b"", "_INBOX.quoted", headers=block)
        payload = client.message()[1]
        assert json.loads(payload)["error"]["err_code"] == 10060
        assert len(payload) < 1_000
        client.publish("quoted", b"x", "_INBOX.quoted")
        assert json.loads(client.message()[1])["stream"] == "quoted"


def test_what_is_longer_than_nats_takes_never_reaches_us_and_what_is_not_is_stored(
    server: ServerProcess, api: Api
) -> None:
    api.create("payload", "payload")
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.payload")
        client.publish("payload", bytes(1024 * 1024), "_INBOX.payload")
        assert json.loads(client.message()[1])["seq"] == 1
    with raw_nats(server.nats) as client:
        # The announcement is enough, and what follows it would be cut off by a reset.
        client.sock.sendall(b"PUB payload %d\r\n" % (1024 * 1024 + 1))
        assert b"Maximum Payload" in client.line()
    assert api.values("payload") == [bytes(1024 * 1024)]


@pytest.mark.parametrize("kind", ["half sent", "long polls"])
def test_callers_that_take_every_call_there_is_keep_nobody_out(
    server: ServerProcess, api: Api, kind: str
) -> None:
    """40 connections with 200 calls each; a server serves 4,096 at a time."""
    try:
        api.create("taken", "taken")
    except (
        grpc.RpcError,
        TooManyRequestsError,
    ):  # This connection made room for the crowd of the case before.
        api.create("taken", "taken")
    request = pb.FetchRequest(stream=common_pb2.StreamRef(name="taken"), wait_ms_max=300_000)
    message = request.SerializeToString()
    calls = b""
    for index in range(200):
        stream = 2 * index + 1
        if kind == "long polls":
            calls += http2.call(stream, b"/jetstream.v1.Reads/Fetch", message)
        else:
            headers = http2.call_headers(b"/jetstream.v1.Reads/Fetch")
            calls += http2.frame(http2.FrameType.HEADERS, http2.END_HEADERS, stream, headers)
            half = b"\0" + (60_000).to_bytes(4, "big") + bytes(100)
            calls += http2.frame(http2.FrameType.DATA, 0, stream, half)
    with ExitStack() as stack:
        ends = select.poll()
        for _ in range(40):
            sock = stack.enter_context(connection(server, 0))
            sock.sendall(http2.PREFACE + http2.settings())
            sock.recv(1000)  # Its settings: who has not confirmed them in a minute has to go.
            sock.sendall(http2.frame(http2.FrameType.SETTINGS, http2.ACK, 0, b"") + calls)
            ends.register(sock, select.POLLRDHUP)
        assert ends.poll(PATIENCE_SECONDS * 1000), "nobody was hung up on"
        assert "caller_hung_up_on" in server.log_text
        deadline = time.monotonic() + PATIENCE_SECONDS
        served = 0
        while served < 20:
            assert time.monotonic() < deadline, "nobody else is served"
            try:
                api.describe("taken")
                served += 1
            except (grpc.RpcError, TooManyRequestsError) as error:
                # The server itself says it where a call was looked at before one was hung up on.
                if isinstance(error, grpc.RpcError) and error.code() not in NO_ROOM:
                    raise
                time.sleep(0.2)
        with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
            assert client.describe_stream("taken").name == "taken"
