"""A producer on the data plane that costs as little as possible: a blocking socket and one frame,
made once. Only what the measurements need: no TLS, no token, no second try.
"""

from __future__ import annotations

import socket
from typing import Self

from benchmarks.nats_socket import SOCKET_BUFFER_BYTES
from jetstream_protocol import batch, frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

SECONDS = 10.0


class ProduceSocket:
    """Connected to the leader of `stream`, and greeted."""

    def __init__(self, host: str, port: int, stream: str, subject: str, payload: bytes) -> None:
        """payload: of the one record in each batch."""
        self._socket = socket.create_connection((host, port), timeout=SECONDS)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = pb.Hello(version=frames.PROTOCOL_VERSION, client="benchmarks")
        greeting = frames.encode(Kind.HELLO, 0, hello.SerializeToString())
        reply = pb.HelloReply.FromString(self._answer_to(greeting))
        if reply.HasField("error") or not reply.produce_bytes_max:
            raise RuntimeError(f"this server takes no batches here: {reply}")
        request = pb.ProduceRequest(stream=common_pb2.StreamRef(name=stream), subject=subject)
        data = batch.encode([payload], subject.encode()).to_bytes()
        head = request.SerializeToString()
        self._frame = frames.encode(Kind.PRODUCE, 1, head, len(data)) + data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def produce(self) -> bytes:
        """One record, stored. The encoded ProduceResponse."""
        return self._answer_to(self._frame)

    def _answer_to(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        answer = self._received(b"", frames.PREFIX_BYTES)
        prefix = frames.decode_prefix(answer, frames.RESPONSE_BYTES_MAX)
        answer = self._received(answer, frames.PREFIX_BYTES + prefix.head_length)
        return answer[frames.PREFIX_BYTES :]

    def _received(self, data: bytes, length: int) -> bytes:
        while len(data) < length:
            more = self._socket.recv(SOCKET_BUFFER_BYTES)
            if not more:
                raise ConnectionError("the server has closed the connection")
            data += more
        return data


def check(answer: bytes) -> None:
    """Raises RuntimeError unless it says that the record is stored."""
    response = pb.ProduceResponse.FromString(answer)
    if response.HasField("error") or response.record_count != 1:
        raise RuntimeError(f"a record was refused: {response}")
