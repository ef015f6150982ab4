"""Text on its way to a server."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError


def check_text(what: str, text: str) -> None:
    """Raise InvalidRequestError for text that UTF-8 cannot encode. Arguments of a command may be
    any bytes, and Python turns those that are not UTF-8 into lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} is not valid Unicode") from error
