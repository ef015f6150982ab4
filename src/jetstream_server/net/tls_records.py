"""TLS records on their way to OpenSSL: a few at a time, and no more without data than a peer needs.

OpenSSL goes on reading until it has data, and does so within one call. Whoever sends records
without data (changes of keys, empty records, attempts to renegotiate), each twenty bytes long and
ten microseconds of work, would hold the event loop for as long as he sends. So a connection gets
its records here, counted. **safety** It ends with an error if too many of them held no data.
"""

from __future__ import annotations

RECORDS_AT_ONCE = 16
"""Records of one piece: less than half a millisecond, whatever they hold."""
HANDSHAKE_RECORDS_MAX = 256
"""Upper bound for one peer. A handshake takes about ten."""
EMPTY_MAX = 32
"""Records without data, as in BoringSSL. Each DATA_PER_EMPTY records with data make up for one."""
DATA_PER_EMPTY = 16
_HEADER_BYTES = 5


class TooManyRecordsError(Exception):
    """The peer sends records that lead to nothing."""


class RecordGate:
    """`received` takes what the socket gives; `take` returns it in pieces. What `take` returned
    must be read to its end before it is called again."""

    __slots__ = ("_empty", "_held", "_is_shaking", "_rest")

    def __init__(self) -> None:
        self._held = bytearray()
        self._rest = 0  # Bytes that are missing from the record that was taken last.
        self._empty = 0.0  # Records without data, after those that make up for them.
        self._is_shaking = True

    @property
    def has_more(self) -> bool:
        """Whether `take` would return anything."""
        return len(self._held) >= (1 if self._rest else _HEADER_BYTES)

    def received(self, data: bytes | memoryview) -> None:
        self._held += data

    def take(self) -> bytes:
        """The next bytes: of at most RECORDS_AT_ONCE records, the last perhaps incomplete. b"":
        there are none. Raises TooManyRecordsError."""
        if self._empty > (HANDSHAKE_RECORDS_MAX if self._is_shaking else EMPTY_MAX + 1):
            raise TooManyRecordsError("too many records without data")
        held, end = self._held, len(self._held)
        at = min(self._rest, end)
        self._rest -= at
        for _ in range(RECORDS_AT_ONCE):
            if end - at < _HEADER_BYTES:
                break
            next_at = at + _HEADER_BYTES + int.from_bytes(held[at + 3 : at + 5], "big")
            at, self._rest = min(next_at, end), max(next_at - end, 0)
            self._empty += 1
        piece = bytes(memoryview(held)[:at])
        del held[:at]
        return piece

    def shook_hands(self) -> None:
        """Note that the handshake is complete."""
        self._is_shaking = False
        self._empty = 0.0

    def had_data(self) -> None:
        """Note that a record held data."""
        self._empty = max(self._empty - 1 - 1 / DATA_PER_EMPTY, 0.0)
