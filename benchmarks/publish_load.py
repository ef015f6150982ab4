"""The publish load: one Python process that publishes by an API and waits until all is stored.

    send      client.publisher(): send() for each record
    many      client.publisher(): publish_many() of 1,000 records at a time
    direct    the same with via="direct": straight to the leader
    nats-py   publish_async() of nats-py for each record, a bounded number unacknowledged
    kafka     produce() of confluent-kafka for each record, into a new topic
    liftbridge  PublishAsync for each record, into a new stream, a bounded number unacknowledged

Each value is made anew, as a program's would be. Prints one JSON object. Run by
`benchmarks.publish`.

    python -m benchmarks.publish_load --api send --server 127.0.0.1:9292 --size 128 --seconds 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import nats

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.liftbridge import Liftbridge
from benchmarks.load import WINDOW
from jetstream_client import Client, Publisher

MANY = 1_000
WARM_UP_SECONDS = 0.5
CREATE_SECONDS = 30.0


class Result(NamedTuple):
    messages: int
    seconds: float
    """From the first call to the last acknowledgement."""
    processor_seconds: float
    """Of this process, within these seconds."""
    warm_up: int = 0
    """Records published before."""


def _driven(publisher: Publisher, publish: Callable[[], int], seconds: float) -> Result:
    """Call `publish`, which says how many records it published, for so long; then flush."""
    count = 0
    begun, processor = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        count += publish()
    publisher.flush()
    return Result(count, time.perf_counter() - begun, time.process_time() - processor)


def by_publisher(server: str, api: str, size: int, seconds: float) -> Result:
    """`count` records stored, of which flush() has made sure: it raises any failure."""
    padding = bytes(size - 8)

    def send() -> int:
        for number in range(MANY):
            publisher.send(b"%08d" % number + padding)
        return MANY

    def send_many() -> int:
        publisher.publish_many([b"%08d" % number + padding for number in range(MANY)])
        return MANY

    publish = send if api == "send" else send_many
    via: Literal["direct", "nats"] = "direct" if api == "direct" else "nats"
    with Client(server) as client, client.publisher(SUBJECT, via=via) as publisher:
        before = _driven(publisher, publish, WARM_UP_SECONDS).messages
        return _driven(publisher, publish, seconds)._replace(warm_up=before)


async def by_nats_py(server: str, size: int, seconds: float) -> Result:
    """nats-py bounds what is unacknowledged itself, with the load's own window."""
    padding = bytes(size - 8)
    connection = await nats.connect(f"nats://{server}")
    jetstream = connection.jetstream(publish_async_max_pending=WINDOW)

    async def drive(seconds: float) -> Result:
        count = 0
        begun, processor = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            for number in range(MANY):
                # Without its wait_stall, which would cost it a task for each message.
                future = await jetstream.publish_async(SUBJECT, b"%08d" % number + padding)
            count += MANY
        await jetstream.publish_async_completed()
        assert (await future).seq > 0
        return Result(count, time.perf_counter() - begun, time.process_time() - processor)

    before = (await drive(WARM_UP_SECONDS)).messages
    result = (await drive(seconds))._replace(warm_up=before)
    await connection.close()
    return result


def by_kafka(server: str, size: int, seconds: float, replicas: int) -> Result:
    """librdkafka batches and bounds what is unacknowledged itself."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"bench-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(CREATE_SECONDS)
    producer = Producer({"bootstrap.servers": server, "acks": "all", "enable.idempotence": True})
    padding = bytes(size - 8)
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    def drive(seconds: float) -> Result:
        count = 0
        begun, processor = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            for number in range(MANY):
                while True:
                    try:
                        producer.produce(topic, b"%08d" % number + padding, callback=delivered)
                        break
                    except BufferError:  # As much is unacknowledged as may be.
                        producer.poll(0.01)
            count += MANY
            producer.poll(0)
        producer.flush()
        return Result(count, time.perf_counter() - begun, time.process_time() - processor)

    before = drive(WARM_UP_SECONDS).messages
    result = drive(seconds)._replace(warm_up=before)
    admin.delete_topics([topic])[topic].result(CREATE_SECONDS)
    if failures:
        raise RuntimeError(f"{len(failures)} records were not stored: {failures[0]}")
    return result


def by_liftbridge(server: str, size: int, seconds: float, replicas: int) -> Result:
    padding = bytes(size - 8)
    liftbridge = Liftbridge(server, f"bench-{secrets.token_hex(4)}", replicas, WINDOW)

    def drive(seconds: float) -> Result:
        count = 0
        begun, processor = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            for number in range(MANY):
                liftbridge.publish(b"%08d" % number + padding)
            count += MANY
        liftbridge.flush()
        return Result(count, time.perf_counter() - begun, time.process_time() - processor)

    before = drive(WARM_UP_SECONDS).messages
    result = drive(seconds)._replace(warm_up=before)
    liftbridge.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--api", choices=["send", "many", "direct", "nats-py", "kafka", "liftbridge"], required=True
    )
    parser.add_argument("--server", required=True, help="HOST:PORT,… of gRPC, NATS or Kafka")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--replicas", type=int, default=1, help="of what the load creates")
    options = parser.parse_args()
    if options.api == "nats-py":
        result = asyncio.run(by_nats_py(options.server, options.size, options.seconds))
    elif options.api == "kafka":
        result = by_kafka(options.server, options.size, options.seconds, options.replicas)
    elif options.api == "liftbridge":
        result = by_liftbridge(options.server, options.size, options.seconds, options.replicas)
    else:
        result = by_publisher(options.server, options.api, options.size, options.seconds)
    print(json.dumps(result._asdict()))


if __name__ == "__main__":
    main()
