"""Readers of a real server while it compacts: no answer is torn, none is empty for ever."""

from __future__ import annotations

import threading
import time

import pytest

from jetstream_client import Client
from jetstream_protocol.batch import iterate
from tests.support import overtaking
from tests.support.api import Api, DataPlane
from tests.support.server import ServerProcess

pytestmark = pytest.mark.timeout(900)

KEYS = 50
VALUE = bytes(700)


def fill(client: Client, name: str, rounds: int, start: int = 0) -> None:
    with client.publisher(name, linger=0.0, max_bytes=8_192) as publisher:
        for number in range(start, start + rounds):
            for key in range(KEYS):
                publisher.send(b"%d " % number + VALUE, key=b"key-%d" % key)


def whole_table(plane: DataPlane, name: str) -> dict[bytes | None, bytes | None]:
    """One reading of the stream, over the data plane; what it ends with."""
    offset, table = 0, {}
    while True:
        head, data = plane.fetch(name, offset, bytes_max=200_000)
        assert not head.HasField("error"), head
        if not data:
            return table
        for batch in iterate(data):
            assert batch.header.next_offset > offset, "answers go on"
            offset = batch.header.next_offset
            table.update(zip(batch.keys(), batch.values(), strict=True))


def test_readers_see_every_key_while_segments_are_swapped(
    client: Client, server: ServerProcess
) -> None:
    client.create_stream("swapped", "swapped", segment_bytes=65_536, flush="none")
    fill(client, "swapped", 1)
    client.alter_stream("swapped", compact=True)
    stop = threading.Event()
    failures: list[BaseException] = []
    readings = 0

    def read() -> None:
        nonlocal readings
        plane = DataPlane(server.data_address)
        try:
            while not stop.is_set():
                assert len(whole_table(plane, "swapped")) == KEYS
                readings += 1
                stop.wait(0.1)  # A pass needs the processor, too.
        except BaseException as error:  # noqa: BLE001  Handed to the test's own thread.
            failures.append(error)
        finally:
            plane.close()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    passes = set()
    rounds = 1
    deadline = time.monotonic() + overtaking.COMPACTED_SECONDS
    try:
        while len(passes) < 2 and time.monotonic() < deadline and not failures:
            fill(client, "swapped", 5, start=rounds)
            rounds += 5
            found = client.describe_stream("swapped").compaction
            assert found is not None
            if found.ended_at is not None and found.records_removed:
                passes.add(found.ended_at)
            time.sleep(0.5)
    finally:
        stop.set()
        reader.join(60)
    assert failures == []
    assert len(passes) == 2
    assert readings > 1
    plane = DataPlane(server.data_address)
    final = whole_table(plane, "swapped")
    plane.close()
    assert {value for value in final.values() if value} == {b"%d " % (rounds - 1) + VALUE}


def test_a_decoded_fetch_goes_on_where_nothing_is_left(
    client: Client, server: ServerProcess
) -> None:
    client.create_stream("emptied", "emptied", segment_bytes=65_536, compact=True, flush="none")
    fill(client, "emptied", 12)
    deadline = time.monotonic() + overtaking.COMPACTED_SECONDS
    while time.monotonic() < deadline:
        found = client.describe_stream("emptied").compaction
        assert found is not None
        if found.cleaned_to > 200:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("nothing was compacted")
    api = Api(server.grpc)
    offset, seen, answers_without = 0, {}, 0
    while offset < 12 * KEYS:
        answer = api.fetch("emptied", offset, decode=True, bytes_max=1)
        assert answer.next_offset > offset
        answers_without += not answer.messages
        offset = answer.next_offset
        seen.update({message.key: message.value for message in answer.messages})
    api.close()
    assert len(seen) == KEYS
    assert set(seen.values()) == {b"11 " + VALUE}
    assert answers_without > 0


def test_a_reader_that_stops_at_latest_and_is_overtaken_misses_no_key(client: Client) -> None:
    overtaking.create(client, "overtaken")
    overtaking.publish(client, "overtaken", 0, 600)
    scan = client.scan("overtaken")
    with client.consume("overtaken", stop="latest", patience=60) as consumer:
        assert (consumer.stop, scan.stop) == (600, 600)
        overtaking.overtake(client, "overtaken", 600)
        consumed = {message.key: message.value for message in consumer}
        assert consumer.stop is not None
        assert consumer.stop > 600
        assert consumed == overtaking.view_before(consumer.stop)
    rows = scan.to_table().to_pydict()
    scanned = dict(zip(rows["key"], rows["value"], strict=True))
    assert scanned == overtaking.view_before(rows["offset"][-1] + 1)
    # Who says an offset gets no record after it.
    with client.consume("overtaken", stop=600, patience=60) as consumer:
        assert len(list(consumer)) < 40
