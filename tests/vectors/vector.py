"""The published batch vectors: NAME.hex is a batch, NAME.json what it means and is made from.

They are for whoever reads or writes batches in another language; docs/file_formats.md describes
the JSON. Written once, by tests/vectors/write.py; the format is changed with a new version number,
never by rewriting a vector.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
VECTORS = sorted(path.stem for path in FOLDER.glob("*.hex"))


def read_vector(name: str) -> tuple[bytes, dict[str, Any]]:
    """The batch's bytes and its expectation."""
    data = bytes.fromhex((FOLDER / f"{name}.hex").read_text("ascii"))
    expectation: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("ascii"))
    return data, expectation


def write_vector(name: str, data: bytes, expectation: dict[str, Any]) -> None:
    """Write a new vector, 16 bytes a line. Raises FileExistsError rather than rewrite one."""
    lines = [data[at : at + 16].hex(" ", 4) for at in range(0, len(data), 16)]
    with (FOLDER / f"{name}.hex").open("x", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    with (FOLDER / f"{name}.json").open("x", encoding="ascii") as file:
        file.write(json.dumps(expectation, indent=2) + "\n")


def octets(column: Any) -> Any:
    """Bytes, nulls and lists of them as JSON writes them (latin-1), turned back."""
    if column is None or isinstance(column, str):
        return None if column is None else column.encode("latin-1")
    return [octets(item) for item in column]


def texts(column: Sequence[bytes | None]) -> list[str | None]:
    """A column as JSON writes it: latin-1, null for null."""
    return [None if item is None else item.decode("latin-1") for item in column]
