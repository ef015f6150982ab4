"""A publisher that repeats what is not acknowledged, as the protocol asks of it, and its books.

Batches under a producer id, five on their way at most and in order, and messages with ids. All it
sends again is byte for byte what it sent before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

from jetstream_protocol.batch import encode
from jetstream_protocol.envelope import encode_batch
from tests.support.api import RawNats

WINDOW = 5
RETRY_SECONDS = 0.5
"""At first; twice as long each time: a slow machine answers later, too."""


class Producer:
    """One producer of one stream. What it publishes are the numbers from 0 on, each once."""

    def __init__(self, subject: str, records_per_batch: int = 3) -> None:
        self.subject = subject
        self.producer_id = int.from_bytes(os.urandom(8), "big") >> 1
        self.records_per_batch = records_per_batch
        self.acked: dict[str, dict[str, Any]] = {}
        """What answered each batch ("b" and its sequence) and message ("m" and its id)."""
        self.refused: list[dict[str, Any]] = []
        self._payloads: dict[str, tuple[bytes, bytes | None, list[bytes]]] = {}
        self._batches = self._messages = 0

    def add_batches(self, count: int) -> list[str]:
        """More batches to send; returns their names."""
        names = []
        for _ in range(count):
            name = f"b{self._batches}"
            values = [b"%s.%d" % (name.encode(), i) for i in range(self.records_per_batch)]
            batch = encode(
                values, self.subject.encode(),
                producer_id=self.producer_id, producer_sequence=self._batches,
            )  # fmt: skip
            self._payloads[name] = encode_batch(batch, correlation=name.encode()), None, values
            self._batches += 1
            names.append(name)
        return names

    def add_messages(self, count: int) -> list[str]:
        """More messages with ids to send; returns their names."""
        names = []
        for _ in range(count):
            name = f"m{self._messages}"
            block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % name.encode()
            self._payloads[name] = name.encode(), block, [name.encode()]
            self._messages += 1
            names.append(name)
        return names

    def send(self, client: RawNats, names: Iterable[str], inbox: str) -> None:
        """Publish, perhaps again; the answer's subject tells what it answers."""
        for name in names:
            payload, block, _ = self._payloads[name]
            client.publish(self.subject, payload, f"{inbox}.{name}", block)

    def take_answers(self, client: RawNats, names: Iterable[str], seconds: float) -> bool:
        """Read answers until all of `names` are acknowledged; False: not in time."""
        deadline = time.monotonic() + seconds
        missing = set(names) - set(self.acked)
        while missing:
            try:
                subject, payload = client.message(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if payload.startswith(b"NATS/1.0 503"):
                continue  # Nobody listens at the moment.
            name = subject.rpartition(".")[2]
            answer = json.loads(payload)
            if "error" in answer:
                self.refused.append(answer)
            else:
                known = self.acked.setdefault(name, answer)
                assert known["seq"] == answer["seq"], f"{name} is at two places: {known}, {answer}"
                missing.discard(name)
        return True

    def deliver(self, url: str, names: list[str], seconds: float = 120.0) -> None:
        """Until all of `names` are acknowledged, five at a time, over connections of its own."""
        deadline = time.monotonic() + seconds
        for start in range(0, len(names), WINDOW):
            window = names[start : start + WINDOW]
            patience = RETRY_SECONDS
            while True:
                client = RawNats(url)
                try:
                    inbox = f"_INBOX.{os.urandom(6).hex()}"
                    client.subscribe(f"{inbox}.>")
                    self.send(client, [name for name in window if name not in self.acked], inbox)
                    if self.take_answers(client, window, patience):
                        break
                    patience *= 2
                finally:
                    client.close()
                assert time.monotonic() < deadline, f"not acknowledged: {self.refused[-5:]}"

    def check(self, values: list[bytes | None]) -> None:
        """Everything acknowledged is stored once, where its ack said, batches in their order."""
        assert len(set(values)) == len(values), "something is stored twice"
        for name, answer in self.acked.items():
            expected = self._payloads[name][2]
            end = answer["seq"]
            assert values[end - len(expected) : end] == expected, f"{name} is not at {end}"
        batches = [value for value in values if value and value.startswith(b"b")]
        in_order = [
            value
            for sequence in range(self._batches)
            for value in self._payloads[f"b{sequence}"][2]
        ]
        assert batches == in_order[: len(batches)], "batches are out of order, or one is missing"
