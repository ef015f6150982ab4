"""A client of the JetStream API on a raw socket: it reads a stream as client libraries do.

``--batch 0``  a consumer that pushes, without acknowledgements: read_jetstream.py. With --consumers
               so many of these, which begin at the end: then the messages are published, of
               which each gets its part of --messages.
else           a durable consumer, of which batches are asked for. Each message is acknowledged. The
               next batch is asked for when less than half of one is on its way, as client libraries
               do; with batches of one, when it was acknowledged.

    python -m benchmarks.consumer_load --port 4222 --api '$JS.API' --stream BENCH --messages 500000
        --batch 500
"""

from __future__ import annotations

import argparse
import json
import secrets

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.nats_socket import NatsSocket
from benchmarks.read_jetstream import OrderedReader, Reader, Times, create_consumer, read

EXPIRES_NS = 30_000_000_000
_INBOX = b"_INBOX.benchmark.pull"


class ManyReaders(OrderedReader):
    """What many consumers push to one client. Only each by itself is in order."""

    def _check_order(self, first_line: bytes, last_line: bytes, count: int) -> None:
        pass


class PullReader:
    """Takes in socket data; acknowledges each message, and asks for more."""

    def __init__(self, client: NatsSocket, next_subject: bytes, batch: int, most: int) -> None:
        self.client = client
        self.messages = self.bytes = 0
        self._next = next_subject
        self._batch = batch
        self._most = most
        self._asked = 0
        self._rest = b""

    def ask(self) -> bytes:
        """A request for the next batch; b"": enough is on its way."""
        if self._asked - self.messages > self._batch // 2 or self._asked >= self._most:
            return b""
        self._asked += self._batch
        body = b'{"batch":%d,"expires":%d}' % (self._batch, EXPIRES_NS)
        return b"PUB %b %b %d\r\n%b\r\n" % (self._next, _INBOX, len(body), body)

    def feed(self, data: bytes) -> None:
        """Raises RuntimeError for a status."""
        buffer, position = self._rest + data, 0
        acks = []
        while True:
            end_of_line = buffer.find(b"\r\n", position)
            if end_of_line < 0:
                break
            line = buffer[position:end_of_line]
            start = end_of_line + 2
            if not line.startswith(b"MSG"):
                if not line.startswith((b"PING", b"PONG")):
                    raise RuntimeError(f"not a message: {buffer[position : position + 300]!r}")
                position = start
                continue
            _, _, _, reply, length = line.split(b" ")
            end = start + int(length)
            if end + 2 > len(buffer):
                break
            acks.append(b"PUB %b 4\r\n+ACK\r\n" % reply)
            self.bytes += len(buffer[start:end])
            position = end + 2
        self._rest = buffer[position:]
        self.messages += len(acks)
        written = b"".join(acks) + self.ask()
        if written:
            self.client.socket.sendall(written)


def _pull(options: argparse.Namespace, control: NatsSocket, client: NatsSocket) -> PullReader:
    name = f"reader-{secrets.token_hex(4)}"
    config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all"}
    control.request_json(
        f"{options.api}.CONSUMER.CREATE.{options.stream}.{name}",
        {"stream_name": options.stream, "config": config},
    )
    client.subscribe(_INBOX.decode(), 1)
    subject = f"{options.api}.CONSUMER.MSG.NEXT.{options.stream}.{name}"
    reader = PullReader(client, subject.encode(), options.batch, options.messages)
    client.socket.sendall(reader.ask())
    return reader


def _many(options: argparse.Namespace, control: NatsSocket, client: NatsSocket) -> ManyReaders:
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    for number in range(options.consumers):  # JetStream pushes to literal subscriptions only.
        client.subscribe(f"{inbox}.{number}", 1 + number)
        create_consumer(control, options.stream, f"{inbox}.{number}", "new", options.api)
    return ManyReaders(client)


def _publish(options: argparse.Namespace, control: NatsSocket) -> None:
    message = b"PUB %b %d\r\n%b\r\n" % (SUBJECT.encode(), options.size, b"x" * options.size)
    control.socket.sendall(message * -(-options.messages // options.consumers))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, default=0, help="0: ordered")
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--size", type=int, default=128, help="of what many are sent")
    options = parser.parse_args()
    with (
        NatsSocket("127.0.0.1", options.port) as control,
        NatsSocket("127.0.0.1", options.port) as client,
    ):
        begun = Times()
        reader: Reader
        if options.consumers > 1:
            reader = _many(options, control, client)
            begun = Times()
            _publish(options, control)
        elif options.batch:
            reader = _pull(options, control, client)
        else:
            inbox = f"_INBOX.{secrets.token_hex(8)}"
            client.subscribe(inbox, 1)
            reader = OrderedReader(client)
            create_consumer(control, options.stream, inbox, "all", options.api)
        result = read(reader, options.messages, begun)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
