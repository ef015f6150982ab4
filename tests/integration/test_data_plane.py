"""The data plane as a stranger sees it: a real server, a raw socket."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request

import pytest

from jetstream_protocol import frames
from jetstream_protocol.batch import iterate
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from tests.support.api import Api, DataPlane, RawNats, garbage_prefix, raw_nats
from tests.support.server import ServerProcess
from tests.support.sockets import is_readable

LONG_MS = 300_000
"""No test waits for so long."""


def fill(server: ServerProcess, api: Api, name: str, values: list[bytes]) -> None:
    """Create stream `name` on the subject of that name and store `values`, acknowledged."""
    api.create(name, name)
    with raw_nats(server.nats) as nats:
        store(nats, name, values)


def store(nats: RawNats, subject: str, values: list[bytes]) -> None:
    nats.subscribe("_INBOX.fill")
    for value in values:
        nats.publish(subject, value, "_INBOX.fill")
    for _ in values:
        assert b'"seq"' in nats.message()[1]


def values_of(tail: bytes) -> list[bytes | None]:
    return [value for batch in iterate(tail) for value in batch.values()]


def test_a_fetch_returns_the_committed_batches_as_stored(server: ServerProcess, api: Api) -> None:
    wanted = [b"value-%d" % index for index in range(100)]
    fill(server, api, "plain", wanted)
    plane = DataPlane(server.data_address)
    head, tail = plane.fetch("plain")
    plane.close()
    assert values_of(tail) == wanted
    assert head.high_watermark == 100
    assert tail == api.fetch("plain").batches


def test_large_answers_arrive_whole_over_a_slow_reader(server: ServerProcess, api: Api) -> None:
    wanted = [bytes([index % 256]) * 100_000 for index in range(200)]
    fill(server, api, "large", wanted)
    plane = DataPlane(server.data_address)
    plane.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    got: list[bytes | None] = []
    while len(got) < len(wanted):
        _, tail = plane.fetch("large", len(got), bytes_max=8 * 1024 * 1024)
        got += values_of(tail)
    plane.close()
    assert got == wanted


def test_a_long_poll_ends_with_the_commit_and_not_before(server: ServerProcess, api: Api) -> None:
    api.create("poll", "poll")
    plane = DataPlane(server.data_address)
    ref = common_pb2.StreamRef(name="poll")
    plane.send(Kind.FETCH, 7, dataplane_pb2.DataFetchRequest(stream=ref, wait_ms_max=LONG_MS))
    deadline = time.monotonic() + 60
    while not metric(server, "jetstream_waiting_fetches"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not is_readable(plane.sock)
    with raw_nats(server.nats) as nats:
        store(nats, "poll", [b"late"])
    _, _, tail = plane.receive(dataplane_pb2.DataFetchResponse)
    plane.close()
    assert values_of(tail) == [b"late"]


def test_a_long_poll_without_records_ends_empty_after_its_time(
    server: ServerProcess, api: Api
) -> None:
    api.create("silent", "silent")
    plane = DataPlane(server.data_address)
    head, tail = plane.fetch("silent", 0, wait_ms_max=200)
    plane.close()
    assert tail == b""
    assert not head.HasField("error")


def test_answers_come_in_any_order(server: ServerProcess, api: Api) -> None:
    fill(server, api, "order", [b"x"])
    plane = DataPlane(server.data_address)
    ref = common_pb2.StreamRef(name="order")
    waiting = dataplane_pb2.DataFetchRequest(stream=ref, offset=1, wait_ms_max=LONG_MS)
    ready = dataplane_pb2.DataFetchRequest(stream=ref, offset=0)
    plane.send(Kind.FETCH, 1, waiting)
    plane.send(Kind.FETCH, 2, ready)
    assert plane.receive(dataplane_pb2.DataFetchResponse)[0] == 2
    with raw_nats(server.nats) as nats:
        store(nats, "order", [b"y"])
    assert plane.receive(dataplane_pb2.DataFetchResponse)[0] == 1
    plane.close()


def test_an_offset_out_of_range_names_the_valid_range(server: ServerProcess, api: Api) -> None:
    fill(server, api, "range", [b"a", b"b"])
    plane = DataPlane(server.data_address)
    head, _ = plane.fetch("range", 3)
    plane.close()
    assert head.error.code == "offset_out_of_range"
    assert (head.error.log_start_offset, head.error.high_watermark) == (0, 2)


def test_a_reader_from_another_history_is_told_where_the_logs_part(
    server: ServerProcess, api: Api
) -> None:
    fill(server, api, "history", [b"a", b"b"])
    plane = DataPlane(server.data_address)
    same, _ = plane.fetch("history", 1, last_epoch=0)
    newer, _ = plane.fetch("history", 1, last_epoch=5)
    plane.close()
    assert not same.HasField("error")
    assert newer.error.code == "unknown_epoch"


def test_a_stream_deleted_while_read_ends_the_long_poll(server: ServerProcess, api: Api) -> None:
    fill(server, api, "doomed", [b"a"])
    plane = DataPlane(server.data_address)
    timer = threading.Timer(0.2, lambda: api.delete("doomed"))
    timer.start()
    head, _ = plane.fetch("doomed", 1, wait_ms_max=LONG_MS)
    timer.join()
    plane.close()
    assert head.error.code == "stream_not_found"


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("stream_not_found", {"name": "nothing"}),
        ("invalid_request", {"name": ""}),
        ("invalid_request", {"name": "bad", "offset": -1}),
        ("invalid_request", {"name": "bad", "wait_ms_max": 4_000_000}),
    ],
)
def test_a_bad_request_is_answered_and_the_connection_goes_on(
    server: ServerProcess, api: Api, code: str, options: dict[str, object]
) -> None:
    api.create("bad", "bad")
    plane = DataPlane(server.data_address)
    head, _ = plane.fetch(**options)  # type: ignore[arg-type]
    assert head.error.code == code
    head, _ = plane.fetch("bad")
    plane.close()
    assert not head.HasField("error")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64,
        garbage_prefix(0xFFFFFFFF),
        garbage_prefix(2),
        garbage_prefix(8, kind=99),
        garbage_prefix(20, kind=3, head_length=2),
        garbage_prefix(8 + 4, kind=3, head_length=4) + b"\xff\xff\xff\xff",
        frames.encode(Kind.HELLO, 1, dataplane_pb2.Hello(version=1).SerializeToString()),
    ],
)
def test_a_malformed_frame_ends_the_connection(server: ServerProcess, data: bytes) -> None:
    plane = DataPlane(server.data_address)
    plane.sock.sendall(data)
    with pytest.raises((EOFError, ConnectionError)):
        plane.receive(dataplane_pb2.DataFetchResponse)
    plane.close()


def test_another_protocol_version_is_refused_with_a_reason(server: ServerProcess) -> None:
    plane = DataPlane(server.data_address, hello=False)
    plane.send(Kind.HELLO, 1, dataplane_pb2.Hello(version=2))
    _, reply, _ = plane.receive(dataplane_pb2.HelloReply)
    plane.close()
    assert "version 2 is not spoken here" in reply.error.message


def test_a_client_that_leaves_frees_its_long_polls(server: ServerProcess, api: Api) -> None:
    api.create("left", "left")
    planes = [DataPlane(server.data_address) for _ in range(20)]
    request = dataplane_pb2.DataFetchRequest(
        stream=common_pb2.StreamRef(name="left"), wait_ms_max=60_000
    )
    for plane in planes:
        plane.send(Kind.FETCH, 1, request)

    assert metric(server, "jetstream_data_plane_connections") >= 20
    for plane in planes:
        plane.close()
    deadline = time.monotonic() + 60
    while metric(server, "jetstream_data_plane_connections"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metric(server: ServerProcess, name: str) -> int:
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.split()[1]))
    raise AssertionError("no such metric")
