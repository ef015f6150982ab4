"""Finds out what listens on a port with an unexpected protocol: perhaps another port of a Jetstream
server.

People type addresses by hand, and a server has five ports. Each port answers its own question
at once: NATS and the metadata group greet every client; HTTP, the data plane and gRPC answer the
first bytes of their protocols. The client asks only after a failure.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from jetstream_protocol import frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb

PROBE_SECONDS = 0.5

_HTTP = b"GET /healthz HTTP/1.0\r\n\r\n"
_HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_SETTINGS
_HELLO = frames.encode(
    Kind.HELLO, 1, pb.Hello(version=frames.PROTOCOL_VERSION, client="probe").SerializeToString()
)
_RAFT_GREETING = b"JSRAFT"
_KIND_AT = 4  # of a frame of the data plane, after its length
_FRAME_TYPE_AT = 3  # of a frame of HTTP/2, after its length
_SETTINGS_TYPE = 4


async def what_listens(address: str) -> str:
    """What answers on the port ("NATS", "the HTTP port"), or "" if it is not known."""
    answers = await asyncio.gather(
        *(_answer(address, each) for each in (b"", _HTTP, _HTTP2, _HELLO))
    )
    greeting, http, http2, hello = answers
    if greeting.startswith(b"INFO "):
        return "NATS"
    if greeting.startswith(_RAFT_GREETING):
        return "the port of the metadata group (raft)"
    if hello[_KIND_AT : _KIND_AT + 1] == bytes([Kind.HELLO_REPLY]):
        return "the data plane's port (data)"
    if http.startswith(b"HTTP/1."):
        return "an HTTP port"
    if http2[_FRAME_TYPE_AT : _FRAME_TYPE_AT + 1] == bytes([_SETTINGS_TYPE]):
        return "the gRPC port (grpc)"
    return ""


async def _answer(address: str, question: bytes) -> bytes:
    """The first bytes that come; none: there is no answer."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, TimeoutError, UnicodeError):  # The last: no possible host name.
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(question)
                return await reader.read(64)
            finally:
                writer.transport.abort()
    return b""
