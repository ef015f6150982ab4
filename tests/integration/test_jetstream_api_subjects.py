"""Records whose subjects no NATS client can have sent reach no NATS client."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from jetstream_client import Client
from jetstream_protocol.batch import encode
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.services import Stub
from tests.support.server import ServerProcess

FORGED = b"mine.a 1\r\nx\r\nLMSG _INBOX.somebody 6\r\nforged\r\nLMSG _INBOX.nobody"


def test_who_restores_a_stream_of_his_speaks_to_nobody_in_the_server_s_name(tmp_path: Path) -> None:
    """The subject would stand in a line to NATS, and what follows it would be lines of its own."""
    server = ServerProcess(tmp_path / "data").start()
    try:
        with Client(server.grpc) as client, grpc.insecure_channel(server.grpc) as channel:
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
