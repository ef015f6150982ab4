"""From a delivery to what is stored of it: refusals, keys, tombstones, ack levels.

Decides only; `StreamIngest` appends and answers. Deliveries without headers of ours, which are
nearly all, pass through as they came: nothing here looks at their messages one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
)
from jetstream_server.ingest.headers import AckLevel, Directives, inspect, keys_only
from jetstream_server.ingest.parser import Delivery


@dataclass(slots=True)
class Admitted:
    """The messages to append, as parallel lists, and who is to be told what.

    replies: answered at ack level `all`, b"" for none. early: (position, reply) to be answered once
    appended (level `leader`). refused: (reply, why), of messages that are not appended.
    """

    values: list[bytes | None]
    subjects: list[bytes]
    replies: list[bytes]
    header_blocks: list[bytes] | None
    keys: list[bytes | None] | None = None
    early: list[tuple[int, bytes]] = field(default_factory=list)
    refused: list[tuple[bytes, JetstreamError]] = field(default_factory=list)

    def part(self, start: int, stop: int) -> Admitted:
        """The messages at [start, stop), without refusals."""
        return Admitted(
            values=self.values[start:stop],
            subjects=self.subjects[start:stop],
            replies=self.replies[start:stop],
            header_blocks=None if self.header_blocks is None else self.header_blocks[start:stop],
            keys=None if self.keys is None else self.keys[start:stop],
            early=[(at - start, reply) for at, reply in self.early if start <= at < stop],
        )


def admit(delivery: Delivery, stream_name: str) -> Admitted:
    """Everything a stream of that name stores of `delivery`."""
    admitted = Admitted(
        list(delivery.values), delivery.subjects, delivery.replies, delivery.header_blocks
    )
    if not b"".join(delivery.subjects).isascii():
        admitted = _without_foreign_subjects(admitted)
    if admitted.header_blocks is None:
        return admitted
    keys = keys_only(admitted.header_blocks)
    if keys is not None:
        admitted.keys = list(keys)
        return admitted
    outcomes = inspect(admitted.header_blocks, admitted.values)
    if outcomes is None:
        return admitted
    return _follow(admitted, [_expect(outcome, stream_name) for outcome in outcomes])


def _without_foreign_subjects(given: Admitted) -> Admitted:
    """NATS subjects are UTF-8 by specification; readers (Arrow, Spark) rely on it."""
    kept = _empty(given)
    for index, subject in enumerate(given.subjects):
        try:
            subject.decode()
        except UnicodeDecodeError:
            error = InvalidRequestError("the subject is not UTF-8")
            kept.refused.append((given.replies[index], error))
        else:
            _keep(kept, given, index, given.values[index])
    return kept


def _expect(
    outcome: Directives | InvalidRequestError, stream_name: str
) -> Directives | JetstreamError:
    if isinstance(outcome, Directives) and outcome.expected_stream is not None:
        expected = outcome.expected_stream
        if expected != stream_name.encode():
            # Only in part: a nack longer than NATS lets us publish would cost the connection.
            quoted = expected[:64].decode("utf-8", "replace")
            return PreconditionFailedError(f"expected stream {quoted!a}, this is {stream_name!r}")
    return outcome


def _follow(given: Admitted, outcomes: list[Directives | JetstreamError]) -> Admitted:
    """Apply each message's directives; refused ones are left out."""
    kept = _empty(given)
    keys: list[bytes | None] = []
    for index, outcome in enumerate(outcomes):
        reply = given.replies[index]
        if isinstance(outcome, JetstreamError):
            kept.refused.append((reply, outcome))
            continue
        position = len(kept.values)
        _keep(kept, given, index, None if outcome.tombstone else given.values[index])
        keys.append(outcome.key)
        if outcome.ack_level in (AckLevel.NONE, AckLevel.LEADER):
            kept.replies[position] = b""
            if reply and outcome.ack_level == AckLevel.LEADER:
                kept.early.append((position, reply))
    if any(key is not None for key in keys):
        kept.keys = keys
    return kept


def _empty(given: Admitted) -> Admitted:
    blocks: list[bytes] | None = None if given.header_blocks is None else []
    return Admitted([], [], [], blocks, refused=given.refused)


def _keep(kept: Admitted, given: Admitted, index: int, value: bytes | None) -> None:
    kept.values.append(value)
    kept.subjects.append(given.subjects[index])
    kept.replies.append(given.replies[index])
    if kept.header_blocks is not None and given.header_blocks is not None:
        kept.header_blocks.append(given.header_blocks[index])
