"""Readers: many, slow, cold, lost and gone, on both ports, and none at the expense of another."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from jetstream_protocol import frames
from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import OffsetOutOfRangeError, StreamNotFoundError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_server.net.page_cache import is_resident
from tests.fuzz.oracle import metric
from tests.support.api import Api, DataPlane, call, error_of, raw_nats
from tests.support.server import ServerProcess
from tests.support.stages import server_on_disk_stage

server = server_on_disk_stage()
"""Its logs can be cold."""


def store(server: ServerProcess, api: Api, name: str, values: list[bytes]) -> None:
    """Create a stream on the subject of its name, and store the values, acknowledged."""
    api.create(name, name)
    with raw_nats(server.nats) as nats:
        nats.subscribe(f"_INBOX.{name}")
        for value in values:
            nats.publish(name, value, f"_INBOX.{name}")
        for _ in values:
            assert b'"seq"' in nats.message()[1]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def fetch_frame(name: str, offset: int = 0, **options: int) -> bytes:
    request = dataplane_pb2.DataFetchRequest(
        stream=common_pb2.StreamRef(name=name),
        offset=offset,
        **options,  # type: ignore[arg-type]
    )
    return frames.encode(Kind.FETCH, 1, request.SerializeToString())


def open_files(server: ServerProcess, ending: str) -> int:
    """How many descriptors of the server are of a file whose name ends so."""
    found = 0
    for fd in os.listdir(f"/proc/{server.pid}/fd"):
        try:
            found += os.readlink(f"/proc/{server.pid}/fd/{fd}").endswith(ending)
        except FileNotFoundError:
            continue
    return found


# Many.

READERS = 500
READER_BYTES = 2 * 1024 * 1024


class Publisher(threading.Thread):
    """Publishes batches of 50 with acks until told to stop, and counts what is acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.worst_seconds = 0.0
        self._url = url
        self._stop_asked = threading.Event()

    def run(self) -> None:
        with raw_nats(self._url) as nats:
            nats.subscribe("_INBOX.ingest")
            while not self._stop_asked.is_set():
                begun = time.monotonic()
                for _ in range(50):
                    nats.publish("ingest", b"x" * 100, "_INBOX.ingest")
                for _ in range(50):
                    assert b'"seq"' in nats.message()[1]
                self.acknowledged += 50
                self.worst_seconds = max(self.worst_seconds, time.monotonic() - begun)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(60)
        assert not self.is_alive()


def test_500_slow_readers_each_get_everything_and_ingest_goes_on(
    server: ServerProcess, api: Api
) -> None:
    """Each reads through a buffer of a few kilobytes, a little at a time."""
    store(server, api, "crowd", [os.urandom(64 * 1024) for _ in range(READER_BYTES // 65_536)])
    api.create("ingest", "ingest")
    alone = Publisher(server.nats)
    alone.start()
    time.sleep(2)
    alone.finish()

    plane = DataPlane(server.data_address)
    _, tail = plane.fetch("crowd", bytes_max=64 << 20)
    plane.close()
    wanted = hashlib.sha256(tail).digest()
    publisher = Publisher(server.nats)
    publisher.start()
    begun = time.monotonic()
    digests = _read_slowly(server.data_address, len(tail))
    elapsed = time.monotonic() - begun
    publisher.finish()

    ratio = (publisher.acknowledged / elapsed) / (max(alone.acknowledged, 1) / 2)
    print(
        f"{READERS} readers took {READERS * len(tail) / 2**20 / elapsed:.0f} MiB/s for "
        f"{elapsed:.1f} s; ingest ran at {ratio:.0%} of its rate without them, the slowest 50 "
        f"acks took {publisher.worst_seconds:.2f} s"
    )
    assert digests == [wanted] * READERS
    assert publisher.acknowledged > 0
    assert api.describe("ingest").high_watermark == alone.acknowledged + publisher.acknowledged


def _read_slowly(address: tuple[str, int], length: int) -> list[bytes]:
    """Digest of what each reader got; all are read in turn, some kilobytes at a time."""
    request = fetch_frame("crowd", bytes_max=64 << 20)
    hello = frames.encode(Kind.HELLO, 1, dataplane_pb2.Hello(version=1).SerializeToString())
    readers: dict[socket.socket, tuple[int, hashlib._Hash]] = {}
    selector = selectors.DefaultSelector()
    for _ in range(READERS):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.connect(address)
        sock.sendall(hello)
        _exactly_one_frame(sock)
        sock.sendall(request)
        prefix = frames.decode_prefix(_exactly(sock, frames.PREFIX_BYTES), 1 << 30)
        _exactly(sock, prefix.head_length)
        assert prefix.tail_length == length
        sock.setblocking(False)
        readers[sock] = (length, hashlib.sha256())
        selector.register(sock, selectors.EVENT_READ)
    digests = []
    while readers:
        for key, _ in selector.select(60):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            missing, digest = readers[sock]
            data = sock.recv(8 * 1024)
            assert data, "the server hung up"
            digest.update(data)
            readers[sock] = (missing - len(data), digest)
            if missing == len(data):
                selector.unregister(sock)
                sock.close()
                del readers[sock]
                digests.append(digest.digest())
    return digests


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count, socket.MSG_WAITALL)
    assert len(data) == count
    return data


def _exactly_one_frame(sock: socket.socket) -> None:
    prefix = frames.decode_prefix(_exactly(sock, frames.PREFIX_BYTES), 1 << 30)
    _exactly(sock, prefix.head_length)


# Cold.


def make_cold(path: Path) -> None:
    """Drop a file from the page cache. Skips where the file system keeps it in memory anyway."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_resident(file.fileno(), 0, path.stat().st_size):
            pytest.skip(f"{path} stays in memory: this file system has no cold files")


@pytest.mark.parametrize("port", ["data", "grpc"])
def test_a_cold_log_is_read_whole_and_others_are_answered_meanwhile(
    server: ServerProcess, api: Api, port: str
) -> None:
    name = f"cold-{port}"
    values = [os.urandom(500_000) for _ in range(60)]
    store(server, api, name, values)
    folder = server.data / "streams" / str(api.describe(name).stream.id)
    (segment,) = folder.glob("*.log")
    make_cold(segment)

    stop = threading.Event()
    worst = [0.0]

    def probe() -> None:
        while not stop.wait(0.002):
            begun = time.monotonic()
            urllib.request.urlopen(f"{server.http}/healthz", timeout=60).close()
            worst[0] = max(worst[0], time.monotonic() - begun)

    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    found: list[bytes | None] = []
    plane = DataPlane(server.data_address)
    while len(found) < len(values):
        if port == "data":
            _, data = plane.fetch(name, len(found), bytes_max=16 << 20)
        else:
            data = api.fetch(name, len(found)).batches
        found += [value for batch in iterate(data) for value in batch.values()]
    plane.close()
    stop.set()
    prober.join()
    print(f"{port}: the slowest answer of HTTP took {worst[0] * 1000:.0f} ms meanwhile")
    assert found == values


# Lost: offsets.


def test_an_offset_out_of_range_names_the_valid_range_on_both_ports(
    server: ServerProcess, api: Api
) -> None:
    store(server, api, "range", [b"a", b"b"])
    plane = DataPlane(server.data_address)
    for offset in (3, 2**62):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            api.fetch("range", offset)
        assert (raised.value.log_start_offset, raised.value.high_watermark) == (0, 2)
        request = pb.ConsumeRequest(stream=common_pb2.StreamRef(name="range"), offset=offset)
        with pytest.raises(grpc.RpcError) as consumed:
            next(api.reads.Consume(request, timeout=60))
        assert isinstance(error_of(consumed.value), OffsetOutOfRangeError)
        head, _ = plane.fetch("range", offset)
        assert (head.error.log_start_offset, head.error.high_watermark) == (0, 2)
    plane.close()


def test_offsets_are_found_by_time(server: ServerProcess, api: Api) -> None:
    api.create("time", "time")
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.time")
        for value in (b"a", b"b", b"c"):
            nats.publish("time", value, "_INBOX.time")
            nats.message()
            time.sleep(0.02)
    times = [batch.header.append_timestamp for batch in api.read_all("time")]
    assert len(times) == 3
    assert times == sorted(set(times))
    expected = {
        0: 0, -(2**63): 0, times[0]: 0, times[0] + 1: 1, times[1]: 1, times[1] + 1: 2,
        times[2]: 2, times[2] + 1: 3, 2**63 - 1: 3,
    }  # fmt: skip
    ref = common_pb2.StreamRef(name="time")
    queries = [pb.ListOffsetsRequest.Query(stream=ref, timestamp_us=at) for at in expected]
    results = call(api.reads.ListOffsets, pb.ListOffsetsRequest(queries=queries)).results
    assert [result.offset for result in results] == list(expected.values())


def test_one_call_answers_for_many_streams_each_with_its_own_error(
    server: ServerProcess, api: Api
) -> None:
    store(server, api, "many-a", [b"x"] * 3)
    store(server, api, "many-b", [b"y"] * 5)
    query = pb.ListOffsetsRequest.Query

    def ref(name: str) -> common_pb2.StreamRef:
        return common_pb2.StreamRef(name=name)

    queries = [
        query(stream=ref("many-a"), latest=True),
        query(stream=ref("nobody"), latest=True),
        query(stream=ref("many-b"), earliest=True),
        query(stream=ref("many-b")),
        query(stream=ref("many-b"), latest=True),
    ]
    results = call(api.reads.ListOffsets, pb.ListOffsetsRequest(queries=queries)).results
    assert [result.error.code for result in results] == [
        "", "stream_not_found", "", "invalid_request", "",
    ]  # fmt: skip
    assert [results[index].offset for index in (0, 2, 4)] == [3, 0, 5]
    assert results[0].stream_id == api.describe("many-a").stream.id


# Gone: deleted streams, and readers that leave.


def test_a_stream_deleted_while_read_ends_every_kind_of_read(
    server: ServerProcess, api: Api
) -> None:
    store(server, api, "doomed", [b"a"])
    ref = common_pb2.StreamRef(name="doomed")
    errors: dict[str, Exception] = {}

    def poll() -> None:
        try:
            api.reads.Fetch(pb.FetchRequest(stream=ref, offset=1, wait_ms_max=300_000), timeout=60)
        except grpc.RpcError as error:
            errors["Fetch"] = error_of(error)

    def consume() -> None:
        try:
            for _ in api.reads.Consume(pb.ConsumeRequest(stream=ref), timeout=60):
                pass
        except grpc.RpcError as error:
            errors["Consume"] = error_of(error)

    threads = [threading.Thread(target=each, daemon=True) for each in (poll, consume)]
    plane = DataPlane(server.data_address)
    plane.sock.sendall(fetch_frame("doomed", 1, wait_ms_max=300_000))
    for thread in threads:
        thread.start()
    eventually(lambda: metric(server, "jetstream_waiting_fetches") == 3)
    api.delete("doomed")
    for thread in threads:
        thread.join(60)
    _, head, _ = plane.receive(dataplane_pb2.DataFetchResponse)
    plane.close()
    assert head.error.code == "stream_not_found"
    assert {kind: type(error) for kind, error in errors.items()} == {
        "Fetch": StreamNotFoundError,
        "Consume": StreamNotFoundError,
    }
    assert metric(server, "jetstream_waiting_fetches") == 0


def test_an_answer_under_way_arrives_whole_though_its_stream_is_deleted(
    server: ServerProcess, api: Api
) -> None:
    values = [os.urandom(500_000) for _ in range(20)]
    store(server, api, "torn", values)
    sock = socket.create_connection(server.data_address, timeout=60)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.close()
    plane = DataPlane(server.data_address)
    plane.sock.sendall(fetch_frame("torn", bytes_max=64 << 20))
    plane.sock.recv(1, socket.MSG_PEEK)  # It has begun.
    api.delete("torn")
    _, _, tail = plane.receive(dataplane_pb2.DataFetchResponse)
    plane.close()
    assert [value for batch in iterate(tail) for value in batch.values()] == values


def test_cancelled_calls_free_what_they_held(server: ServerProcess, api: Api) -> None:
    store(server, api, "cancelled", [b"a"])
    ref = common_pb2.StreamRef(name="cancelled")
    poll = pb.FetchRequest(stream=ref, offset=1, wait_ms_max=300_000)
    fetches = [api.reads.Fetch.future(poll) for _ in range(50)]
    consumers = [api.reads.Consume(pb.ConsumeRequest(stream=ref)) for _ in range(50)]
    for consumer in consumers:
        assert next(consumer).batches
    eventually(lambda: metric(server, "jetstream_waiting_fetches") == 100)
    for each in (*fetches, *consumers):
        each.cancel()
    eventually(lambda: metric(server, "jetstream_waiting_fetches") == 0)
    assert api.fetch("cancelled").batches


@pytest.mark.parametrize("polls", [1, 63, 64, 200])
def test_a_reader_that_leaves_is_noticed_whatever_it_has_asked_for(
    server: ServerProcess, api: Api, polls: int
) -> None:
    """With 64 fetches that wait nothing more is read: not even the end."""
    api.create("left", "left")
    before = open_files(server, "") - 1
    planes = [DataPlane(server.data_address) for _ in range(10)]
    for plane in planes:
        plane.sock.sendall(fetch_frame("left", wait_ms_max=300_000) * polls)
    eventually(lambda: metric(server, "jetstream_waiting_fetches") == 10 * min(polls, 64))
    for plane in planes:
        plane.close()
    eventually(lambda: metric(server, "jetstream_waiting_fetches") == 0)
    eventually(lambda: metric(server, "jetstream_data_plane_connections") == 0)
    eventually(lambda: open_files(server, "") <= before + 3)
    api.delete("left")


def test_a_slow_reader_that_leaves_frees_the_segment_it_was_sent(
    server: ServerProcess, api: Api
) -> None:
    store(server, api, "slow", [bytes(500_000) for _ in range(40)])
    ending = f"/{api.describe('slow').stream.id}/{0:020d}.log"
    before = open_files(server, ending)
    plane = DataPlane(server.data_address)
    plane.sock.sendall(fetch_frame("slow", bytes_max=64 << 20))
    eventually(lambda: open_files(server, ending) == before + 1)
    plane.close()
    eventually(lambda: open_files(server, ending) == before)


def test_a_publisher_is_acknowledged_while_a_reader_takes_nothing(
    server: ServerProcess, api: Api
) -> None:
    store(server, api, "stuck", [bytes(500_000) for _ in range(40)])
    plane = DataPlane(server.data_address)
    plane.sock.sendall(fetch_frame("stuck", bytes_max=64 << 20))
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.stuck")
        for sequence in range(41, 60):
            nats.publish("stuck", b"x", "_INBOX.stuck")
            assert json.loads(nats.message()[1])["seq"] == sequence
    plane.close()
