"""Whole numbers on their way to a server."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError

NODE_MAX = 2**31 - 1
NUMBER_MAX = 2**63 - 1


def check_number(what: str, number: int, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return it. Raises InvalidRequestError for one that no field holds."""
    if not least <= number <= most:
        raise InvalidRequestError(f"{what} is {number}; it must be from {least} to {most}")
    return number


def check_node(number: int) -> int:
    """Return the number of a node. Raises InvalidRequestError for one that no node has."""
    return check_number("the node", number, most=NODE_MAX)


def check_epoch(epoch: int | None) -> int | None:
    """The same for a stream's epoch; None: any."""
    return None if epoch is None else check_number("stream_epoch", epoch)
