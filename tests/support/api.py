"""Thin synchronous access to a server's ports for tests that must not depend on the SDK."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from jetstream_protocol import frames
from jetstream_protocol.ack_cluster import MARK_LENGTH
from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.errors import JetstreamError, UnavailableError, from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_protocol.services import Stub


class Api:
    """The gRPC services of one server; errors come as their classes.

    credentials: of a channel over TLS.
    """

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        # Of its own: what another channel has met with at the address before is no matter.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=options)
        self.streams = Stub("Streams", self.channel)
        self.reads = Stub("Reads", self.channel)
        self.cluster = Stub("Cluster", self.channel)

    def close(self) -> None:
        self.channel.close()

    def create(self, name: str, subject: str, **config: object) -> pb.CreateStreamResponse:
        request = pb.CreateStreamRequest(
            name=name,
            subject=subject,
            config=pb.StreamConfig(**config),  # type: ignore[arg-type]
            allow_same_name=True,
        )
        return patient_call(self.streams.CreateStream, request)

    def describe(self, name: str) -> pb.StreamDescription:
        request = pb.DescribeStreamRequest(stream=common_pb2.StreamRef(name=name))
        return call(self.streams.DescribeStream, request).description

    def known(self, name: str) -> pb.Stream:
        """The stream as this server knows it, whoever leads it."""
        ref = common_pb2.StreamRef(name=name)
        request = pb.DescribeStreamRequest(stream=ref, registry_only=True)
        return call(self.streams.DescribeStream, request).description.stream

    def delete(self, name: str) -> None:
        request = pb.DeleteStreamRequest(stream=common_pb2.StreamRef(name=name))
        patient_call(self.streams.DeleteStream, request)

    def fetch(self, name: str, offset: int = 0, **options: int) -> pb.FetchResponse:
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(name=name),
            offset=offset,
            **options,  # type: ignore[arg-type]
        )
        # It may not have tried again yet, if the node was down before.
        return call(self.reads.Fetch, request, wait_for_ready=True)

    def read_all(self, name: str) -> list[Batch]:
        """Every committed batch, from the log start on."""
        description = self.describe(name)
        offset = description.log_start_offset
        batches: list[Batch] = []
        while offset < description.high_watermark:
            found = list(iterate(self.fetch(name, offset).batches))
            batches += found
            offset = found[-1].header.next_offset
        return batches

    def values_upto(self, name: str, end: int) -> list[bytes | None]:
        """The values below offset `end` that this very node serves, perhaps not all yet."""
        values: list[bytes | None] = []
        while len(values) < end:
            found = list(iterate(self.fetch(name, len(values)).batches))
            if not found:
                break
            values += [value for batch in found for value in batch.values()]
        return values

    def values(self, name: str) -> list[bytes | None]:
        return [value for batch in self.read_all(name) for value in batch.values()]


def call(method, request, **options: bool):  # type: ignore[no-untyped-def]
    """Call, raising the JetstreamError the server sent. options: of gRPC."""
    try:
        return method(request, timeout=60, **options)
    except grpc.RpcError as error:
        raise error_of(error) from error


def patient_call(method, request, seconds: float = 60):  # type: ignore[no-untyped-def]
    """Call again while the answer is "unavailable": nothing was done then, as between two leaders.

    seconds: after them, the error is raised.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call(method, request)
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def error_of(error: grpc.RpcError) -> JetstreamError:
    for key, value in error.trailing_metadata() or ():
        if key == "jetstream-error-bin":
            return from_proto(common_pb2.Error.FromString(value))
    raise error


class DataPlane:
    """One blocking data-plane connection. tls: None for a plain one."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        hello: bool = True,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = socket.create_connection(address, timeout=60)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=address[0])
        if hello:
            self.greet(token)

    def greet(self, token: str = "") -> None:
        self.send(Kind.HELLO, 1, dataplane_pb2.Hello(version=1, client="test", token=token))
        _, reply, _ = self.receive(dataplane_pb2.HelloReply)
        assert not reply.HasField("error"), reply

    def close(self) -> None:
        self.sock.close()

    def send(self, kind: Kind, correlation: int, head: Message, tail: bytes = b"") -> None:
        data = frames.encode(kind, correlation, head.SerializeToString(), len(tail))
        self.sock.sendall(data + tail)

    def receive(self, cls: type[Message]) -> tuple[int, Message, bytes]:
        """Correlation, head and tail of the next frame. Raises EOFError at the end."""
        prefix = frames.decode_prefix(self._exactly(frames.PREFIX_BYTES), frames.RESPONSE_BYTES_MAX)
        head = cls.FromString(self._exactly(prefix.head_length))
        return prefix.correlation, head, self._exactly(prefix.tail_length)

    def fetch(self, name: str, offset: int = 0, **options: int) -> tuple[Message, bytes]:
        request = dataplane_pb2.DataFetchRequest(
            stream=common_pb2.StreamRef(name=name),
            offset=offset,
            **options,  # type: ignore[arg-type]
        )
        self.send(Kind.FETCH, 7, request)
        correlation, head, tail = self.receive(dataplane_pb2.DataFetchResponse)
        assert correlation == 7
        return head, tail

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


class RawNats:
    """A NATS client that says exactly what it is told, for bytes no library would send."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").partition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=60)
        self.file = self.sock.makefile("rb")
        assert self.file.readline().startswith(b"INFO")
        self.sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self.ping()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def ping(self) -> None:
        self.sock.sendall(b"PING\r\n")
        assert self.line() == b"PONG\r\n"

    def line(self) -> bytes:
        """The next that is no PING: those are answered. NATS sends one after two seconds."""
        while (line := self.file.readline()) == b"PING\r\n":
            self.sock.sendall(b"PONG\r\n")
        return line

    def subscribe(self, subject: str, sid: int = 1) -> None:
        self.sock.sendall(f"SUB {subject} {sid}\r\n".encode())
        self.ping()

    def publish(
        self, subject: str, value: bytes, reply: str = "", headers: bytes | None = None
    ) -> None:
        if headers is None:
            line = f"PUB {subject} {reply} {len(value)}\r\n"
            self.sock.sendall(line.encode() + value + b"\r\n")
        else:
            line = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(value)}\r\n"
            self.sock.sendall(line.encode() + headers + value + b"\r\n")

    def message(self, timeout: float = 60.0) -> tuple[str, bytes]:
        """Subject and payload of the next message. Raises TimeoutError."""
        self.sock.settimeout(timeout)
        fields = self.line().decode().split()
        assert fields[0] in ("MSG", "HMSG"), fields
        payload = self.file.read(int(fields[-1]) + 2)[:-2]
        return fields[1], payload


@contextmanager
def raw_nats(url: str) -> Iterator[RawNats]:
    client = RawNats(url)
    try:
        yield client
    finally:
        client.close()


def garbage_prefix(length: int, kind: int = 3, head_length: int = 0) -> bytes:
    """The first bytes of a frame that claims what it likes."""
    return struct.pack("<IBBHI", length, kind, 0, head_length, 1)


def answer_of(payload: bytes) -> dict[str, Any]:
    """An ack or nack without the mark of its cluster, which it must have."""
    answer: dict[str, Any] = json.loads(payload)
    assert len(answer.pop("cluster")) == MARK_LENGTH
    return answer
