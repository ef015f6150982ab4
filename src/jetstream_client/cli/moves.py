"""Carries out moves of streams: begins a few at a time, and waits until each has ended."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

from jetstream_client.cli.output import printable
from jetstream_client.cli.progress import copy_progress
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import ReplicaMove, Stream
from jetstream_protocol.errors import PreconditionFailedError, StreamNotFoundError

LOOK_SECONDS = 0.2
LEADERLESS_SECONDS = 5.0
"""A stream without a leader for so long is not waited for: no replica copies it. An election takes
less."""
UNHEARD_SECONDS = 3.0
"""After so long a move that waits for a node that is not heard is reported."""
RACING_SECONDS = 10.0
"""For so long a move is tried again whose stream changes, but not the nodes that it is on."""


class _UnderWay:
    """A move that has begun. stream: as it was when it began. move: of the plan; None: others have
    begun it. begun_at, led_at: when it began, and had a leader last, monotonic seconds."""

    def __init__(self, stream: Stream, move: ReplicaMove | None = None) -> None:
        self.stream = stream
        self.move = move
        self.begun_at = self.led_at = time.monotonic()


class Mover:
    """Carries out one plan after another. at_a_time: how many streams it moves at once."""

    def __init__(self, client: Client, at_a_time: int) -> None:
        self._client = client
        self._at_a_time = at_a_time
        self._reported: set[tuple[int, str]] = set()
        self._waits: set[int] = set()  # The ids of those that were reported to wait for a node.
        self._asked_at = 0.0
        self.seen: set[int] = set()
        """The ids of the streams that it has waited for."""
        self.leaderless: set[int] = set()
        """The ids of the streams of the last plan that it did not wait for: they have no leader."""
        self.changed: set[int] = set()
        """The ids of the streams of the last plan that are not where it wanted them, because
        somebody else has moved or deleted them since."""

    def carry_out(self, moves: Sequence[ReplicaMove], joined: Sequence[Stream] = ()) -> None:
        """Carry out these moves. joined: streams that are being moved already, to wait for."""
        self.leaderless, self.changed = set(), set()
        most = self._at_a_time
        self.seen |= {move.stream.id for move in moves} | {stream.id for stream in joined}
        waiting = list(reversed(moves))
        under_way = {each.id: _UnderWay(each) for each in joined}
        total = len(waiting) + len(under_way)
        with copy_progress(self._client, total) as look:
            while waiting or under_way:
                while waiting and sum(e.move is not None for e in under_way.values()) < most:
                    move = waiting.pop()
                    begun = self._begin(move)
                    if begun is not None:
                        under_way[begun.id] = _UnderWay(begun, move)
                time.sleep(LOOK_SECONDS)
                for ended in self._take_ended(under_way):
                    del under_way[ended]
                done = total - len(waiting) - len(under_way)
                look(done, [each.stream for each in under_way.values()])

    def _begin(self, move: ReplicaMove) -> Stream | None:
        """The stream as its move begins. None: it is no longer as it was when the plan was made,
        and stays as it is."""
        deadline = time.monotonic() + RACING_SECONDS
        while True:
            try:
                found = self._client.describe_stream(move.stream)
            except StreamNotFoundError:
                self._leave(move, None)
                return None
            # An older epoch: the answering node has not heard yet of what the plan knew.
            if found.stream_epoch >= move.stream.stream_epoch or time.monotonic() > deadline:
                if _nodes_of(found) != _nodes_of(move.stream) and not _is_wanted(found, move):
                    self._leave(move, found)
                    return None
                try:
                    return self._client.reassign_stream(
                        found,
                        move.replicas,
                        observers=move.observers,
                        stream_epoch=found.stream_epoch,
                    )
                except PreconditionFailedError:  # The ISR has changed, for example: look again.
                    if time.monotonic() > deadline:
                        raise
            time.sleep(LOOK_SECONDS)

    def _leave(self, move: ReplicaMove, now: Stream | None) -> None:
        self.changed.add(move.stream.id)
        name = move.stream.full_name
        if now is None:
            self._tell(move.stream, f"{name} changed since the plan: it was deleted, or is hidden")
            return
        was, is_now = _text(move.stream), _text(now)
        self._tell(now, f"{name} changed since the plan: it was {was}, and is {is_now}: not moved")

    def _take_ended(self, under_way: dict[int, _UnderWay]) -> list[int]:
        """Those that need not be waited for any more."""
        known = {each.id: each for each in self._client.list_streams(internal=True)}
        self._tell_unheard(under_way, known)
        return [
            stream_id
            for stream_id, each in under_way.items()
            if self._has_ended(each, known.get(stream_id))
        ]

    def _has_ended(self, move: _UnderWay, seen: Stream | None) -> bool:
        if seen is not None and seen.stream_epoch < move.stream.stream_epoch:
            return False  # Another node answers, which has not heard of the move yet.
        if seen is None or not seen.target_replicas:
            self._check_there(move.move, seen)
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

    def _tell_unheard(self, under_way: dict[int, _UnderWay], known: dict[int, Stream]) -> None:
        """Say which nodes that are not heard the moves wait for, and how to undo them."""
        now = time.monotonic()
        slow = [each for each in under_way.values() if now - each.begun_at > UNHEARD_SECONDS]
        if not slow or now - self._asked_at < 1.0:
            return
        self._asked_at = now
        fenced = fenced_nodes(self._client)
        for each in slow:
            stream = known.get(each.stream.id)
            if stream is None or stream.id in self._waits:
                continue
            missing = [node for node in stream.target_replicas if node not in stream.isr]
            if unheard := [node for node in missing if node in fenced]:
                self._waits.add(stream.id)
                self._tell(
                    stream,
                    f"{stream.full_name} waits for {_not_heard(unheard)}; to undo: "
                    f"{_undoing(each, stream)}",
                )

    def _check_there(self, move: ReplicaMove | None, now: Stream | None) -> None:
        """Whether a move that has ended has put the stream where the plan wanted it."""
        if move is not None and (now is None or now.replicas != tuple(sorted(move.replicas))):
            self.changed.add(move.stream.id)
            where = "it was deleted" if now is None else f"it is {_text(now)}"
            self._tell(move.stream, f"{move.stream.full_name} changed while it was moved: {where}")

    def _tell(self, stream: Stream, text: str) -> None:
        """Once for each stream and text."""
        if (stream.id, text) not in self._reported:
            self._reported.add((stream.id, text))
            print(printable(text), file=sys.stderr)


def _nodes_of(stream: Stream) -> tuple[tuple[int, ...], ...]:
    return stream.replicas, stream.target_replicas, stream.observers


def _is_wanted(stream: Stream, move: ReplicaMove) -> bool:
    """Whether the stream is where the move wants it, or on its way there."""
    target = stream.target_replicas or stream.replicas
    return (target, stream.observers) == (tuple(sorted(move.replicas)), observers_after(move))


def observers_after(move: ReplicaMove) -> tuple[int, ...]:
    """The observers that the stream will have."""
    if move.observers is not None:
        return tuple(sorted(move.observers))
    return tuple(node for node in move.stream.observers if node not in move.replicas)


def fenced_nodes(client: Client) -> set[int]:
    """The nodes that the cluster does not hear."""
    return {node.id for node in client.describe_cluster().nodes if node.fenced}


def _not_heard(nodes: Sequence[int]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}, which is not heard"
    return f"nodes {', '.join(map(str, nodes))}, which are not heard"


def _undoing(move: _UnderWay, now: Stream) -> str:
    """The command that undoes a move that has not ended."""
    if move.move is None:  # Where it was is unknown: where it has all records is certain.
        replicas = [n for n in now.replicas if n not in now.target_replicas or n in now.isr]
        observers = now.observers
    else:
        before = move.move.stream
        replicas = list(before.target_replicas or before.replicas)
        observers = before.observers
    text = f"jetstream stream reassign {shlex.quote(now.full_name)} --replicas {_list(replicas)}"
    return text if observers == now.observers else f"{text} --observers {_list(observers)}"


def _list(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "none"


def _text(stream: Stream) -> str:
    text = f"on {','.join(map(str, stream.replicas))}"
    if stream.target_replicas:
        text += f" on its way to {','.join(map(str, stream.target_replicas))}"
    if stream.observers:
        text += f" with observers on {','.join(map(str, stream.observers))}"
    return text
