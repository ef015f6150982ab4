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


def text_or_empty(what: str, text: str | None) -> str:
    """For a field in which nothing stands for all: "" for None. Raises InvalidRequestError for "",
    which a script passes whose variable is not set, and which must not mean all."""
    if text is None:
        return ""
    check_text(what, text)
    if not text:
        raise InvalidRequestError(f"{what} is empty: give one, or leave it out")
    return text
