"""Deletes what lies in the store and no table needs: what refused commits left, old metadata.

**safety** An object is deleted only if each sweep in a whole grace time has found it, and has found
that the table does not reach it. The pointer to the table is read after the listing, so that what
was committed meanwhile is reached. The grace time is counted here, by our own clock: neither the
store's clock nor the age of a file says since when nobody needs it. So the grace time is also how
long a reader of an earlier version of the table has, and it must be longer than any upload takes.

**safety** The metadata may have been put back from an older copy, and the pointer with it. So each
version of the table that was committed gets a marker in the store, and the marker of the version
before goes. What a marked version needs stays, if it has objects that the pointer's version has
not: whoever reads the pointer does not know better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake.stores import Store
from jetstream_server.lake.table import ADOPTED, COMMITTED, StreamTable

DELETED_AT_ONCE: Final = 1000


class Sweeper:
    """Sweeps the folder of one stream. Blocking. A new one begins a new grace time."""

    def __init__(self, table: StreamTable, store: Store, grace_us: int) -> None:
        self._table, self._store, self._grace_us = table, store, grace_us
        self.unreached: dict[str, MonotonicUs] = {}
        """The objects that wait for the end of their grace time: since when each sweep has found
        them, and found that they are not needed."""
        self.unknown: tuple[str, ...] = ()
        """Versions of the table that were committed, and that the pointer does not know of."""

    def listed(self) -> set[str]:
        """What lies in the stream's folder. Raises OSError."""
        prefix = f"{self._table.folder}/"
        listed = {each.name for each in self._store.list(prefix)}
        return {name for name in listed if name.startswith(prefix)}

    def sweep(
        self, listed: set[str], location: str, now_us: MonotonicUs, *, dry_run: bool = False
    ) -> list[str]:
        """Delete what may go, and return its names. dry_run: delete nothing.

        location: the pointer to the table, **safety** read after the listing. "": there is no
        table. Nothing goes then: the metadata may have been lost, and the table be needed to adopt
        it. Nor does anything from a folder whose objects another stream's table has taken over.
        Raises OSError, and ValueError for a table that is not this stream's; nothing is deleted
        then.
        """
        table = self._table
        if not location or _has(listed, f"{table.folder}/{ADOPTED}/"):
            self.unreached.clear()
            return []
        table.check_is_ours(location)
        if table.marker_of(location) not in listed and not dry_run:
            table.mark(location)
        needed = {table.marker_of(location), *table.reached(location)}
        self.unknown = tuple(self._unknown(listed, location))
        for each in self.unknown:
            needed |= {table.marker_of(each), *table.reached(each)}
        left = listed - needed
        self.unreached = {name: self.unreached.get(name, now_us) for name in left}
        gone = sorted(
            name for name, since in self.unreached.items() if now_us - since >= self._grace_us
        )
        for some in () if dry_run else _some_at_a_time(gone):
            self._store.delete(*some)
            for name in some:
                del self.unreached[name]
        return gone

    def waits_us(self, now_us: MonotonicUs) -> dict[str, int]:
        """What was found unneeded and is there, and how long it stays at least."""
        return {
            name: max(0, self._grace_us - (now_us - since))
            for name, since in self.unreached.items()
        }

    def _unknown(self, listed: set[str], location: str) -> list[str]:
        """The versions with a marker and objects that the one at `location` has not, and has not
        had to give up."""
        marked = self._table.marked(listed) - {location}
        if not marked:
            return []
        start, here = self._table.start(location), set(self._table.objects(location))
        return [
            each
            for each in sorted(marked)
            if any(it.end > start for it in set(self._table.objects(each)) - here)
        ]


class FolderSweeper:
    """Deletes the folders of streams that were deleted. Blocking. A new one begins a new grace
    time.

    **safety** A folder goes only if it was there, and its stream was deleted, in each sweep of a
    whole grace time. That it was deleted must be certain: a stream that this node does not know
    yet is not deleted, nor is one that the metadata has forgotten, as it was put back from an older
    copy.
    """

    def __init__(self, store: Store, cluster_id: str, grace_us: int) -> None:
        self._store, self._folder, self._grace_us = store, f"{cluster_id}/", grace_us
        self._deleted: dict[str, MonotonicUs] = {}

    def sweep(self, deleted: Collection[str], now_us: MonotonicUs) -> list[str]:
        """Returns the names of the folders that are gone. deleted: the folders of streams that were
        deleted (`folder_of`). Raises OSError."""
        names = self._store.folders(self._folder)
        found = [name for name in names if f"{self._folder}{name}" in deleted]
        self._deleted = {each: self._deleted.get(each, now_us) for each in found}
        gone = [name for name, since in self._deleted.items() if now_us - since >= self._grace_us]
        removed = []
        for each in gone:
            if self._remove(f"{self._folder}{each}"):
                del self._deleted[each]
                removed.append(each)
        return removed

    def _remove(self, folder: str) -> bool:
        """Returns whether it is gone. **safety** That a version was committed goes first, and
        then notes are looked for again: see `StreamTable.adopt`."""
        adopted, committed = f"{folder}/{ADOPTED}/", f"{folder}/{COMMITTED}/"
        for going in (committed, f"{folder}/"):
            names = [listed.name for listed in self._store.list(f"{folder}/")]
            if _has(names, adopted):
                return False
            for some in _some_at_a_time([name for name in names if name.startswith(going)]):
                self._store.delete(*some)
        return True


def _some_at_a_time(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), DELETED_AT_ONCE):
        yield names[at : at + DELETED_AT_ONCE]


def _has(names: Iterable[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
