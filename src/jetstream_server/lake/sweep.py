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
        listed = self.listed()
        return self.sweep_listed(listed, location_of(), now_us, dry_run)

    def listed(self) -> set[str]:
        """What lies in the stream's folder. Raises OSError."""
        prefix = f"{self._table.folder}/"
        listed = {each.name for each in self._store.list(prefix)}
        return {name for name in listed if name.startswith(prefix)}

    def sweep_listed(
        self, listed: set[str], location: str, now_us: MonotonicUs, dry_run: bool = False
    ) -> list[str]:
        """The rest of a sweep. **safety** location: read after the listing."""
        if not location:
            self._unreached.clear()
            return []
        self._table.check_is_ours(location)
        left = listed - self._table.reached(location)
        self._unreached = {name: self._unreached.get(name, now_us) for name in left}
        gone = sorted(
            name for name, since in self._unreached.items() if now_us - since >= self._grace_us
        )
        if not dry_run:
            for name in gone:
                self._store.delete(name)
                del self._unreached[name]
        return gone


class FolderSweeper:
    """Deletes the folders of streams that were deleted. Blocking. A new one begins a new grace
    time.

    **safety** A folder goes only if it was there, and its stream was not, in each sweep of a whole
    grace time. `is_deleted` must be certain: a stream that this node does not know yet is not
    deleted.
    """

    def __init__(self, store: Store, cluster_id: str, grace_us: int) -> None:
        self._store, self._folder, self._grace_us = store, f"{cluster_id}/", grace_us
        self._deleted: dict[int, MonotonicUs] = {}

    def sweep(self, is_deleted: Callable[[int], bool], now_us: MonotonicUs) -> list[int]:
        """Returns the ids of the streams whose folders are gone. Raises OSError."""
        names = self._store.folders(self._folder)
        ids = [int(each) for each in names if each.isascii() and each.isdigit()]
        found = [each for each in ids if is_deleted(each)]
        self._deleted = {each: self._deleted.get(each, now_us) for each in found}
        gone = [id_ for id_, since in self._deleted.items() if now_us - since >= self._grace_us]
        for each in gone:
            for listed in list(self._store.list(f"{self._folder}{each}/")):
                self._store.delete(listed.name)
            del self._deleted[each]
        return gone
