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

DEFAULT_ACK_SUBJECTS: Final = ("_INBOX.>",)

# White space would end the protocol's field, a wildcard is no subject to publish to.
_ONE_TOKEN: Final = rb"[^\x00-\x20\x7f*>.]++"
_REST: Final = rb"[^\x00-\x20\x7f*>]++"


class Selection(NamedTuple):
    """The messages of a delivery that are to be answered.

    replies: where to. positions: which message of the delivery each belongs to, ascending.
    refused: how many had a reply that is not allowed.
    """

    replies: list[bytes]
    positions: Sequence[int]
    refused: int


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

    __slots__ = ("_all", "_one", "patterns")

    def __init__(self, ack_subjects: Sequence[str] = DEFAULT_ACK_SUBJECTS) -> None:
        """Raises InvalidRequestError for a pattern that is none. No patterns: no acks at all."""
        for pattern in ack_subjects:
            check_pattern(pattern)
        self.patterns = tuple(ack_subjects)
        one = b"|".join(map(_pattern_regex, ack_subjects)) or rb"(?!)"
        self._one = re.compile(b"(?:%b)" % one)
        # The newline is in no token, so a match of the joined replies is a match of each.
        self._all = re.compile(b"(?:(?:%b)\n)*+" % one)

    def allows(self, reply: bytes) -> bool:
        return self._one.fullmatch(reply) is not None

    def select(self, replies: list[bytes]) -> Selection:
        """Which of a delivery's replies (b"" for none) to answer."""
        if not any(replies):
            return Selection([], range(0), 0)
        if self._all.fullmatch(b"\n".join(replies) + b"\n"):
            return Selection(replies, range(len(replies)), 0)
        allowed = self._one.fullmatch
        positions = [index for index, reply in enumerate(replies) if reply and allowed(reply)]
        asked = len(replies) - replies.count(b"")
        return Selection([replies[i] for i in positions], positions, asked - len(positions))


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

    def acks(self, replies: Sequence[bytes], positions: Sequence[int], base_offset: int) -> bytes:
        """One PUB per reply, for the record at `base_offset` + its position (ascending)."""
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
            parts.append(self._of_one_length(replies[start:stop], sequences[start:stop], digits))
            start = stop
        return b"".join(parts)

    def _of_one_length(
        self, replies: Sequence[bytes], sequences: Sequence[int], digits: int
    ) -> bytes:
        """Twice as fast as formatting one ack at a time: one format over one flat tuple."""
        length = len(self._before) + digits + len(self._after)
        ack = b"PUB %%b %d\r\n" % length + _literal(self._before) + b"%d" + self._after + b"\r\n"
        fields: list[bytes | int] = [0] * (2 * len(replies))
        fields[0::2] = replies
        fields[1::2] = sequences
        return ack * len(replies) % tuple(fields)

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
