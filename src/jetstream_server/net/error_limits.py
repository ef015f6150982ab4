"""Limits the size of errors on the wire, whatever the request contained.

An error quotes names, files and candidates, and unknown callers choose names. Both ports send
errors through this module, so that no answer grows with a request: a data-plane head is at most 64
KiB, and gRPC clients accept 8 KiB of trailing metadata by default, with percent-encoding and
base64.
"""

from __future__ import annotations

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import common_pb2

MESSAGE_BYTES_MAX = 600
CANDIDATES_BYTES_MAX = 1200


def bounded_text(text: str) -> str:
    """At most MESSAGE_BYTES_MAX bytes of UTF-8. A shortened text ends with an ellipsis."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MESSAGE_BYTES_MAX:
        return data.decode()
    return data[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore") + "…"


def bounded(error: JetstreamError) -> common_pb2.Error:
    """The wire form of `error`: its message shortened, and as many candidates as fit."""
    found = error.to_proto()
    found.message = bounded_text(found.message)
    room = CANDIDATES_BYTES_MAX
    kept = 0
    for candidate in found.candidates:
        room -= len(candidate.encode())
        if room < 0:
            break
        kept += 1
    del found.candidates[kept:]
    return found
