"""The published vectors: NAME.hex holds bytes, NAME.json what they mean.

They are for programs in other languages that read or write batches and envelopes. Each is written
once, by the write.py beside it; a format is changed with a new version number, never by rewriting
a vector.

docs/file_formats.md describes the JSON of batches. That of an envelope, a NATS payload: `record` or
`batch` names the kind and holds its fields as docs/protocol.md calls them, bytes as Latin-1 text,
null for null and for no key; `batch` of a batch is the name of a batch vector. A file whose JSON
has neither is a plain message, though it begins with the cookie; `why` says why.

encrypted/ has batches with the flag ENCRYPTED: `plain` is the vector of the batch that was
encrypted, beside what it was encrypted with.

metadata/ is for ourselves: commands of the metadata group in their order with the result of each
(journal.jsonl), and the state after the last (the lines of a snapshot, snapshot.jsonl).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Vectors:
    """Those of one folder."""

    folder: Path

    @property
    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.hex"))

    def read(self, name: str) -> tuple[bytes, dict[str, Any]]:
        """The bytes and what they mean."""
        data = bytes.fromhex((self.folder / f"{name}.hex").read_text("ascii"))
        expectation: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text("ascii"))
        return data, expectation

    def write(self, name: str, data: bytes, expectation: dict[str, Any]) -> None:
        """A new vector, 16 bytes a line. Raises FileExistsError rather than rewrite one."""
        lines = [data[at : at + 16].hex(" ", 4) for at in range(0, len(data), 16)]
        with (self.folder / f"{name}.hex").open("x", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        with (self.folder / f"{name}.json").open("x", encoding="ascii") as file:
            file.write(json.dumps(expectation, indent=2) + "\n")


BATCHES = Vectors(Path(__file__).parent)
ENVELOPES = Vectors(Path(__file__).parent / "envelopes")
ENCRYPTED = Vectors(Path(__file__).parent / "encrypted")


def octets(column: Any) -> Any:
    """Bytes, nulls and lists of them as JSON writes them (latin-1), turned back."""
    if column is None or isinstance(column, str):
        return None if column is None else column.encode("latin-1")
    return [octets(item) for item in column]


def texts(column: Sequence[bytes | None]) -> list[str | None]:
    """A column as JSON writes it: latin-1, null for null."""
    return [None if item is None else item.decode("latin-1") for item in column]
