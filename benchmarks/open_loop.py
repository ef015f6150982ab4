"""The open-loop load: messages on a fixed schedule, each timed from the moment it was due.

A load that waits for answers sends less while a server is slow, and so leaves out the very moments
that matter (coordinated omission). This one does not wait: if the socket or the server holds it up,
the messages that were due meanwhile count as late. One process, one raw socket; acks are counted
without parsing them, and come in the order of the messages. Prints one JSON object with percentiles
in microseconds. Run by `benchmarks.latency` and `benchmarks.tail`.

    python -m benchmarks.open_loop --port 4222 --subject bench.load --size 128 --rate 99 --seconds 4
"""

from __future__ import annotations

import argparse
import json
import select
import time
from typing import NamedTuple

from benchmarks.load import RUN, STALL_SECONDS, Loader
from benchmarks.nats_socket import NatsSocket
from benchmarks.round_trips import percentiles

WARM_UP_SECONDS = 0.5


class Arrival(NamedTuple):
    """So many messages were acknowledged at that time."""

    acked: int
    at: float


class Schedule(NamedTuple):
    """Message i is due at `start` + i / `rate`."""

    start: float
    rate: float

    def due(self, now: float) -> int:
        """How many messages are due."""
        return 0 if now < self.start else int((now - self.start) * self.rate) + 1

    def at(self, message: int) -> float:
        return self.start + message / self.rate


class OpenLoop(Loader):
    """Its loader keeps no window."""

    def on_schedule(self, rate: float, messages: int) -> tuple[Schedule, list[Arrival]]:
        """Publish at `rate`, and wait for every ack. Raises RuntimeError, TimeoutError."""
        schedule = Schedule(time.perf_counter() + 0.01, rate)
        arrivals: list[Arrival] = []
        sent = acked = 0
        out = self._run[:0]
        while acked < messages:
            now = time.perf_counter()
            due = min(messages, schedule.due(now))
            if not out and due > sent:
                count = min(RUN, due - sent)
                out = self._run[: count * self._message_length]
                sent += count
            if out:
                out = self._send(out)
            if out or sent == messages:
                patience = STALL_SECONDS
            else:
                patience = max(0.0, schedule.at(sent) - time.perf_counter())
            waits = [self._socket]
            readable, writable, _ = select.select(waits, waits if out else [], [], patience)
            if readable:
                acked += self._receive_acks()
                arrivals.append(Arrival(acked, time.perf_counter()))
            elif patience == STALL_SECONDS and not writable:
                raise TimeoutError(f"{sent - acked} acks missing after {STALL_SECONDS:g} s")
        return schedule, arrivals


def latencies(schedule: Schedule, arrivals: list[Arrival]) -> list[int]:
    """Nanoseconds from the moment when each message was due to its ack."""
    taken = []
    first = 0
    for acked, at in arrivals:
        taken += [round(1e9 * (at - schedule.at(number))) for number in range(first, acked)]
        first = acked
    return taken


def counts(rate: float, seconds: float) -> tuple[int, int]:
    """How many messages are published to warm up, and then."""
    return max(1, int(rate * WARM_UP_SECONDS)), max(1, int(rate * seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    warm_up, messages = counts(options.rate, options.seconds)
    with NatsSocket(options.host, options.port) as client:
        load = OpenLoop(client, options.subject, options.size)
        load.on_schedule(options.rate, warm_up)
        processor = time.process_time()
        schedule, arrivals = load.on_schedule(options.rate, messages)
        used = time.process_time() - processor
    found = {"messages": messages, "warm_up": warm_up, "processor_seconds": used}
    found |= {"seconds": arrivals[-1].at - schedule.start}
    print(json.dumps(found | percentiles(latencies(schedule, arrivals))))


if __name__ == "__main__":
    main()
