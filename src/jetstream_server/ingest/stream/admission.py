"""Decides which plain messages of a delivery are stored: refusals, keys, ack levels, preconditions.

Only decides; `StreamIngest` appends and answers. Batches do not come here: `StreamIngest` checks
them. Most deliveries have neither headers for this
server nor envelopes. They pass through unchanged, without a look at each message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from jetstream_protocol.envelope import NO_EXPECTATION, RecordEnvelope
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    UnsupportedHeaderError,
    WrongStreamError,
)
from jetstream_protocol.header_names import ROLLUP
from jetstream_protocol.subjects import has_control_bytes
from jetstream_server.ingest.nats.delivery import Delivery, is_plain_text
from jetstream_server.ingest.nats.replies import AckPolicy, Replies
from jetstream_server.ingest.stream.headers import (
    NOTHING,
    AckLevel,
    Directives,
    asks_for,
    deletes,
    inspect,
    keys_only,
)


class Opened(NamedTuple):
    """The envelope of a record. around: the header block of the NATS message around a record that
    has its own; the record's own is stored; b"": there is none."""

    envelope: RecordEnvelope
    around: bytes


NOTHING_OPENED: Final[Mapping[int, Opened]] = MappingProxyType({})


class Precondition(NamedTuple):
    """What a message asks for in addition to being stored.

    message_id: store the message only once. expected_offset: store it only at this offset.
    correlation: repeated in its answer; b"" for none. expected_subject_end: store it only if the
    last record on its subject is the one before this offset; 0: there is none.
    """

    message_id: bytes | None = None
    expected_offset: int | None = None
    correlation: bytes = b""
    expected_subject_end: int | None = None


NO_PRECONDITION: Final = Precondition()


class Refused(NamedTuple):
    """A message that is not appended."""

    reply: bytes
    error: JetstreamError
    correlation: bytes = b""


@dataclass(slots=True)
class Admitted:
    """The messages to append, as parallel lists, and the answers that they ask for.

    replies: answered at ack level `all`; b"" for none. early: replies to answer once appended
    (level `leader`), by position. demands: the preconditions of the few messages that have any, by
    position. unfit: why the stream's settings refuse some, unless they are stored already.
    """

    values: list[bytes | None]
    subjects: list[bytes]
    replies: list[bytes]
    header_blocks: list[bytes] | None
    keys: list[bytes | None] | None = None
    early: dict[int, bytes] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    demands: dict[int, Precondition] = field(default_factory=dict)
    unfit: dict[int, JetstreamError] = field(default_factory=dict)

    def only(self, positions: Sequence[int]) -> Admitted:
        """The messages at those positions, ascending, without refusals."""
        if len(positions) == len(self.values):
            return self
        blocks, keys = self.header_blocks, self.keys
        new = {position: index for index, position in enumerate(positions)}
        return Admitted(
            values=[self.values[at] for at in positions],
            subjects=[self.subjects[at] for at in positions],
            replies=[self.replies[at] for at in positions],
            header_blocks=None if blocks is None else [blocks[at] for at in positions],
            keys=None if keys is None else [keys[at] for at in positions],
            early={new[at]: reply for at, reply in self.early.items() if at in new},
            demands={new[at]: demand for at, demand in self.demands.items() if at in new},
            unfit={new[at]: error for at, error in self.unfit.items() if at in new},
        )

    @property
    def size_bytes(self) -> int:
        """Length of values and header blocks together, in bytes."""
        blocks = self.header_blocks or ()
        return sum(map(len, filter(None, self.values))) + sum(map(len, blocks))

    def size_at(self, position: int) -> int:
        """Length of that message's value, key and headers together, in bytes."""
        found = (self.values, self.keys or (), self.header_blocks or ())
        return sum(len(column[position] or b"") for column in found if column)

    def select(self, policy: AckPolicy) -> Replies:
        """The messages to answer at ack level `all`."""
        return policy.select(self.replies)

    def correlation(self, position: int) -> bytes:
        """The correlation id for the answer to that message; b"" for none."""
        return self.demands.get(position, NO_PRECONDITION).correlation

    def reply_at(self, position: int) -> tuple[bytes, bool]:
        """The reply subject of that message, b"" for none, and whether it is answered early."""
        early = self.early.get(position)
        return (self.replies[position], False) if early is None else (early, True)

    def take_reply(self, position: int) -> tuple[bytes, bool]:
        """Like `reply_at`, but remove the reply."""
        taken = self.reply_at(position)
        self.replies[position] = b""
        self.early.pop(position, None)
        return taken

    def askers(self, *, early: bool = True) -> list[tuple[bytes, bytes]]:
        """Reply subject and correlation id of every message that asks for an answer. early: include
        messages of ack level `leader`."""
        found = [
            (reply, self.correlation(position))
            for position, reply in enumerate(self.replies)
            if reply
        ]
        if early:
            found += [(reply, self.correlation(at)) for at, reply in self.early.items()]
        return found


class Rules(NamedTuple):
    """What a stream's settings say. keyed_by_subject: each record's key is its subject.
    keeps_last_of_subjects: compaction keeps the last record of each subject."""

    keyed_by_subject: bool = False
    keeps_last_of_subjects: bool = False


NO_RULES: Final = Rules()


def admit(
    delivery: Delivery,
    stream_name: str,
    opened: Mapping[int, Opened] = NOTHING_OPENED,
    rules: Rules = NO_RULES,
) -> Admitted:
    """Decide what a stream of that name stores of `delivery`.

    opened: the envelopes of messages that had one, by position; their values, header blocks and
    replies are in the delivery.
    """
    admitted = Admitted(
        list(delivery.values), delivery.subjects, delivery.replies, delivery.header_blocks
    )
    outcomes: Sequence[Directives | JetstreamError] | None = None
    if admitted.header_blocks is not None:
        keys = keys_only(admitted.header_blocks)
        if keys is None:
            outcomes = inspect(admitted.header_blocks, admitted.values)
        elif opened:
            outcomes = [Directives(key=key) for key in keys]
        else:
            admitted.keys = list(keys)
    are_plain = is_plain_text(b"".join(delivery.subjects))
    if outcomes is None and are_plain and not opened and not rules.keyed_by_subject:
        return admitted
    if outcomes is None:
        found: Sequence[bytes | None] = admitted.keys or [None] * len(admitted.values)
        outcomes = [NOTHING if key is None else Directives(key=key) for key in found]
    return _follow(admitted, outcomes, stream_name, opened, rules)


def _follow(
    given: Admitted,
    outcomes: Sequence[Directives | JetstreamError],
    stream_name: str,
    opened: Mapping[int, Opened],
    rules: Rules,
) -> Admitted:
    """Apply each message's directives, and leave out refused messages."""
    followed: list[tuple[Directives, bytes]] = []  # with its correlation
    positions: list[int] = []
    refused: list[Refused] = []
    for position, asked in enumerate(outcomes):
        outcome, correlation = asked, b""
        if position in opened:
            correlation = opened[position].envelope.correlation
            outcome = _combined(outcome, opened[position])
        outcome = _check_subject_and_stream(outcome, stream_name, given.subjects[position])
        if isinstance(outcome, Directives) and (outcome.rollup or rules.keyed_by_subject):
            outcome = _ruled(outcome, given, position, rules)
        if isinstance(outcome, JetstreamError):
            refused.append(Refused(given.replies[position], outcome, correlation))
        else:
            followed.append((outcome, correlation))
            positions.append(position)
    kept = given.only(positions)
    kept.refused = refused
    kept.replies = list(kept.replies)
    for position, (directive, correlation) in enumerate(followed):
        _apply(kept, position, directive, correlation)
    if rules.keyed_by_subject:
        kept.keys = list(kept.subjects)
    elif any(directive.key is not None for directive, _ in followed):
        kept.keys = [directive.key for directive, _ in followed]
    return kept


def _ruled(
    asked: Directives, given: Admitted, position: int, rules: Rules
) -> Directives | JetstreamError:
    """What a message asks for, by the stream's settings."""
    if asked.rollup and not rules.keeps_last_of_subjects:
        return no_rollup_error()
    if not rules.keyed_by_subject:
        return asked
    if asked.key not in (None, given.subjects[position]):
        return other_key_error()
    blocks, value = given.header_blocks, given.values[position]
    if blocks is not None and deletes(blocks[position], value):
        return asked._replace(tombstone=True)
    return asked


def no_rollup_error() -> JetstreamError:
    return UnsupportedHeaderError(
        f"header {ROLLUP} is not supported on this stream: only one with compact and key: subject "
        "keeps the last record of each subject"
    )


def other_key_error() -> JetstreamError:
    """A record whose publisher gives a key although the stream has its own rule."""
    return InvalidRequestError(
        "the key of a record of this stream is its subject (key: subject): publish it without one"
    )


def _apply(kept: Admitted, position: int, directive: Directives, correlation: bytes) -> None:
    demand = Precondition(
        directive.message_id or None,
        directive.expected_offset,
        correlation,
        directive.expected_subject_end,
    )
    if demand != NO_PRECONDITION:
        kept.demands[position] = demand
    if directive.tombstone:
        kept.values[position] = None
    if directive.ack_level in (AckLevel.NONE, AckLevel.LEADER):
        reply, kept.replies[position] = kept.replies[position], b""
        if reply and directive.ack_level == AckLevel.LEADER:
            kept.early[position] = reply


def _combined(outcome: Directives | JetstreamError, opened: Opened) -> Directives | JetstreamError:
    """Combine what a message asks for in its headers and in its envelope. Asking for the same thing
    in both is an error."""
    if isinstance(outcome, JetstreamError):
        return outcome
    envelope, unheard = opened.envelope, asks_for(opened.around)
    if unheard:
        return UnsupportedHeaderError(
            f"header {unheard} is not supported around a record with headers of its own"
        )
    asked: dict[str, object] = {}
    if envelope.key is not None:
        asked["key"] = envelope.key
    if envelope.expected_offset != NO_EXPECTATION:
        asked["expected_offset"] = envelope.expected_offset
    if envelope.ack_leader:
        asked["ack_level"] = AckLevel.LEADER
    for name in asked:
        if getattr(outcome, name) is not None:
            return InvalidRequestError(f"{name} is set by the envelope and by a header")
    if envelope.value is None:
        asked["tombstone"] = True
    return outcome._replace(**asked)  # type: ignore[arg-type]  # by the names above


def _check_subject_and_stream(
    outcome: Directives | JetstreamError, stream_name: str, subject: bytes
) -> Directives | JetstreamError:
    if has_control_bytes(subject):
        return InvalidRequestError("the subject has control characters")
    if not subject.isascii():
        # NATS subjects are UTF-8 by specification; Arrow and Spark rely on it.
        try:
            subject.decode()
        except UnicodeDecodeError:
            return InvalidRequestError("the subject is not UTF-8")
    if isinstance(outcome, Directives) and outcome.expected_stream is not None:
        expected = outcome.expected_stream
        if expected != stream_name.encode():
            # Quote only a part: a nack that is too long for NATS would close the connection.
            quoted = expected[:64].decode("utf-8", "replace")
            return WrongStreamError(f"expected stream {quoted!a}, this is {stream_name!r}")
    return outcome
