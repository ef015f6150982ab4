"""Text on its way to a server."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError


def check_text(what: str, text: str) -> None:
    """Raise InvalidRequestError for text that UTF-8 cannot encode. Arguments of a command may be
    any bytes, and Python turns those that are not UTF-8 into lone surrogates. Raises TypeError for
    what is no text, such as a list of names."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be one str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} is not valid Unicode") from error
