"""The replies of a delivery that may be answered, and the acks sent to them.

Invariant.
* **safety** Nothing is sent to a reply that `ack_subjects` does not allow, nor to one that is not a
  plain literal subject: a publisher must not make this server publish to a subject that the
  publisher may not use, and a reply must not contain a second protocol line. Refused replies are
  counted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from jetstream_protocol.subjects import check_pattern
from jetstream_server.ingest.nats.compiled import compiled

DEFAULT_ACK_SUBJECTS: Final = ("_INBOX.>",)

# White space would end the protocol field, and a wildcard cannot be published to.
_ONE_TOKEN: Final = rb"[^\x00-\x20\x7f*>.]++"
_REST: Final = rb"[^\x00-\x20\x7f*>]++"


class Replies:
    """The messages of a delivery that will be answered.

    replies: the subjects to answer. positions: the position of each message in the delivery,
    ascending. refused: how many replies are not allowed. _columns.pyx has the compiled form.
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
        """The replies as objects."""
        return self._replies

    def positions(self) -> list[int]:
        """The position of each message in its delivery."""
        return list(self._positions)

    def at(self, positions: Sequence[int]) -> Replies:
        """The same replies, with their positions mapped through `positions`."""
        return Replies(self._replies, [positions[at] for at in self._positions], self.refused)

    def acks(self, before: bytes, after: bytes, base_offset: int) -> bytes:
        """One PUB for each reply: `before`, the sequence (offset + 1), `after`."""
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
        # Numbers with the same count of digits make payloads of equal length. The PUB line states
        # the length.
        while start < len(sequences):
            digits = len(str(sequences[start]))
            stop = bisect_left(sequences, 10**digits, start)
            length = len(before) + digits + len(after)
            # One format over one flat tuple is twice as fast as formatting one ack at a time.
            ack = b"PUB %%b %d\r\n" % length + literal(before) + b"%d" + literal(after) + b"\r\n"
            fields: list[bytes | int] = [0] * (2 * (stop - start))
            fields[0::2] = self._replies[start:stop]
            fields[1::2] = sequences[start:stop]
            parts.append(ack * (stop - start) % tuple(fields))
            start = stop
        return b"".join(parts)


class AckPolicy:
    """The reply subjects that may be answered, compiled from patterns."""

    __slots__ = ("_all", "_one", "matcher", "patterns")

    def __init__(self, ack_subjects: Sequence[str] = DEFAULT_ACK_SUBJECTS) -> None:
        """Raises InvalidRequestError for an invalid pattern. Without patterns nothing is
        acknowledged."""
        for pattern in ack_subjects:
            check_pattern(pattern)
        self.patterns = tuple(ack_subjects)
        self.matcher = None if compiled is None else compiled.ReplyMatcher(self.patterns)
        """The same patterns for compiled deliveries."""
        one = b"|".join(map(_pattern_regex, ack_subjects)) or rb"(?!)"
        self._one = re.compile(b"(?:%b)" % one)
        # A match of the joined replies is a match of each reply, if none of them has a newline.
        self._all = re.compile(b"(?:(?:%b)\n)*+" % one)

    def select(self, replies: list[bytes]) -> Replies:
        """The replies of a delivery that may be answered. replies: b"" for messages without one."""
        if not any(replies):
            return Replies([])
        joined = b"\n".join(replies) + b"\n"
        if joined.count(b"\n") == len(replies) and self._all.fullmatch(joined):
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


def literal(text: bytes) -> bytes:
    """Escape `text` for use in a %-format."""
    return text.replace(b"%", b"%%")
