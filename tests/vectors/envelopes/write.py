"""Writes the vectors that do not exist yet: `python -m tests.vectors.envelopes.write`."""

from __future__ import annotations

import struct
from typing import Any

from jetstream_protocol.batch import crc32c
from jetstream_protocol.envelope import COOKIE
from tests.vectors import vector

BLOCK = "NATS/1.0\r\nsource: web\r\n\r\n"
NOTHING: dict[str, Any] = {
    "ack_inbox": "",
    "correlation": "",
    "expected_offset": -1,
    "ack_leader": False,
}
RECORDS: dict[str, dict[str, Any]] = {
    "record": {"value": "{}"},
    "record_empty_value": {"value": ""},
    "record_tombstone": {"value": None, "key": "k1"},
    "record_empty_key": {"value": "x", "key": ""},
    "record_everything": {
        "value": "{}",
        "key": "k1",
        "header_block": BLOCK,
        "ack_inbox": "_INBOX.a.1",
        "correlation": "c-17",
        "expected_offset": 42,
        "ack_leader": True,
    },
}
BATCHES: dict[str, dict[str, Any]] = {
    "batch": {"batch": "nine_records"},
    "batch_producer": {"batch": "producer", "ack_inbox": "_INBOX.a.1", "correlation": "c-18"},
    "batch_zstd": {"batch": "zstd", "expected_offset": 0, "ack_leader": True},
}


def sealed(kind: int, flags: int, said: dict[str, Any], key: bytes, block: bytes, rest: bytes,
           version: int = 1) -> bytes:  # fmt: skip
    """An envelope put together by hand: the vectors must not depend on the code they test."""
    inbox, correlation = said["ack_inbox"].encode(), said["correlation"].encode()
    checked = (
        struct.pack("<BBHq", version, kind, flags, said["expected_offset"])
        + struct.pack("<IIHH", len(key), len(block), len(inbox), len(correlation))
        + inbox + correlation + key + block + rest
    )  # fmt: skip
    return COOKIE + struct.pack("<I", crc32c(checked)) + checked


def main() -> None:
    payloads: dict[str, tuple[bytes, dict[str, Any]]] = {}
    for name, changes in RECORDS.items():
        said = {"value": None, "key": None, "header_block": "", **NOTHING, **changes}
        key, value = (said["key"] or "").encode(), (said["value"] or "").encode()
        flags = (said["key"] is not None) + 2 * (said["value"] is None) + 4 * said["ack_leader"]
        block = said["header_block"].encode()
        payloads[name] = sealed(1, flags, said, key, block, value), {"record": said}
    for name, changes in BATCHES.items():
        said = {**NOTHING, **changes}
        # As a producer sends it: what the leader stamps is zero.
        batch = bytearray(vector.BATCHES.read(said["batch"])[0])
        batch[16:40], batch[84:88] = bytes(24), bytes(4)
        flags = 4 * said["ack_leader"]
        payloads[name] = sealed(2, flags, said, b"", b"", bytes(batch)), {"batch": said}
    good = payloads["record"][0]
    payloads["plain_bad_crc"] = good[:8] + bytes(4) + good[12:], {"why": "the CRC does not match"}
    newer = sealed(1, 0, NOTHING, b"", b"", b"{}", version=2)
    payloads["plain_newer_version"] = newer, {"why": "version 2"}
    payloads["plain_cookie_only"] = COOKIE, {"why": "nothing after the cookie"}
    two_lines = sealed(1, 0, NOTHING | {"ack_inbox": "_INBOX.a\r\nPUB x"}, b"", b"", b"{}")
    payloads["plain_inbox_of_two_lines"] = two_lines, {"why": "the ack inbox is no subject"}
    for name, (payload, expectation) in payloads.items():
        if name not in vector.ENVELOPES.names:
            vector.ENVELOPES.write(name, payload, expectation)
            print(name)


if __name__ == "__main__":
    main()
