"""What a cursor, a consumer group, and a named member of one may be called."""

from __future__ import annotations

import re

from jetstream_protocol.errors import InvalidRequestError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


def is_cursor_name(name: str) -> bool:
    """Whether a cursor can have that name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_cursor_name(name: str) -> str:
    """Return the name. Raises InvalidRequestError for one that no cursor can have."""
    if not is_cursor_name(name):
        raise InvalidRequestError(
            f"invalid cursor name {name!r}: use 1 to 255 letters, digits, '_', '-' and '.'"
        )
    return name
