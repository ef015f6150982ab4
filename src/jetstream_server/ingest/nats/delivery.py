"""The messages of one subscription that arrived in one read: the unit of ingest.

A delivery has one of two forms with the same interface. This one holds lists of Python objects. The
compiled one (_columns.pyx) holds positions in the bytes that were read, and makes objects only for
callers that need a list. Both give the same lists, the same batch and the same acks, byte for byte.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.subjects import has_control_bytes
from jetstream_server.ingest.nats.replies import AckPolicy, Replies


def is_plain_text(subjects: bytes) -> bool:
    return subjects.isascii() and not has_control_bytes(subjects)


class Delivery:
    """Parallel lists in wire order.

    replies: b"" for messages without one. header_blocks: verbatim, from `NATS/1.0` to the empty
    line, b"" for messages without headers; None when no message has any. may_be_enveloped: whether
    a value may begin like an envelope; ignored by comparisons, because it may be true needlessly.
    """

    __slots__ = ("header_blocks", "may_be_enveloped", "replies", "sid", "subjects", "values")

    def __init__(
        self,
        sid: int,
        subjects: list[bytes] | None = None,
        replies: list[bytes] | None = None,
        values: list[bytes] | None = None,
        header_blocks: list[bytes] | None = None,
        *,
        may_be_enveloped: bool = True,
    ) -> None:
        self.sid = sid
        self.may_be_enveloped = may_be_enveloped
        self.subjects: list[bytes] = [] if subjects is None else subjects
        self.replies: list[bytes] = [] if replies is None else replies
        self.values: list[bytes] = [] if values is None else values
        self.header_blocks = header_blocks

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return all(getattr(self, name) == getattr(other, name, None) for name in _COMPARED)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Delivery(sid={self.sid}, {len(self)} messages)"

    @property
    def is_plain(self) -> bool:
        """Whether the messages consist of values only: no headers, and ASCII subjects without
        control characters."""
        return self.header_blocks is None and is_plain_text(b"".join(self.subjects))

    @property
    def value_bytes(self) -> int:
        """The length of all values together, in bytes."""
        return sum(map(len, self.values))

    def encode(self) -> EncodedBatch:
        """Encode a plain delivery as a batch, not yet stamped."""
        return encode(self.values, self.subjects)

    def select(self, policy: AckPolicy) -> Replies:
        """The messages that may be answered."""
        return policy.select(self.replies)

    def remove_prefix(self, length: int) -> None:
        """Remove the first `length` bytes of each subject."""
        self.subjects = [subject[length:] for subject in self.subjects]

    def pad_header_blocks(self) -> None:
        """Add empty header blocks for the messages since the last one with headers."""
        blocks = self.header_blocks
        if blocks is not None:
            blocks.extend(repeat(b"", len(self.values) - len(blocks)))


_COMPARED: Final = ("header_blocks", "replies", "sid", "subjects", "values")
