"""The header that says which trace a message belongs to (W3C Trace Context).

`traceparent: 00-<trace id>-<span id>-<flags>`; bit 0 of the flags says that the trace is recorded
("sampled"). A message whose trace is not recorded is like one without the header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_HEADER = re.compile(
    rb"\r\n[Tt]raceparent:[ \t]*00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})[ \t]*\r\n"
)


class TraceParent(NamedTuple):
    """The span in which a message was published. Neither id is 0."""

    trace_id: int
    span_id: int


def sampled_in(header_blocks: Sequence[bytes], count_max: int) -> list[tuple[int, TraceParent]]:
    """Position and parent of the first `count_max` messages whose trace is recorded.

    Blocks without the header cost one search over all of them together.
    """
    if b"raceparent:" not in b"".join(header_blocks):
        return []
    found: list[tuple[int, TraceParent]] = []
    for position, block in enumerate(header_blocks):
        match = _HEADER.search(block)
        if match is None or not int(match[3], 16) & 1:
            continue
        parent = TraceParent(int(match[1], 16), int(match[2], 16))
        if parent.trace_id and parent.span_id:
            found.append((position, parent))
            if len(found) == count_max:
                break
    return found
