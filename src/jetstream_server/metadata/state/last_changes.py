"""When callers last changed what: a copy of a call that arrives late undoes no later change.

A command of a caller may name the revision at which it was sent (`made_at`). It is refused if a
later command of a caller about the same thing was carried out since, whether that changed anything
or not. A caller who still waits is told the revision that has been reached, and sends the command
again; nobody does so for a copy whose sender has given up.

So that the state stays small, only the last PLACES things are known, by a hash that nobody can
choose another name for. Of all others it is known that they were not changed after `floor`. Who
changes very many things costs others an attempt more, and not every attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from jetstream_protocol.errors import UnavailableError

PLACES = 1024
_HASH_BYTES = 8


class LastChanges:
    """Part of the replicated state: the same on every node."""

    __slots__ = ("_floor", "_revisions")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """values: of `to_dict`."""
        given = values or {"floor": 0, "revisions": ()}
        self._floor: int = given["floor"]
        # By revision.
        self._revisions: dict[int, int] = dict(given["revisions"])

    def check(self, what: str, made_at: int) -> None:
        """Raise UnavailableError if `what` was changed after `made_at`."""
        if what and self._revisions.get(_hash(what), self._floor) > made_at:
            raise UnavailableError(
                f"{what} was changed after this call was sent (at revision {made_at}); try again"
            )

    def note(self, what: str, revision: int) -> None:
        if not what:
            return
        place = _hash(what)
        self._revisions.pop(place, None)
        self._revisions[place] = revision
        if len(self._revisions) > PLACES:
            self._floor = self._revisions.pop(next(iter(self._revisions)))

    def to_dict(self) -> dict[str, Any]:
        """{}: nothing was changed."""
        revisions = list(self._revisions.items())
        return {"floor": self._floor, "revisions": revisions} if revisions else {}


def _hash(what: str) -> int:
    given = what.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(given, digest_size=_HASH_BYTES).digest(), "big")
