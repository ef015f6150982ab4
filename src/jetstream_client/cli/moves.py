"""Carries out moves of streams: begins a few at a time, and waits until each has ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from jetstream_client.cli.output import printable
from jetstream_client.cli.progress import progress_bar
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import ReplicaMove, Stream

LOOK_SECONDS = 0.2
LEADERLESS_SECONDS = 5.0
"""A stream without a leader for so long is not waited for: nobody copies it. An election takes
less."""


class _UnderWay:
    """A move that has begun. stream: as it was when it began. led_at: when it had a leader last,
    monotonic seconds."""

    def __init__(self, stream: Stream, *, is_planned: bool) -> None:
        self.stream = stream
        self.is_planned = is_planned
        self.led_at = time.monotonic()


class Mover:
    """Carries out one plan after another. at_a_time: how many streams it moves at once."""

    def __init__(self, client: Client, at_a_time: int) -> None:
        self._client = client
        self._at_a_time = at_a_time
        self._told: set[int] = set()
        self.seen: set[int] = set()
        """The ids of the streams that it has waited for."""
        self.leaderless: set[int] = set()
        """The ids of the streams of the last plan that it did not wait for: nobody leads them."""

    def carry_out(self, moves: Sequence[ReplicaMove], joined: Sequence[Stream] = ()) -> None:
        """Carry out these moves. joined: streams that are being moved already, to wait for."""
        self.leaderless = set()
        self.seen |= {move.stream.id for move in moves} | {stream.id for stream in joined}
        waiting = list(reversed(moves))
        under_way = {each.id: _UnderWay(each, is_planned=False) for each in joined}
        with progress_bar(len(waiting) + len(under_way)) as advance:
            while waiting or under_way:
                while waiting and sum(e.is_planned for e in under_way.values()) < self._at_a_time:
                    move = waiting.pop()
                    begun = self._begin(move)
                    under_way[begun.id] = _UnderWay(begun, is_planned=True)
                time.sleep(LOOK_SECONDS)
                for ended in self._ended(under_way):
                    del under_way[ended]
                    advance(1)

    def _begin(self, move: ReplicaMove) -> Stream:
        return self._client.reassign_stream(move.stream, move.replicas, observers=move.observers)

    def _ended(self, under_way: dict[int, _UnderWay]) -> list[int]:
        """Those that need not be waited for any more."""
        known = {each.id: each for each in self._client.list_streams(internal=True)}
        return [
            stream_id
            for stream_id, each in under_way.items()
            if self._has_ended(each, known.get(stream_id))
        ]

    def _has_ended(self, move: _UnderWay, seen: Stream | None) -> bool:
        if seen is not None and seen.stream_epoch < move.stream.stream_epoch:
            return False  # Another node answers, which has not heard of the move yet.
        if seen is None or not seen.target_replicas:
            return True
        if seen.leader >= 0:
            move.led_at = time.monotonic()
        if time.monotonic() - move.led_at <= LEADERLESS_SECONDS:
            return False
        self.leaderless.add(seen.id)
        self._tell(
            seen,
            f"{seen.full_name} has no leader: it moves once it has one (jetstream stream elect)",
        )
        return True

    def _tell(self, stream: Stream, text: str) -> None:
        """Once for each stream."""
        if stream.id not in self._told:
            self._told.add(stream.id)
            print(printable(text), file=sys.stderr)
