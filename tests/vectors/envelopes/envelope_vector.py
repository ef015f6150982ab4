"""The published envelope vectors: NAME.hex is a NATS payload, NAME.json what it says.

JSON: `record` or `batch` names the kind and holds its fields as docs/protocol.md calls them, bytes
as Latin-1 text, null for null and for no key; `batch` of a batch is the name of a batch vector. A
file whose JSON has neither is a plain message, though it begins with the cookie; `why` says why.
Written once, by tests/vectors/envelopes/write.py; never rewritten.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.hex"))


def read_vector(name: str) -> tuple[bytes, dict[str, Any]]:
    """The payload and what it says."""
    payload = bytes.fromhex((FOLDER / f"{name}.hex").read_text("ascii"))
    expectation: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("ascii"))
    return payload, expectation


def write_vector(name: str, payload: bytes, expectation: dict[str, Any]) -> None:
    """Write a new vector, 16 bytes a line. Raises FileExistsError rather than rewrite one."""
    lines = [payload[at : at + 16].hex(" ", 4) for at in range(0, len(payload), 16)]
    with (FOLDER / f"{name}.hex").open("x", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    with (FOLDER / f"{name}.json").open("x", encoding="ascii") as file:
        file.write(json.dumps(expectation, indent=2) + "\n")
