"""The changes of a replica's role that new metadata may bring."""

from __future__ import annotations

from enum import Enum, auto


class RoleChange(Enum):
    """A change made by `update`. The driver acts on changes in this order."""

    STOPPED_LEADING = auto()
    """**safety** Pending acks are dropped without an answer: the new leader may commit the
    records."""
    LEADS = auto()
    FOLLOWS = auto()
    """There is a new leader, or a new epoch of the same one: begin to fetch."""
    IDLES = auto()
    """There is no leader to follow."""
    FELL_BELOW_MINIMUM = auto()
    """Appended records cannot be committed at present: answer with an unknown outcome."""
