"""Sizes as programs and the command line give them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TypeAlias

from jetstream_client.values.checks import to_int
from jetstream_protocol.errors import InvalidRequestError

Size: TypeAlias = int | str
"""A number of bytes, or text like `512KiB` or `10GB`."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_in(text: str) -> int | None:
    """kB, MB, GB and TB are powers of 1000, KiB to TiB of 1024. None: it is no size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit, binary = match.groups()
    return int(Decimal(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def to_size(name: str, value: Size) -> int:
    """Bytes. Raises InvalidRequestError, which names the setting, TypeError for another type."""
    if not isinstance(value, str):
        return to_int(name, value)
    found = bytes_in(value)
    if found is None:
        raise InvalidRequestError(f"{name} {value!r} is not a size: say 512KiB, 10GB or a number")
    return found
