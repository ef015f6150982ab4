"""Imports and mirrors: from a real NATS JetStream, from files, and from Kafka, where one is."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import nats as nats_py
import pytest

from jetstream_client import Client, NatsOptions
from jetstream_client.cli.commands.importing import _check_complete
from jetstream_client.cli.progress import progress_bar
from jetstream_client.migration import importing, nats_stream
from jetstream_client.migration.kafka import header_block
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    PreconditionFailedError,
)
from tests.support import command
from tests.support.fork_server import fork_server
from tests.support.kafka import running_kafka
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess

FETCHED = Path(__file__).parents[2] / "build" / "kafka"
"""Where scripts/kafka puts a Kafka."""
RAW = b"NATS/1.0\r\nx-lower: a\r\nX-Twice: 1\r\nX-Twice:  2\r\nJetstream-Key: k\r\n\r\n"


@pytest.fixture(scope="module")
def peer() -> Iterator[NatsServer]:
    with NatsServer() as server:
        server.reconfigure(f"jetstream {{ store_dir: {server.folder}/store }}")
        server.stop()
        server.start()
        yield server


def jetstream(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    done = command.jetstream("--server", server.grpc, *arguments)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


async def _filled(url: str, name: str) -> list[tuple[int, str, bytes, int]]:
    """A stream with a purged beginning and a hole; what it holds."""
    client = await nats_py.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"], max_age=3600)
        for number in range(50):
            await js.publish(f"{name}.a.{number % 3}", b"%d" % number)
        raw = b"HPUB %s.raw %d %d\r\n" % (name.encode(), len(RAW), len(RAW) + 4)
        client._transport.write(raw + RAW + b"body\r\n")  # Headers that no client would write.
        await client.flush()
        await js.purge_stream(name, seq=4)
        await js.delete_msg(name, 20)
        found = []
        for sequence in [*range(4, 20), *range(21, 52)]:
            message = await js.get_msg(name, sequence)
            found.append((sequence, message.subject, message.data, 0))
        return found
    finally:
        await client.close()


async def _publish(url: str, subject: str, values: list[bytes]) -> None:
    client = await nats_py.connect(url)
    try:
        for value in values:
            await client.jetstream().publish(subject, value)
    finally:
        await client.close()


def read(client: Client, name: str) -> list[Any]:
    return list(client.consume(name, stop="latest", patience=60))


def test_a_stream_of_jetstream_is_imported_with_its_sequences_times_and_headers(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    wanted = asyncio.run(_filled(peer.url, "ORDERS"))
    arguments = ("import", "orders", "--from-jetstream", "ORDERS", "--nats", peer.url)
    said = json.loads(jetstream(server, *arguments, "--json"))
    assert said["records"] == len(wanted) == 47
    found = read(client, "orders")
    assert [(each.offset + 1, each.subject, each.value) for each in found] == [
        each[:3] for each in wanted
    ]
    assert (found[-1].header_block, found[-1].key) == (RAW, b"k")
    stream = client.describe_stream("orders")
    assert (stream.log_start_offset, stream.subject, stream.max_age) == (3, "ORDERS.>", 3600)
    assert abs(found[0].timestamp.timestamp() - stream.created_at.timestamp()) < 60
    assert found[0].timestamp < found[-1].timestamp < stream.created_at
    # It listens now, on its own cluster's NATS. Nothing is missing: it never did before.
    assert stream.suspected_gaps == 0
    assert client.publish("ORDERS.a.0", b"next").offset == 51
    # Repeated, it compares: nothing is to be done while the source is as it was.
    assert json.loads(jetstream(server, *arguments, "--json")) == said
    assert len(read(client, "orders")) == 48
    asyncio.run(_publish(peer.url, "ORDERS.a.0", [b"too late"]))
    assert "was restored or imported before, that is complete" in jetstream(
        server, *arguments, code=1
    )
    missing = ("import", "none", "--from-jetstream", "NONE", "--nats", peer.url)
    assert "no stream 'NONE'" in jetstream(server, *missing, code=3)


async def _filled_with_many(url: str, name: str, count: int) -> None:
    """A stream of so many messages, the last of which is deleted."""
    client = await nats_py.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        for number in range(count - 1):
            await client.publish(f"{name}.a", b"%d" % number)
        await js.publish(f"{name}.a", b"deleted")
        await js.delete_msg(name, count)
    finally:
        await client.close()


def test_all_of_a_stream_is_imported_that_takes_several_requests(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    count = 2 * nats_stream.BATCH + 500
    asyncio.run(_filled_with_many(peer.url, "MANY", count))
    arguments = ("import", "many", "--from-jetstream", "MANY", "--nats", peer.url)
    assert json.loads(jetstream(server, *arguments, "--json"))["records"] == count - 1
    assert [int(each.value) for each in read(client, "many")] == list(range(count - 1))
    assert client.publish("MANY.a", b"next").offset == count


async def _add(url: str, subject: str, **settings: Any) -> None:
    """A stream, which holds two messages for a moment, or for longer."""
    client = await nats_py.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=subject, subjects=[subject], **settings)
        for value in (b"0", b"1"):
            await js.publish(subject, value)
        if not settings:
            await js.purge_stream(subject)
    finally:
        await client.close()


def test_a_purged_stream_goes_on_with_its_next_sequence(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    asyncio.run(_add(peer.url, "PURGED"))
    assert "0 records" in jetstream(
        server, "import", "purged", "--from-jetstream", "PURGED", "--nats", peer.url
    )
    assert client.describe_stream("purged").last_append is None, "nothing was ever appended"
    assert client.publish("PURGED", b"next").offset == 2


def test_a_work_queue_is_refused_before_anything_is_made(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    asyncio.run(_add(peer.url, "WORK", retention="workqueue"))
    for command_ in ("import", "mirror"):
        arguments = (command_, "work", "--from-jetstream", "WORK", "--nats", peer.url)
        assert "is a work queue" in jetstream(server, *arguments, code=2)
    assert "work" not in [each.name for each in client.list_streams()]


def test_messages_are_read_on_after_jetstream_was_started_again(peer: NatsServer) -> None:
    asyncio.run(_filled_with_many(peer.url, "AGAIN", nats_stream.BATCH + 10))
    with nats_stream.NatsStream([peer.url], NatsOptions(), "AGAIN") as source:
        reading = source.records(0, None, wait=0.2)
        found = list(next(reading).offsets)
        peer.stop()
        peer.start()
        for records in reading:
            found += records.offsets
            if len(found) > nats_stream.BATCH:
                break
        asyncio.run(_publish(peer.url, "AGAIN.a", [b"more"]))
        found += next(each for each in reading if len(each)).offsets
    assert found == [*range(nats_stream.BATCH + 9), nats_stream.BATCH + 10]


def test_a_message_that_no_stream_can_hold_ends_an_import(
    server: ServerProcess, client: Client
) -> None:
    with NatsServer() as peer:
        peer.reconfigure(
            f"max_payload: 16MB\nmax_pending: 64MB\njetstream {{ store_dir: {peer.folder}/store }}"
        )
        peer.stop()
        peer.start()
        asyncio.run(_filled_with_many(peer.url, "LARGE", 10))
        asyncio.run(_publish(peer.url, "LARGE.a", [bytes(nats_stream.BATCH_BYTES)]))
        arguments = ("import", "large", "--from-jetstream", "LARGE", "--nats", peer.url)
        assert "message after sequence 9 has more than" in jetstream(server, *arguments, code=2)


def test_a_mirror_waits_while_jetstream_is_away(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    asyncio.run(_filled(peer.url, "AWAY"))
    arguments = ["mirror", "away", "--from-jetstream", "AWAY", "--nats", peer.url, "--json"]
    following = fork_server.start(
        [sys.executable, "-m", "jetstream_client", "--server", server.grpc, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert following.stdout is not None
    assert following.stderr is not None
    try:
        assert json.loads(following.stdout.readline())["next_offset"] == 51
        peer.stop()
        assert following.stderr.readline().startswith("note: the mirror waits: ")
        peer.start()
        asyncio.run(_publish(peer.url, "AWAY.more", [b"again"]))
        assert json.loads(following.stdout.readline())["next_offset"] == 52
    finally:
        if following.poll() is None:
            following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
        following.stdout.close()
        following.stderr.close()
    assert [each.value for each in read(client, "away")][-1] == b"again"


def test_a_mirror_follows_until_it_is_cut_over(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    asyncio.run(_filled(peer.url, "LIVE"))
    arguments = ["mirror", "live", "--from-jetstream", "LIVE", "--nats", peer.url]
    following = fork_server.start(
        [sys.executable, "-m", "jetstream_client", "--server", server.grpc, *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=2,
    )
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["next_offset"] == 51
        begun, lines = time.monotonic(), 1
        for number in range(40):
            asyncio.run(_publish(peer.url, "LIVE.more", [b"%d" % number]))
            time.sleep(0.02)  # So that each is copied alone.
        asyncio.run(_publish(peer.url, "LIVE.more", [b"one", b"two"]))
        while json.loads(following.stdout.readline())["next_offset"] < 93:
            lines += 1
        assert lines <= 2 + time.monotonic() - begun, "at most one each second"
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
        following.stdout.close()
    assert client.describe_stream("live").restoring
    asyncio.run(_publish(peer.url, "LIVE.more", [b"three"]))
    said = json.loads(jetstream(server, *arguments, "--cut-over", "--json"))
    assert said["records"] == 90
    assert [each.value for each in read(client, "live")][-3:] == [b"one", b"two", b"three"]
    assert client.publish("LIVE.more", b"four").offset == 94
    # Who does not know how the cut-over ended runs it again.
    assert json.loads(jetstream(server, *arguments, "--cut-over", "--json")) == said


@pytest.fixture
def waiting(server: ServerProcess, peer: NatsServer) -> Iterator[subprocess.Popen[str]]:
    """A cut-over of stream WAIT of JetStream to `wait`, that waits for publishers to stop."""
    asyncio.run(_filled(peer.url, "WAIT"))
    program = [sys.executable, "-m", "jetstream_client", "--server", server.grpc, "mirror", "wait"]
    cutting_over = subprocess.Popen(
        [*program, "--from-jetstream", "WAIT", "--nats", peer.url, "--cut-over", "--wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with cutting_over:
        try:
            assert cutting_over.stderr is not None
            assert "wait holds what WAIT has up to sequence 51" in cutting_over.stderr.readline()
            yield cutting_over
        finally:
            cutting_over.kill()
            asyncio.run(_deleted(peer.url, "WAIT"))


def test_a_cut_over_copies_what_came_while_it_compared(
    client: Client, peer: NatsServer, waiting: subprocess.Popen[str]
) -> None:
    asyncio.run(_publish(peer.url, "WAIT.more", [b"one", b"two"]))
    assert client.describe_stream("wait").restoring
    said, complaints = waiting.communicate("\n", timeout=60)
    assert (waiting.returncode, complaints) == (0, "")
    assert said.startswith("cut over to wait: 49 records")
    assert [each.value for each in read(client, "wait")][-2:] == [b"one", b"two"]
    assert client.publish("WAIT.more", b"three").offset == 53
    client.delete_stream("wait")


def test_a_stream_that_began_anew_while_publishers_stopped_is_not_cut_over(
    client: Client, peer: NatsServer, waiting: subprocess.Popen[str]
) -> None:
    asyncio.run(_deleted(peer.url, "WAIT"))
    asyncio.run(_filled(peer.url, "WAIT"))
    complaints = waiting.communicate("\n", timeout=60)[1]
    assert waiting.returncode == 1
    assert "began anew" in complaints
    assert client.describe_stream("wait").restoring
    client.delete_stream("wait")


async def _deleted(url: str, name: str) -> None:
    client = await nats_py.connect(url)
    try:
        await client.jetstream().delete_stream(name)
    finally:
        await client.close()


def test_what_was_compared_is_not_read_again(client: Client, name: str) -> None:
    copying = importing.Import(client, name, name, {}, may_shrink=True)
    first, second = [_numbers(0, 1, 3)], [_numbers(4, 6)]
    read_back: list[int] = []
    copying.add(first, lambda _: None)
    assert copying.verify(4, read_back.append).count == 3
    assert sum(read_back) == 4
    copying.add(second, lambda _: None)
    done = copying.verify(7, read_back.append)
    assert sum(read_back) == 7
    whole = RecordDigest()
    for records in first + second:
        whole.add(records)
    assert (done.count, done.digest) == (5, whole.hexdigest())


def test_copying_and_comparing_are_two_steps_and_both_go_to_their_ends(
    client: Client, name: str
) -> None:
    steps: list[tuple[str, int | None, list[int]]] = []

    @contextmanager
    def bar(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
        steps.append((what, total, []))
        yield steps[-1][2].append

    importing.run(
        client, name, name, {}, [_numbers(5, 6), _numbers(8, 9)], (5, 10), bar, may_shrink=False
    )
    assert [(what, total, sum(told)) for what, total, told in steps] == [
        ("copying", 5, 5),
        ("comparing", 5, 5),
    ]


async def _bucket(url: str, keys: int, value: bytes) -> None:
    """Gives a bucket's keys a value; of each, JetStream keeps the last one."""
    client = await nats_py.connect(url)
    try:
        bucket = await client.jetstream().create_key_value(bucket="prices")
        for key in range(keys):
            await bucket.put(f"k{key}", value)
    finally:
        await client.close()


def test_what_jetstream_removes_between_two_runs_is_no_obstacle(
    server: ServerProcess, client: Client, peer: NatsServer
) -> None:
    asyncio.run(_bucket(peer.url, 5, b"1"))
    with nats_stream.NatsStream([peer.url], NatsOptions(), "KV_prices") as source:
        before = importing.Import(client, "bucket", "$KV.prices.>", {}, may_shrink=True)
        before.add(source.records(0, 5), lambda _: None)
    asyncio.run(_bucket(peer.url, 3, b"2"))
    arguments = ("mirror", "bucket", "--from-jetstream", "KV_prices", "--nats", peer.url)
    done = command.jetstream("--server", server.grpc, *arguments, "--cut-over", "--json")
    assert (done.returncode, json.loads(done.stdout)["records"]) == (0, 8)
    assert "also holds 3 records" in done.stderr
    assert [each.value for each in read(client, "bucket")] == [b"1"] * 5 + [b"2"] * 3
    assert not client.describe_stream("bucket").restoring


def _numbers(*offsets: int, value: bytes = b"v") -> Records:
    count = len(offsets)
    return Records(
        offsets, [1] * count, [b"s"] * count, [None] * count, [value] * count, [b""] * count
    )


@pytest.mark.parametrize(
    ("may_shrink", "now"),
    [
        pytest.param(False, _numbers(0, 2, 3, 4), id="a source that does not shrink"),
        pytest.param(True, _numbers(0, 1, 2, 3, value=b"w"), id="other records"),
        pytest.param(True, _numbers(0, 1), id="a source that begins anew"),
    ],
)
def test_a_stream_that_holds_something_else_than_its_source_never_listens(
    client: Client, name: str, may_shrink: bool, now: Records
) -> None:
    before = importing.Import(client, name, name, {}, may_shrink=may_shrink)
    before.add([_numbers(0, 1, 2)], lambda _: None)
    with pytest.raises(CorruptBatchError):
        importing.run(
            client, name, name, {}, [now], (0, now.offsets[-1] + 1), progress_bar,
            may_shrink=may_shrink,
        )  # fmt: skip
    assert client.describe_stream(name).restoring


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_export_is_imported_as_it_was(
    server: ServerProcess, client: Client, tmp_path: Path, suffix: str
) -> None:
    name = f"from-{suffix}"
    client.create_stream(name, f"{suffix}.>")
    with client.publisher(f"{suffix}.a") as publisher:
        publisher.publish_many([b"v", b"\xff\x00", b""], keys=[b"k", b"\xfe", None])
    client.publish(f"{suffix}.b", None, key="k", headers={"X": ["1", "2"]})
    file = tmp_path / f"file.{suffix}"
    jetstream(server, "export", name, "--format", suffix, "--output", str(file))
    copy = ("import", f"{name}-copy", "--from", str(file), "--subject", f"copy.{suffix}")
    assert "4 records" in jetstream(server, *copy)
    for before, after in zip(read(client, name), read(client, f"{name}-copy"), strict=True):
        for field in ("offset", "timestamp_us", "subject", "key", "value", "header_block"):
            assert getattr(after, field) == getattr(before, field), field


def test_a_file_of_another_system_needs_only_values(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "other.jsonl"
    lines = ['{"value": {"x": 1.10}, "id": 7}', '{"value": "text", "key": "k"}', '{"value": null}']
    file.write_text("\ufeff" + "\n".join(lines) + "\n")
    arguments = ("import", "other", "--from", str(file), "--subject")
    said = jetstream(server, *arguments, "other.>", code=2)
    assert 'line 1: it has no "subject"' in said
    assert "other" not in [each.name for each in client.list_streams()], "nothing was made"
    assert "3 records" in jetstream(server, *arguments, "other")
    created = client.describe_stream("other").created_at
    found = read(client, "other")
    assert [(each.offset, each.subject, each.key, each.value) for each in found] == [
        (0, "other", None, b'{"x": 1.10}'),
        (1, "other", b"k", b"text"),
        (2, "other", None, None),
    ]
    assert {each.timestamp for each in found} == {created}
    assert client.publish("other", b"next").offset == 3
    # As after an interruption after the last step.
    assert "3 records" in jetstream(server, *arguments, "other")
    assert len(read(client, "other")) == 4
    file.write_text(lines[0] + "\n")
    assert ": 1 record," in jetstream(server, *arguments, "other"), "its begin is the file's"
    for text in (lines[1], "", lines[0] + "\n" * 2 + '{"value": "another"}'):
        file.write_text(text)
        assert "exists already" in jetstream(server, *arguments, "other", code=1)


def test_an_import_of_records_without_offsets_and_times_goes_on_where_it_was_interrupted(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "long.jsonl"
    lines = [
        json.dumps({"value": {"number": number, "text": "x" * 300}}) for number in range(10_500)
    ]
    file.write_text("\n".join([*lines[:-1], "[]"]))
    arguments = ("import", "long", "--from", str(file), "--subject", "long")
    assert "line 10500: it is no JSON object" in jetstream(server, *arguments, code=2)
    before = client.describe_stream("long")
    assert before.restoring
    assert 0 < (before.high_watermark or 0) < len(lines)
    file.write_text("\n".join(lines))
    assert f"{len(lines)} records" in jetstream(server, *arguments)
    found = read(client, "long")
    assert [each.value.decode() for each in found] == [
        line[len('{"value": ') : -1] for line in lines
    ]
    assert {each.timestamp for each in found} == {before.created_at}


def test_headers_that_nats_cannot_carry_are_refused_by_the_offset_of_their_record() -> None:
    assert header_block([("A", b"1"), ("A", None)], 0) == b"NATS/1.0\r\nA: 1\r\nA: \r\n\r\n"
    with pytest.raises(InvalidRequestError, match="offset 7"):
        header_block([("A", b"1\r\nB: 2")], 7)


@pytest.fixture
def kafka_address(tmp_path: Path) -> Iterator[str]:
    if importlib.util.find_spec("kafka") is None:
        pytest.skip("no client of Kafka: pip install 'jetstream-log[kafka]'")
    address, jars = os.environ.get("TEST_KAFKA", ""), os.environ.get("TEST_KAFKA_JARS", "")
    if not jars and FETCHED.is_dir():
        jars = str(FETCHED)
    if address:
        yield address
    elif jars:
        with running_kafka(jars, tmp_path) as started:
            yield started
    else:
        pytest.skip("no Kafka: scripts/kafka fetches one; or set TEST_KAFKA=host:port")


KAFKA_TIME_MS = 1_700_000_000_000


def filled_topic(address: str, partitions: int) -> tuple[str, dict[int, Records]]:
    """A new topic, with what its partitions hold, as its producer was told."""
    import kafka
    from kafka.admin import KafkaAdminClient, NewTopic

    topic = f"test-{uuid.uuid4()}"
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])
    sent = []
    with closing(kafka.KafkaProducer(bootstrap_servers=address)) as producer:
        for number in range(600):
            key = b"key-%d" % (number % 50)
            value = None if number % 7 == 0 else b"%d" % number * (number % 40)
            headers = [("h", b"%d" % number), ("h", b""), ("trace-id", b"\xc3\xa4")][: number % 4]
            time_ms = KAFKA_TIME_MS + (number * 37) % 1000  # Not in order.
            future = producer.send(topic, value, key, headers=headers, timestamp_ms=time_ms)
            sent.append((future, time_ms, key, value, header_block(headers, number)))
        producer.flush()
    rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(partitions)}
    for future, time_ms, key, value, block in sent:
        stored = future.get(60)
        row = (stored.offset, time_ms * 1000, b"topic", key, value, block)
        rows[stored.partition].append(row)
    columns = {each: zip(*sorted(found), strict=True) for each, found in rows.items()}
    return topic, {each: Records(*map(list, found)) for each, found in columns.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_topic_of_kafka_becomes_streams_of_a_group(
    server: ServerProcess, client: Client, kafka_address: str
) -> None:
    topic, held = filled_topic(kafka_address, 3)
    assert all(len(records) > 50 for records in held.values())
    arguments = [
        "--from-kafka", topic, "--kafka", kafka_address, "--subject", "topic", "--json",
    ]  # fmt: skip
    said = [
        json.loads(line)
        for line in jetstream(server, "import", "topic", *arguments).split("\n")
        if line
    ]
    for number, records in held.items():
        digest = RecordDigest()
        digest.add(records)
        row = {
            "stream": f"topic-{number}",
            "records": len(records),
            "record_digest": digest.hexdigest(),
        }
        assert row in said
        found = read(client, f"topic-{number}")
        assert [each.offset for each in found] == list(records.offsets) == list(range(len(found)))
        assert [each.timestamp_us for each in found] == records.timestamps
        assert [each.key for each in found] == records.keys
        assert [each.value for each in found] == records.values
        assert [each.header_block for each in found] == records.header_blocks
        assert client.describe_stream(f"topic-{number}").group == "topic"
    # What is published now goes where Kafka's producer has put the key.
    for number, records in held.items():
        for key in set(records.keys):
            assert client.publish("topic", b"later", key=key).stream == f"topic-{number}"
    assert len(said) == 3
    # As after an interruption between the partitions.
    for number in (1, 2):
        client.delete_stream(f"topic-{number}")
    again = jetstream(server, "import", "topic", *arguments)
    assert [json.loads(line) for line in again.split("\n") if line] == said[1:]


def test_a_partition_that_lacks_later_records_is_not_passed_over(client: Client) -> None:
    client.create_stream("part-0", "part.0", replicas=1)
    client.publish("part.0", b"first")
    _check_complete(client, "part-0", 1)
    with pytest.raises(PreconditionFailedError, match=r"part-0 exists already and ends at offset"):
        _check_complete(client, "part-0", 2)


def test_an_import_that_cannot_go_on_says_what_to_do_with_what_it_has_made(
    server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "large.jsonl"
    file.write_text(json.dumps({"value": "x" * (4 << 20)}) + "\n")
    said = jetstream(
        server, "import", "too-large", "--from", str(file), "--subject", "too-large", code=2
    )
    assert "the record at offset 0 is too large" in said
    assert "jetstream stream delete 'too-large@too-large' --yes" in said
