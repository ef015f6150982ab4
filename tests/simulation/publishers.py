"""Publishers on NATS: what they send reaches whoever is subscribed then; answers come back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jetstream_protocol.errors import (
    CODES,
    NotEnoughReplicasAfterAppendError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NO_NODE
from tests.simulation.nats import DELIVERY_US
from tests.simulation.producers import FIRST_REPLY

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.watched import WatchedStream

INDETERMINATE = tuple(
    CODES[error].nats_err_code for error in (UnknownOutcomeError, NotEnoughReplicasAfterAppendError)
)


class Publishers:
    """One stream's. Numbers every publish; never repeats one."""

    def __init__(self, stream: WatchedStream, first: int) -> None:
        self._stream = stream
        self._first = self._next = first
        self.acked = 0
        self.nacked = 0
        self.doubtful: dict[int, None] = {}
        """Publishes that somebody heard and nobody has answered for certain."""
        self._silent: dict[int, None] = {}
        """Those that nobody has answered at all."""
        self.running = True
        self.pause_us = 60_000
        self._asked_at_rest: dict[int, tuple[int, int]] = {}
        """Publishes at rest that were on their way to the leader, its epoch, and how often it had
        fallen silent. What only others hear, who stand by, is dropped without an answer if the
        hand-over is given up."""

    def publish_forever(self) -> None:
        if not self.running:
            return
        world = self._stream.world
        self.publish(world.between(1, 3) if world.chance(0.3) else 1)
        # Bursts between silences, so that batches and round trips overlap in many ways.
        pause_us = world.between(500, 5_000) if world.chance(0.5) else self.pause_us * 2
        world.later(world.between(0, pause_us), None, self.publish_forever)

    def publish(self, count: int, *, asking: bool = False, delay_us_max: int = DELIVERY_US) -> None:
        """One delivery of `count` messages, most of which ask for an acknowledgement; it is on its
        way from NATS for so long at most, to each who listens for another time. At rest only those
        are sent that all ask, so that none is still under way when the answers are counted."""
        if not (self.running or asking):
            return
        stream = self._stream
        world = stream.world
        ids = list(self.take_numbers(count))
        asked = [asking or world.random.random() < 0.9 for _ in ids]
        replies = [b"_INBOX.%d" % n if asks else b"" for n, asks in zip(ids, asked, strict=True)]
        blocks = stream.header_blocks(ids) or [b""] * count
        messages = list(zip(replies, blocks, stream.values(ids), strict=True))
        nodes = stream.nats.publish(stream.subject, messages, delay_us_max)
        if nodes:
            heard = [n for n, asks in zip(ids, asked, strict=True) if asks]
            self.doubtful.update(dict.fromkeys(heard))
            self._silent.update(dict.fromkeys(heard))
        if asking and stream.stream.leader in nodes:
            self._asked_at_rest.update(dict.fromkeys(ids, self._leadership()))

    def unanswered_at_rest(self) -> list[int]:
        """Of those that asked at rest, under the leader that leads still, and never fell silent."""
        asked, leadership = self._asked_at_rest, self._leadership()
        return [number for number in self._silent if asked.get(number) == leadership]

    def _leadership(self) -> tuple[int, int]:
        stream, cluster = self._stream.stream, self._stream.cluster
        process = cluster.machines[stream.leader].process if stream.leader != NO_NODE else None
        return stream.leader_epoch, -1 if process is None else process.silences

    def take_numbers(self, count: int) -> tuple[int, ...]:
        """Numbers that no other publish has."""
        self._next += count
        return tuple(range(self._next - count, self._next))

    def said(self, process: Process, number: int, payload: bytes) -> None:
        """A process answers; it is on its way to NATS."""
        checker = self._stream.checker
        checker.acts(process)
        self._silent.pop(number, None)
        answer = json.loads(payload)
        if "error" not in answer:
            checker.says_it_has(process.node_id, answer["seq"] - answer.get("count", 1))
        if number >= self._first + FIRST_REPLY:
            if "error" not in answer:
                self._stream.repeating.said(number, answer)
            return
        if "error" in answer:
            self.nacked += 1
            code = answer["error"]["err_code"]
            self._stream.world.count(f"nack {code}")
            if code not in INDETERMINATE:
                self.doubtful.pop(number, None)
                self._stream.checker.refused(process, number)
            return
        self.acked += 1
        self.doubtful.pop(number, None)
        self._stream.checker.acknowledged(number, answer["seq"] - 1)

    def answered(self, number: int, payload: bytes) -> None:
        """NATS has an answer; those who repeat hear of it."""
        if number >= self._first + FIRST_REPLY:
            self._stream.repeating.answered(number, payload)
