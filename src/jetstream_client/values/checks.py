"""Numbers and text that a program gives, checked on their way to a server."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Final, SupportsIndex

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NODE_ID_MAX

NODE_MAX: Final[int] = NODE_ID_MAX
NUMBER_MAX = 2**63 - 1


def to_int(what: str, number: SupportsIndex) -> int:
    """Return it. Raises TypeError for what is no whole number."""
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(number).__name__}") from None


def check_number(what: str, number: int, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return it. Raises InvalidRequestError for one that no field holds, TypeError for none."""
    number = to_int(what, number)
    if not least <= number <= most:
        raise InvalidRequestError(f"{what} is {number}; it must be from {least} to {most}")
    return number


def check_node(number: int) -> int:
    """Return the number of a node. Raises InvalidRequestError for one that no node has."""
    return check_number("the node", number, most=NODE_MAX)


def check_epoch(epoch: int | None) -> int | None:
    """The same for a stream's epoch; None: any."""
    return None if epoch is None else check_number("stream_epoch", epoch)


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


def names_in(what: str, names: Iterable[str]) -> list[str]:
    """As a list. Raises TypeError for a text, which is no list of its letters."""
    if isinstance(names, str):
        raise TypeError(f"{what} must be a list of names, not one str")
    return list(names)


def text_or_empty(what: str, text: str | None) -> str:
    """For a field in which nothing stands for all: "" for None. Raises InvalidRequestError for "",
    which a script passes whose variable is not set, and which must not mean all."""
    if text is None:
        return ""
    check_text(what, text)
    if not text:
        raise InvalidRequestError(f"{what} is empty: give one, or leave it out")
    return text
