"""JSON that comes from elsewhere: a peer, a client, a file. Whatever it is, it is read, or refused
with ValueError. `json.loads` raises other errors as well: RecursionError for text that is nested
deeply, how deeply depends on the caller's own depth; and it makes numbers that `int` fails on."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Objects and arrays within each other. What we write has less than ten."""

_STRING_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([\[{])|[\]}]', re.DOTALL)
"""A string may lack its end, so that none is looked at twice."""


def loads(text: str | bytes | bytearray, *, finite: bool = True) -> Any:
    """Like `json.loads`. Raises ValueError for what is no JSON, or is nested deeper than DEPTH_MAX.
    finite: and for a number that is not finite."""
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if text.count("[") + text.count("{") > DEPTH_MAX:
        _check_depth(text)
    return _DECODER.decode(text) if finite else json.loads(text)


def _check_depth(text: str) -> None:
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[1]:
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
        elif text[found.start()] != '"':
            depth -= 1


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no number")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_refused)
