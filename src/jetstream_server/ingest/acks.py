"""Acknowledgements: who may get one, and what it says.

An ack is a NATS message to the publisher's reply subject. Its payload is the JSON that the NATS
client libraries' `js.publish()` already understands (docs/protocol.md, "Acks"):

    {"stream":"orders","seq":43}                                        seq = offset + 1
    {"stream":"orders","seq":1043,"count":1000,"duplicate":true,"correlation":"c-17"}
    {"error":{"code":503,"err_code":20012,"description":"…"},"stream":"orders","seq":0}

The last three fields only where they apply: the first of a batch, the others as asked for.

Invariants.
* **safety** Nothing is sent to a reply that `ack_subjects` does not allow, nor to one that is not a
  plain literal subject: a publisher must not make this server publish where it may not itself, and
  a reply must not be able to smuggle a second protocol line. Refused replies are counted.
* Whole batches are formatted at once: no Python statement runs per ack that says the usual.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from jetstream_protocol.errors import CODES, JetstreamError
from jetstream_protocol.subjects import check_pattern
from jetstream_server.ingest.compiled import compiled

DEFAULT_ACK_SUBJECTS: Final = ("_INBOX.>",)

# White space would end the protocol's field, a wildcard is no subject to publish to.
_ONE_TOKEN: Final = rb"[^\x00-\x20\x7f*>.]++"
_REST: Final = rb"[^\x00-\x20\x7f*>]++"


class Replies:
    """The messages of a delivery that are to be answered.

    replies: where to. positions: which message of the delivery each belongs to, ascending.
    refused: how many had a reply that is not allowed. _columns.pyx has the compiled form.
    """

    __slots__ = ("_positions", "_replies", "refused")

    def __init__(
        self, replies: list[bytes], positions: Sequence[int] = range(0), refused: int = 0
    ) -> None:
        self._replies = replies
        self._positions = positions
        self.refused = refused

    def __len__(self) -> int:
        return len(self._replies)

    def to_list(self) -> list[bytes]:
        """Where to, for those that need objects."""
        return self._replies

    def positions(self) -> list[int]:
        """Of each in its delivery."""
        return list(self._positions)

    def at(self, positions: Sequence[int]) -> Replies:
        """The same, where `positions` says which message each message of the delivery is."""
        return Replies(self._replies, [positions[at] for at in self._positions], self.refused)

    def acks(self, before: bytes, after: bytes, base_offset: int) -> bytes:
        """One PUB each: `before`, the sequence (offset + 1), `after`."""
        positions = self._positions
        first_sequence = base_offset + 1
        if isinstance(positions, range) and positions.step == 1:
            sequences: Sequence[int] = range(
                positions.start + first_sequence, positions.stop + first_sequence
            )
        else:
            sequences = [first_sequence + position for position in positions]
        parts = []
        start = 0
        # All numbers of as many digits make payloads of one length, which is in the PUB line.
        while start < len(sequences):
            digits = len(str(sequences[start]))
            stop = bisect_left(sequences, 10**digits, start)
            length = len(before) + digits + len(after)
            # Twice as fast as formatting one ack at a time: one format over one flat tuple.
            ack = b"PUB %%b %d\r\n" % length + _literal(before) + b"%d" + _literal(after) + b"\r\n"
            fields: list[bytes | int] = [0] * (2 * (stop - start))
            fields[0::2] = self._replies[start:stop]
            fields[1::2] = sequences[start:stop]
            parts.append(ack * (stop - start) % tuple(fields))
            start = stop
        return b"".join(parts)


class Answer(NamedTuple):
    """An acknowledgement that says more than stream and sequence.

    end_offset: behind the last record. record_count: of a batch, 0 for a single record.
    correlation: b"" for none.
    """

    reply: bytes
    end_offset: int
    record_count: int = 0
    duplicate: bool = False
    correlation: bytes = b""


class AckPolicy:
    """The reply subjects that may be answered, compiled from patterns."""

    __slots__ = ("_all", "_one", "matcher", "patterns")

    def __init__(self, ack_subjects: Sequence[str] = DEFAULT_ACK_SUBJECTS) -> None:
        """Raises InvalidRequestError for a pattern that is none. No patterns: no acks at all."""
        for pattern in ack_subjects:
            check_pattern(pattern)
        self.patterns = tuple(ack_subjects)
        self.matcher = None if compiled is None else compiled.ReplyMatcher(self.patterns)
        """The same patterns for compiled deliveries."""
        one = b"|".join(map(_pattern_regex, ack_subjects)) or rb"(?!)"
        self._one = re.compile(b"(?:%b)" % one)
        # The newline is in no token, so a match of the joined replies is a match of each.
        self._all = re.compile(b"(?:(?:%b)\n)*+" % one)

    def allows(self, reply: bytes) -> bool:
        return self._one.fullmatch(reply) is not None

    def select(self, replies: list[bytes]) -> Replies:
        """Which of a delivery's replies (b"" for none) to answer."""
        if not any(replies):
            return Replies([])
        if self._all.fullmatch(b"\n".join(replies) + b"\n"):
            return Replies(replies, range(len(replies)))
        allowed = self._one.fullmatch
        positions = [index for index, reply in enumerate(replies) if reply and allowed(reply)]
        asked = len(replies) - replies.count(b"")
        return Replies([replies[i] for i in positions], positions, asked - len(positions))


def _pattern_regex(pattern: str) -> bytes:
    special = {"*": _ONE_TOKEN, ">": _REST}
    return rb"\.".join(
        special[token] if token in special else re.escape(token.encode())
        for token in pattern.split(".")
    )


class AckFormat:
    """The acks of one stream, ready to be filled in."""

    __slots__ = ("_after", "_before", "_name")

    def __init__(self, stream_name: str) -> None:
        self._name = json.dumps(stream_name)
        self._before = b'{"stream":%b,"seq":' % self._name.encode()
        self._after = b"}"

    def acks(self, replies: Replies, base_offset: int) -> bytes:
        """One PUB per reply, for the record at `base_offset` + its position (ascending)."""
        return replies.acks(self._before, self._after, base_offset)

    def answer(self, answer: Answer) -> bytes:
        """One PUB, of an ack that says more."""
        payload = b"".join((
            b"%b%d" % (self._before, answer.end_offset),
            b',"count":%d' % answer.record_count if answer.record_count else b"",
            b',"duplicate":true' if answer.duplicate else b"",
            _correlated(answer.correlation),
            self._after,
        ))  # fmt: skip
        return b"PUB %b %d\r\n%b\r\n" % (answer.reply, len(payload), payload)

    def nacks(
        self, replies: Sequence[bytes], error: JetstreamError, correlation: bytes = b""
    ) -> bytes:
        """One PUB per reply, all saying why the record was not stored."""
        payload = self.nack_payload(error, correlation)
        nack = b"PUB %%b %d\r\n" % len(payload) + _literal(payload) + b"\r\n"
        return nack * len(replies) % tuple(replies)

    def nack_payload(self, error: JetstreamError, correlation: bytes = b"") -> bytes:
        spelling = CODES[type(error)]
        # Exactly these three: nats-py passes them on as keyword arguments.
        fields = {
            "code": spelling.nats_code,
            "err_code": spelling.nats_err_code,
            "description": error.message,
        }
        text = json.dumps(fields, separators=(",", ":"))
        said = f'{{"error":{text},"stream":{self._name},"seq":0'.encode()
        return said + _correlated(correlation) + b"}"


def _correlated(correlation: bytes) -> bytes:
    """The field that repeats what the asker called its message; b"" for none."""
    return b',"correlation":%b' % json.dumps(correlation.decode()).encode() if correlation else b""


def _literal(text: bytes) -> bytes:
    """`text` as a part of a %-format."""
    return text.replace(b"%", b"%%")
