"""The protocol lines of messages that one consumer delivers to one inbox. Pure.

    LMSG inbox $JS.ACK.….delivered.sequence.consumer-sequence.time.pending@subject length␍␊ value ␍␊

The subject is sent as NATS clients can read it. Nearly all that a delivery costs is here:
`_delivered.pyx` does it in C if the extension was built.
"""

from __future__ import annotations

from collections.abc import Callable

from jetstream_protocol.subjects import readable
from jetstream_server.consumers.collector import Delivery


def pure_lines(deliveries: list[Delivery], head: bytes, behind: bytes, queue: bytes) -> bytes:
    """One line with its payload for each. head: inbox, a space, and the reply's beginning. behind:
    the reply's end. queue: a space and the queue group; b"": none."""
    found = []
    for record, count, sequence, pending in deliveries:
        offset, appended_us, subject, value, headers, *_ = record
        subject = readable(subject)
        reply = b"%b%d.%d.%d.%d000.%d%b@%b%b" % (
            head, count, offset + 1, sequence, appended_us, pending, behind, subject, queue,
        )  # fmt: skip
        length = len(headers) + len(value)
        if headers:
            line = b"HMSG %b %d %d\r\n%b%b\r\n" % (reply, len(headers), length, headers, value)
        else:
            line = b"LMSG %b %d\r\n%b\r\n" % (reply, length, value)
        found.append(line)
    return b"".join(found)


lines: Callable[[list[Delivery], bytes, bytes, bytes], bytes] = pure_lines
try:
    from jetstream_server.jetstream_api import _delivered
except ImportError:  # Built without a C compiler, or JETSTREAM_PURE is set.
    pass
else:
    lines = _delivered.lines
