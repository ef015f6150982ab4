"""The lake as this process finds it in the store. Needs the packages of the extra `lake`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake.access import NAMES_MAX, Group, Swept, SweptFolder
from jetstream_server.lake.object_finder import LakeObjects
from jetstream_server.lake.stores import StoppableStore, Store
from jetstream_server.lake.sweep import FolderSweeper, Sweeper
from jetstream_server.lake.table import StreamTable

LISTINGS_MAX: Final = 2
"""A round and somebody who asks may sweep at once."""


class LocalLake:
    """A Lake."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = StoppableStore(store)
        self._objects = self.objects_of(self._store)
        self._sweepers: dict[str, Sweeper] = {}
        self._listings: dict[int, set[str]] = {}
        self._numbers = count(1)
        self._folders: FolderSweeper | None = None

    def objects_of(self, store: Store) -> LakeObjects:
        return LakeObjects(store)

    def table_of(self, store: Store, folder: str, properties: Mapping[str, str]) -> StreamTable:
        return StreamTable(store, store.url, folder, properties)

    def begin(self) -> None:
        """Nothing: it is ready."""

    def stop(self) -> None:
        self._store.stop()

    def metadata(self, location: str) -> bytes:
        data = self._store.get(location)
        try:
            is_table = "table-uuid" in bounded_json.loads(data.decode())
        except (ValueError, TypeError):
            is_table = False
        if not is_table:
            raise UnavailableError(f"the lake is damaged: {location} is not a table's metadata")
        return data

    def group(self, location: str, offset: int) -> Group:
        return self._objects.group(location, offset)

    def read_into(self, name: str, at: int, path: str) -> int:
        data = self._objects.read(name, at)
        with open(path, "wb") as file:
            file.write(data)
        return len(data)

    def offset_at(self, location: str, timestamp_us: int) -> int | None:
        return self._objects.offset_at(location, timestamp_us)

    def appended_at(self, location: str, offset: int) -> int:
        return self._objects.appended_at(location, offset)

    def list_folder(self, folder: SweptFolder) -> int:
        sweeper = self._sweepers.get(folder.name)
        if sweeper is None or folder.begins_anew:
            table = self.table_of(self._store, folder.name, folder.properties)
            sweeper = self._sweepers[folder.name] = Sweeper(table, self._store, folder.grace_us)
        number = next(self._numbers)
        self._listings[number] = sweeper.listed()
        while len(self._listings) > LISTINGS_MAX:
            del self._listings[min(self._listings)]
        return number

    def sweep(
        self, folder: SweptFolder, listing: int, location: str, now_us: MonotonicUs, dry_run: bool
    ) -> Swept:
        sweeper, listed = self._sweepers.get(folder.name), self._listings.pop(listing, None)
        if sweeper is None or listed is None:
            raise UnavailableError("what was listed is forgotten; try again")
        gone = sweeper.sweep(listed, location, now_us, dry_run=dry_run)
        waits = sorted(sweeper.waits_us(now_us).items(), key=lambda each: each[1])
        return Swept(
            gone[:NAMES_MAX], len(gone), waits[:NAMES_MAX], len(waits),
            sweeper.unknown[:NAMES_MAX], now_us,
        )  # fmt: skip

    def forget(self, folder: str) -> None:
        self._sweepers.pop(folder, None)

    def sweep_folders(
        self, cluster_id: str, grace_us: int, deleted: Collection[str], now_us: MonotonicUs
    ) -> Sequence[str]:
        if self._folders is None:
            self._folders = FolderSweeper(self._store, cluster_id, grace_us)
        return self._folders.sweep(deleted, now_us)
