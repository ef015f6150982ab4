"""Plain acknowledgements among what a leaf link has sent: those that nobody waits for. Pure.

    LMSG $JS.ACK.domain.account.stream.consumer.….mark 4␍␊+ACK␍␊    or without a payload

There are as many as messages delivered: `_delivered.pyx` takes them in C if the extension was
built. Others are messages like all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_PLAIN = re.compile(
    rb"LMSG (\$JS\.ACK(?:\.[^. \x00-\x1f]+){4})\.[0-9]{1,19}\.([0-9]{1,18})(?:\.[0-9]{1,19}){3}"
    rb"\.([^. \x00-\x1f]+) (?:0\r\n|4\r\n\+ACK)\r\n"
)


class Acknowledged(NamedTuple):
    """consumer, mark: as in AckSubject. sequences: of the stream."""

    consumer: bytes
    mark: bytes
    sequences: list[int]


def pure_acknowledged(
    data: bytes, position: int
) -> tuple[list[tuple[bytes, bytes, list[int]]], int]:
    """The plain acknowledgements that follow each other from `position` on, those of one consumer
    together; and where something else begins."""
    found: list[tuple[bytes, bytes, list[int]]] = []
    while (plain := _PLAIN.match(data, position)) is not None:
        consumer, sequence, mark = plain.groups()
        if not found or found[-1][:2] != (consumer, mark):
            found.append((consumer, mark, []))
        found[-1][2].append(int(sequence))
        position = plain.end()
    return found, position


acknowledged: Callable[[bytes, int], tuple[list[tuple[bytes, bytes, list[int]]], int]]
acknowledged = pure_acknowledged
try:
    from jetstream_server.jetstream_api._delivered import acknowledged as _compiled
except ImportError:  # Built without a C compiler, or JETSTREAM_PURE is set.
    pass
else:
    acknowledged = _compiled
