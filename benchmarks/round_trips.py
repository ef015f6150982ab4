"""The latency load: publish one message, wait for its ack, and so on; every round trip is timed.

One process, one raw socket, identical bytes for every server under test. With --stream, the port is
that of a data plane, and each message is a batch of one record that goes straight to the leader.
Prints one JSON object with percentiles in microseconds. Run by `benchmarks.latency`.

    python -m benchmarks.round_trips --port 4222 --subject bench.load --size 128 --messages 5000
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket
from benchmarks.produce_socket import ProduceSocket, check

WARM_UP_MESSAGES = 500
INBOX = "_INBOX.benchmark.trip"


def measure(client: NatsSocket, subject: str, size: int, messages: int) -> list[int]:
    """Nanoseconds of each round trip, of a client that is subscribed to INBOX. Raises RuntimeError
    for a refused message, TimeoutError."""
    message = f"PUB {subject} {INBOX} {size}\r\n".encode() + _payload(size) + b"\r\n"
    sock = client.socket
    taken = []
    for _ in range(messages):
        start = time.perf_counter_ns()
        sock.sendall(message)
        answer = sock.recv(RECEIVE_BYTES)
        while b"}\r\n" not in answer:
            if answer.endswith(b"PING\r\n"):
                sock.sendall(b"PONG\r\n")
                answer = b""
            answer += sock.recv(RECEIVE_BYTES)
        taken.append(time.perf_counter_ns() - start)
        if answer.endswith(b"PING\r\n"):
            sock.sendall(b"PONG\r\n")
        if b'"seq"' not in answer or b'"error"' in answer:
            raise RuntimeError(f"a message was refused: {answer[-300:]!r}")
    return taken


def measure_direct(client: ProduceSocket, messages: int) -> list[int]:
    """The same of a producer that sends straight to the leader."""
    taken = []
    for _ in range(messages):
        start = time.perf_counter_ns()
        answer = client.produce()
        taken.append(time.perf_counter_ns() - start)
        check(answer)
    return taken


def _payload(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def percentiles(taken: list[int]) -> dict[str, float]:
    """In microseconds."""
    ordered = sorted(taken)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000

    return {
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": ordered[-1] / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument(
        "--stream", help="send straight to its leader, at whose data plane --port is"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        trips: Callable[[int], list[int]]
        if options.stream:
            address = (options.host, options.port, options.stream, options.subject)
            producer = stack.enter_context(ProduceSocket(*address, _payload(options.size)))
            trips = partial(measure_direct, producer)
        else:
            client = stack.enter_context(NatsSocket(options.host, options.port))
            client.subscribe(INBOX, 1)
            trips = partial(measure, client, options.subject, options.size)
        trips(WARM_UP_MESSAGES)
        processor = time.process_time()
        taken = trips(options.messages)
        used = time.process_time() - processor
    found: dict[str, Any] = {"messages": options.messages, "warm_up": WARM_UP_MESSAGES}
    found |= {"seconds": sum(taken) / 1e9, "processor_seconds": used}
    print(json.dumps(found | percentiles(taken)))


if __name__ == "__main__":
    main()
