"""Arrow arrays and scalars of Python values, made from buffers. Needs pyarrow.

`pa.array`, `pa.scalar`, and functions that are given a Python value load pandas wherever it is
installed, even for an integer whose type is given: two seconds, once for each process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_CODES = {4: "i", 8: "q"}


def integers(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    """kind: of 32 or 64 bits, a timestamp for example. Raises OverflowError."""
    raw = array(_CODES[kind.bit_width // 8], values)
    return pa.Array.from_buffers(kind, len(raw), [None, pa.py_buffer(raw)])


def strings(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """kind: `binary`, or `string` for UTF-8, which is not checked."""
    ends = accumulate((len(value or b"") for value in values), initial=0)
    offsets = pa.py_buffer(array("i", ends))
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    missing = sum(value is None for value in values)
    valid = None if not missing else pa.py_buffer(_bits([value is not None for value in values]))
    return pa.Array.from_buffers(kind, len(values), [valid, offsets, data], missing)


def _bits(flags: Sequence[bool]) -> bytes:
    number = int("".join("1" if flag else "0" for flag in reversed(flags)), 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def integer(value: int, kind: pa.DataType) -> pa.Scalar:
    """As `integers`."""
    return integers([value], kind)[0]


def null_if_empty(values: pa.Array | pa.ChunkedArray) -> Any:
    """Of `binary`: null where there are no bytes."""
    is_empty = pc.equal(pc.binary_length(values), integer(0, pa.int32()))
    return pc.if_else(is_empty, pa.nulls(1, pa.binary())[0], values)


def same_text(text: str, rows: int) -> pa.Array:
    """`text` in every row."""
    return pa.repeat(strings([text.encode()], pa.string())[0], rows)
