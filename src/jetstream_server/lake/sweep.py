"""Deletes what lies in the store and no table needs: what refused commits left, old metadata.

**safety** An object is deleted only if each sweep in a whole grace time has found it, and has found
that the table does not reach it. The pointer to the table is read after the listing, so that what
was committed meanwhile is reached. The grace time is counted here, by our own clock: neither the
store's clock nor the age of a file says since when nobody needs it. So the grace time is also how
long a reader of an earlier version of the table has, and it must be longer than any upload takes.
"""

from __future__ import annotations

from collections.abc import Callable

from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake.stores import Store
from jetstream_server.lake.table import StreamTable


class Sweeper:
    """Sweeps the folder of one stream. Blocking. A new one begins a new grace time."""

    def __init__(self, table: StreamTable, store: Store, grace_us: int) -> None:
        self._table, self._store, self._grace_us = table, store, grace_us
        self._unreached: dict[str, MonotonicUs] = {}
        """Since when each sweep has found it, and found that it is not needed."""

    @property
    def unreached(self) -> int:
        """How many objects wait for the end of their grace time."""
        return len(self._unreached)

    def sweep(
        self, location_of: Callable[[], str], now_us: MonotonicUs, dry_run: bool = False
    ) -> list[str]:
        """Delete what may go, and return its names. dry_run: delete nothing.

        location_of: reads the pointer to the table; "": there is no table. Nothing goes then: the
        metadata may have been lost, and the table be needed to adopt it. Raises OSError, ValueError
        for a table that is not this stream's, and what `location_of` raises; nothing is deleted
        then.
        """
        prefix = f"{self._table.folder}/"
        listed = {each.name for each in self._store.list(prefix)}
        location = location_of()
        if not location:
            self._unreached.clear()
            return []
        self._table.check_is_ours(location)
        left = {name for name in listed if name.startswith(prefix)} - self._table.reached(location)
        self._unreached = {name: self._unreached.get(name, now_us) for name in left}
        gone = sorted(
            name for name, since in self._unreached.items() if now_us - since >= self._grace_us
        )
        if not dry_run:
            for name in gone:
                self._store.delete(name)
                del self._unreached[name]
        return gone
