"""A log whose files are gone looks empty. Nobody is told that nothing waits there."""

from __future__ import annotations

import json
import urllib.request

import pytest

from jetstream_client import Client, StorageError
from tests.support.server import ServerProcess


def test_what_waits_in_a_log_that_is_lost_is_unknown(own_server: ServerProcess) -> None:
    def told(path: str) -> str:
        with urllib.request.urlopen(f"{own_server.http}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        stream = client.create_stream("lost", "lost")
        for _ in range(3):
            client.publish("lost", b"x")
        client.commit_cursor("billing", "lost", 1)
        client.create_consumer("lost", "mailers")
        assert client.describe_consumer("lost", "mailers").pending == 3
    assert own_server.stop() == 0
    (segment,) = (own_server.data / "streams" / str(stream.id)).glob("*.log")
    segment.unlink()
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        described = client.describe_stream("lost")
        assert described.state.startswith("offline")
        assert described.high_watermark is None
        cursor = client.describe_cursor("billing", "lost")
        assert (cursor.state, cursor.high_watermark, cursor.lag) == ("current", None, None)
        assert client.describe_consumer("lost", "mailers").pending is None
        assert [each.pending for each in client.list_consumers()] == [None]
        (shown,) = json.loads(told("/api/v1/consumers"))["consumers"]
        assert shown["pending"] == "-1"
        assert json.loads(told("/jsz"))["consumers"] == 0
        assert 'jetstream_consumer_pending{consumer="mailers"' not in told("/metrics?streams=lost")
        with pytest.raises(StorageError):
            client.create_consumer("lost", "another")  # From 0, if it were empty.
        with pytest.raises(StorageError):
            client.purge_stream("lost")
        client.delete_consumer("lost", "mailers")
