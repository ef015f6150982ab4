"""The files that identify a folder, meta.json and metadata/group.json: JSON with a checksum.

    {"format": 1, "node_id": 0, …, "crc": "5a1c07e2"}

`crc` is the CRC32C of the other fields, as JSON with sorted keys and without blanks, so the layout
of the file does not matter. Files of earlier releases have no `crc`, nor has a file that a person
has corrected: such files are read without the check.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import crc32c

_CRC: Final = "crc"


def encode(fields: dict[str, Any], *, indent: int | None = None) -> bytes:
    """The bytes of a file with these fields."""
    return json.dumps({**fields, _CRC: _crc_of(fields)}, indent=indent).encode() + b"\n"


def decode(data: bytes, known: Collection[str]) -> dict[str, Any]:
    """The fields of a file. known: the names that a file without `crc` may have; any other name may
    be damage. Raises ValueError."""
    fields = bounded_json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    crc = fields.pop(_CRC, None)
    if crc is None:
        if unknown := sorted(set(fields) - set(known)):
            raise ValueError(f"there is no field {unknown[0]!r}")
    elif crc != _crc_of(fields):
        raise ValueError("it fails its CRC")
    return fields


def _crc_of(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"
