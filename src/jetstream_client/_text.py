"""Text on its way to a server."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError


def check_text(what: str, text: str) -> None:
    """Raise InvalidRequestError for what no UTF-8 holds: arguments of a command may be any bytes,
    and Python makes lone surrogates of those it cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} is not valid Unicode") from error
