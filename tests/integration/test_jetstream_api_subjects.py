"""Records whose subjects no NATS client can have sent reach no NATS client."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from jetstream_client import Client
from jetstream_protocol.batch import encode
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.services import Stub
from tests.support.jetstream_api import api_server
from tests.support.leaf import DOMAIN, LeafServer, asking
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

FORGED = b"mine.a 1\r\nx\r\nLMSG _INBOX.somebody 6\r\nforged\r\nLMSG _INBOX.nobody"


def test_who_restores_a_stream_of_his_speaks_to_nobody_in_the_server_s_name(tmp_path: Path) -> None:
    """The subject would stand in a line to NATS, and what follows it would be lines of its own."""
    server = ServerProcess(tmp_path / "data").start()
    try:
        with (
            Client(server.grpc, timeout=60) as client,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            client.create_stream("mine", "mine.>", restoring=True)
            restore = Stub("Streams", channel).RestoreBatches
            for subject in (FORGED, b"mine.a"):
                batch = encode([b"value"], subject)
                batch.stamp(0, 0, 1)
                request = pb.RestoreBatchesRequest(
                    stream=common_pb2.StreamRef(name="mine"), batches=batch.to_bytes()
                )
                if subject is FORGED:
                    with pytest.raises(grpc.RpcError, match="a subject has white space"):
                        restore(request, timeout=60)
                else:
                    assert restore(request, timeout=60).next_offset == 1
    finally:
        server.kill()


def restore(channel: grpc.Channel, name: str, records: list[tuple[bytes, bytes]]) -> None:
    """Put records (subject, value) into a stream that is being restored."""
    for offset, (subject, value) in enumerate(records):
        batch = encode([value], subject)
        batch.stamp(offset, 0, 1_000_000 + offset)
        request = pb.RestoreBatchesRequest(
            stream=common_pb2.StreamRef(name=name), batches=batch.to_bytes()
        )
        Stub("Streams", channel).RestoreBatches(request, timeout=60)


def told(url: str, subject: bytes, headers: bytes = b"") -> dict[str, Any]:
    """What is answered to a message on that subject, sent as no library would."""
    host, _, port = url.removeprefix("nats://").partition(":")
    length = b"%d %d" % (len(headers), len(headers) + 1) if headers else b"1"
    verb = b"HPUB" if headers else b"PUB"
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        options = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}'
        peer.sendall(options + b"\r\nSUB _INBOX.told 1\r\n")
        peer.sendall(b"%b %b _INBOX.told %b\r\n%bx\r\n" % (verb, subject, length, headers))
        lines = peer.makefile("rb")
        while not (line := lines.readline()).startswith(b"MSG _INBOX.told"):
            assert line, "NATS has closed the connection"
        return dict(json.loads(lines.read(int(line.split()[-1]))))


@on_loop
async def test_a_subject_with_control_characters_is_refused_and_one_that_is_stored_can_be_read(
    tmp_path: Path,
) -> None:
    """NATS lets some through; nats-py takes two of them for white space, and reads no further."""
    stored = [(b"old.a\x0bb", b"0"), (b"old.\x0c", b"1"), (b"old.a\x7f", b"2"), (b"old.a", b"3")]
    with LeafServer() as hub, api_server(tmp_path / "data", hub) as server:
        with (
            Client(server.grpc, timeout=60) as client,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            client.create_stream("new", "new.>")
            client.create_stream("old", "old.>", restoring=True)
            restore(channel, "old", stored)
            client.alter_stream("old", restoring=False)
        for subject in (b"new.a\x0bb", b"new.\x0c", b"new.\x01", b"new.a\x7fb", b"new.\x1b[1m"):
            for headers in (b"", b"NATS/1.0\r\nName: value\r\n\r\n"):
                refusal = await asyncio.to_thread(told, hub.url, subject, headers)
                assert "control characters" in refusal["error"]["description"], subject
        assert (await asyncio.to_thread(told, hub.url, b"new.a"))["seq"] == 1
        async with asking(hub.url) as nats_client:
            jetstream = nats_client.jetstream(domain=DOMAIN, timeout=60)
            follow = await jetstream.subscribe("old.>", ordered_consumer=True)
            for subject, (_, value) in zip(
                ("old.a?b", "old.?", "old.a?", "old.a"), stored, strict=True
            ):
                message = await follow.next_msg(timeout=60)
                assert (message.subject, message.data) == (subject, value)
            for sequence, (_, value) in enumerate(stored, 1):
                direct = await jetstream.get_msg("old", sequence, direct=True)
                assert direct.data == value
                assert (await jetstream.get_msg("old", sequence)).data == value
