"""The NATS headers with which publishers state what they want; docs/protocol.md explains them."""

from __future__ import annotations

import re
from typing import Final

KEY: Final = "Jetstream-Key"
ACK: Final = "Jetstream-Ack"
TOMBSTONE: Final = "Jetstream-Tombstone"
MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"

HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What the name of a header may be."""
