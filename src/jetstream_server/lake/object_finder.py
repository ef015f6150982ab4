"""Finds and reads whole batches in the objects of tables, and remembers what it has learnt.

Blocking: for the threads of the reader. Needs the packages of the extra `lake`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from jetstream_protocol.errors import CorruptBatchError, UnavailableError
from jetstream_server.lake.access import Group
from jetstream_server.lake.parquet_object import Footer, decode_group, read_footer
from jetstream_server.lake.stores import Store
from jetstream_server.lake.table import ListedObject, StreamTable

TABLES_MAX: Final = 64
HEADERS_MAX: Final = 200_000
"""Of batches, and of columns of row groups, in the footers that are kept: each takes about
0.6 kB."""


@dataclass(slots=True)
class _Table:
    location: str
    objects: Sequence[ListedObject]
    manifests: dict[str, tuple[ListedObject, ...]]


class LakeObjects:
    """For any thread. Methods raise UnavailableError, CorruptBatchError and OSError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        """Of what is remembered."""
        self._asking = threading.Lock()
        """Nothing is read from the store twice at a time."""
        self._tables: dict[str, _Table] = {}
        """By their folders."""
        self._footers: dict[str, Footer] = {}

    def group(self, location: str, offset: int) -> Group:
        """The group that holds `offset`, in the table whose metadata is at `location`."""
        objects = self._objects(location)
        at = bisect_right(objects, offset, key=lambda each: each.begin) - 1
        if at < 0 or offset >= objects[at].end:
            raise UnavailableError(f"no object of the lake holds offset {offset}: {location}")
        found = objects[at]
        footer = self._footer(found)
        number = footer.group_of(offset)
        headers, positions = footer.headers[number], [0]
        for header in headers:
            positions.append(positions[-1] + header.length)
        offsets = [each.base_offset for each in headers]
        epochs = [each.leader_epoch for each in headers]
        appended_us = [each.append_timestamp for each in headers]
        return Group(
            found.name, number, offsets[0], headers[-1].next_offset, positions[-1], offsets,
            positions, epochs, appended_us,
        )  # fmt: skip

    def offset_at(self, location: str, timestamp_us: int) -> int | None:
        """The first offset of the batch that was appended at that time or after it, in the table
        at `location`; None: all are older."""
        objects = self._objects(location)
        at = bisect_left(objects, timestamp_us, key=lambda each: each.newest_us)
        if at == len(objects):
            return None
        headers = chain(*self._footer(objects[at]).headers)
        return next(
            (each.base_offset for each in headers if each.append_timestamp >= timestamp_us), None
        )

    def appended_at(self, location: str, offset: int) -> int:
        """When the batch that holds `offset` was appended, in the table at `location`."""
        group = self.group(location, offset)
        return group.appended_us[bisect_right(group.offsets, offset) - 1]

    def read(self, name: str, at: int) -> bytes:
        """The batches of a group that was found before: see Lake.read."""
        footer = self._known_footer(name)
        if footer is None:
            raise UnavailableError("too much of the lake is read at a time; try again")
        place = footer.groups[at]
        return decode_group(footer, at, self._store.get(name, place.position, place.length))

    def _objects(self, location: str) -> Sequence[ListedObject]:
        folder = location.partition("/metadata/")[0]
        table = self._known_table(folder)
        if table is not None and table.location == location:
            return table.objects
        with self._asking:
            return self._read_table(folder, location)

    def _known_table(self, folder: str) -> _Table | None:
        with self._lock:
            return self._tables.get(folder)

    def _read_table(self, folder: str, location: str) -> Sequence[ListedObject]:
        table = self._known_table(folder)
        if table is not None and table.location == location:
            return table.objects
        manifests = {} if table is None else dict(table.manifests)
        stream_table = StreamTable(self._store, self._store.url, folder, {})
        objects: Sequence[ListedObject] = ()
        damage: Exception | None = None
        try:
            objects = stream_table.objects(location, manifests)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  the reader is told: damage raises any
            damage = error
        if damage is not None:
            raise CorruptBatchError(f"the table at {location} is damaged: {damage!r}") from damage
        with self._lock:
            _make_room(self._tables, folder, TABLES_MAX - 1)
            self._tables[folder] = _Table(location, objects, manifests)
        return objects

    def _footer(self, found: ListedObject) -> Footer:
        footer = self._known_footer(found.name)
        if footer is None:
            with self._asking:
                footer = self._known_footer(found.name) or self._read_footer(found)
        return footer

    def _known_footer(self, name: str) -> Footer | None:
        with self._lock:
            return self._footers.get(name)

    def _read_footer(self, found: ListedObject) -> Footer:
        footer = read_footer(
            lambda position, length: self._store.get(found.name, position, length), found.length
        )
        if (footer.facts.begin, footer.facts.end) != (found.begin, found.end):
            raise CorruptBatchError("the object holds other records than the table says")
        with self._lock:
            # The count is of headers: an object of tiny batches has 65,536 of them.
            kept = HEADERS_MAX - _weight(footer)
            while self._footers and sum(map(_weight, self._footers.values())) > kept:
                del self._footers[next(iter(self._footers))]
            self._footers[found.name] = footer
        return footer


def _weight(footer: Footer) -> int:
    columns: int = footer.metadata.num_columns * footer.metadata.num_row_groups
    return sum(map(len, footer.headers)) + columns


def _make_room(kept: dict[str, Any], key: str, most: int) -> None:
    """Remove the oldest ones but `most`, and the one of `key`."""
    kept.pop(key, None)
    while len(kept) > most:
        del kept[next(iter(kept))]
