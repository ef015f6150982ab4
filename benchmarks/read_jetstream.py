"""The peer's read: an ordered consumer of JetStream on a raw socket, every payload sliced once.

An ephemeral push consumer as the client libraries' ordered consumers make it: no acks, idle
heartbeats, flow control answered. The deliveries are parsed in plain Python with as little as
possible per message: find the end of the line, read the length, slice the payload. The order is
checked as an ordered consumer does, by the sequences in the reply subjects, but once per read
from the socket: with no message missing, first and last are as far apart as their count says.

    python -m benchmarks.read_jetstream --port 4222 --stream BENCH --messages 500000
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Protocol

from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket

IDLE_HEARTBEAT_NS = 5_000_000_000


class OrderedReader:
    """Takes in socket data; counts messages and payload bytes."""

    def __init__(self, client: NatsSocket) -> None:
        self.client = client
        self._rest = b""
        self.messages = 0
        self.bytes = 0

    def feed(self, data: bytes) -> None:
        """Slice every whole delivery out of `data`. Raises RuntimeError for a gap."""
        buffer = self._rest + data
        position = 0
        values: list[bytes] = []
        first_line = last_line = b""
        while True:
            end_of_line = buffer.find(b"\r\n", position)
            if end_of_line < 0:
                break
            line = buffer[position:end_of_line]
            if not line.startswith(b"MSG"):
                after = self._control(line, buffer, end_of_line + 2)
                if after is None:
                    break
                position = after
                continue
            start = end_of_line + 2
            end = start + int(line[line.rindex(b" ") :])
            if end + 2 > len(buffer):
                break
            values.append(buffer[start:end])
            last_line = line
            first_line = first_line or line
            position = end + 2
        self._rest = buffer[position:]
        if values:
            self._check_order(first_line, last_line, len(values))
            self.messages += len(values)
            self.bytes += sum(map(len, values))

    def _check_order(self, first_line: bytes, last_line: bytes, count: int) -> None:
        first, last = _consumer_sequence(first_line), _consumer_sequence(last_line)
        if first != self.messages + 1 or last - first + 1 != count:
            raise RuntimeError(f"gap: {count} messages from {first} to {last}")

    def _control(self, line: bytes, buffer: bytes, start: int) -> int | None:
        """Answer flow control; where the next frame begins, None when this one is not whole."""
        if not line.startswith(b"HMSG"):
            if line == b"PING":
                self.client.socket.sendall(b"PONG\r\n")
            return start
        fields = line.split(b" ")
        end = start + int(fields[-1])
        if end + 2 > len(buffer):
            return None
        block = buffer[start:end]
        if b"FlowControl" in block and len(fields) == 6:
            self.client.socket.sendall(b"PUB " + fields[3] + b" 0\r\n\r\n")
        stalled = block.partition(b"Nats-Consumer-Stalled: ")[2].partition(b"\r\n")[0]
        if stalled:
            self.client.socket.sendall(b"PUB " + stalled + b" 0\r\n\r\n")
        return end + 2


def _consumer_sequence(line: bytes) -> int:
    """MSG subject sid $JS.ACK.stream.consumer.delivered.stream_seq.consumer_seq.time.pending n."""
    return int(line.split(b" ")[3].split(b".")[6])


def create_consumer(
    control: NatsSocket, stream: str, inbox: str, deliver_policy: str, api: str = "$JS.API"
) -> None:
    """One like a client library's ordered consumer, which delivers to `inbox`."""
    control.request_json(
        f"{api}.CONSUMER.CREATE.{stream}",
        {
            "stream_name": stream,
            "config": {
                "deliver_subject": inbox,
                "deliver_policy": deliver_policy,
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": IDLE_HEARTBEAT_NS,
                "mem_storage": True,
                "num_replicas": 1,
            },
        },
    )


Data = bytes


class Reader(Protocol):
    """Takes in what a client is sent."""

    client: NatsSocket
    messages: int
    bytes: int

    def feed(self, data: Data) -> None: ...


class Times:
    """When a run has begun, in seconds: by the clock, and of this process' processor time."""

    def __init__(self) -> None:
        self.clock, self.processor = time.perf_counter(), time.process_time()


def read(reader: Reader, messages: int, begun: Times) -> dict[str, float]:
    """Read that many messages, and return what a run reports."""
    while reader.messages < messages:
        data = reader.client.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the NATS server closed the connection")
        reader.feed(data)
    return {
        "messages": reader.messages,
        "bytes": reader.bytes,
        "seconds": time.perf_counter() - begun.clock,
        "processor_seconds": time.process_time() - begun.processor,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--messages", type=int, required=True)
    options = parser.parse_args()
    inbox = "_INBOX.benchmark.read"
    with (
        NatsSocket(options.host, options.port) as control,
        NatsSocket(options.host, options.port) as client,
    ):
        client.subscribe(inbox, 1)
        reader = OrderedReader(client)
        begun = Times()
        create_consumer(control, options.stream, inbox, "all")
        result = read(reader, options.messages, begun)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
