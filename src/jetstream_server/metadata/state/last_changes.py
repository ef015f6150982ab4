"""When callers last changed what: a copy of a call that arrives late undoes no later change.

A command of a caller may name the revision at which it was sent (`made_at`). It is refused if a
later command of a caller about the same thing was carried out since, whether that changed anything
or not. A caller who still waits is told the revision that has been reached, and sends the command
again; nobody does so for a copy whose sender has given up.

Things are told apart by a hash, so that the state stays small: a collision costs an attempt more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from jetstream_protocol.errors import UnavailableError

PLACES = 1024


class LastChanges:
    """Part of the replicated state: the same on every node."""

    __slots__ = ("_revisions",)

    def __init__(self, revisions: Iterable[tuple[int, int]] = ()) -> None:
        self._revisions = dict(revisions)

    def check(self, what: str, made_at: int) -> None:
        """Raise UnavailableError if `what` was changed after `made_at`."""
        if what and self._revisions.get(_place(what), 0) > made_at:
            raise UnavailableError(
                f"{what} was changed after this call was sent (at revision {made_at}); try again"
            )

    def note(self, what: str, revision: int) -> None:
        if what:
            self._revisions[_place(what)] = revision

    def to_list(self) -> list[tuple[int, int]]:
        return sorted(self._revisions.items())


def _place(what: str) -> int:
    return zlib.crc32(what.encode("utf-8", "surrogatepass")) % PLACES
