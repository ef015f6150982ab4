"""Engines that read a table while it changes: for the grace time they lose no file, whatever
happens, and afterwards they are told so, and never given a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("polars")

import duckdb
import polars
from pyiceberg.table import StaticTable

from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake import table as table_module
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.sweep import FolderSweeper, Sweeper
from jetstream_server.lake.table import StoredObject, StreamTable
from tests.support.lake_objects import encode

GRACE_US = 1000
ROWS = 10


class Scene:
    """A table of four objects in a folder, and who deletes what nobody needs."""

    def __init__(self, root: Path) -> None:
        self.store = FolderStore(root.as_uri())
        self.table = StreamTable(self.store, self.store.url, "cluster/7-0", {})
        self.sweeper = Sweeper(self.table, self.store, GRACE_US)
        self.folders = FolderSweeper(self.store, "cluster", GRACE_US)
        self.location, self.begin, self.end = "", 0, 0
        self.deleted: set[str] = set()
        for _ in range(4):
            self.commit()

    @property
    def url(self) -> str:
        return self.table.url_of(self.location)

    def commit(self, start: int = 0) -> None:
        self.begin = max(self.begin, start)
        batch = encode_batch([b"value"] * ROWS, b"orders.new")
        batch.stamp(self.end, 3, 1 + self.end)
        encoded = encode(batch.to_bytes())
        name = f"{self.table.folder}/data/{self.end}.parquet"
        self.store.put(name, encoded.data)
        added = StoredObject(name, len(encoded.data), encoded.facts)
        before = self.location
        self.location = self.table.append(before, added, lambda *_: None, start)
        self.table.mark(self.location, before)
        self.end = encoded.facts.end

    def sweep(self, at: int) -> None:
        if self.deleted:
            self.folders.sweep(self.deleted, MonotonicUs(at))
        else:
            self.sweeper.sweep(self.sweeper.listed(), self.location, MonotonicUs(at))


# What happens to the table. Each returns whether the table of before is then gone.


def is_committed_to(scene: Scene) -> bool:
    """So often that the snapshot of before is kept no more, but its objects are."""
    for _ in range(3):
        scene.commit()
    return False


def loses_what_was_purged(scene: Scene) -> bool:
    scene.commit(start=2 * ROWS)
    return True


def loses_what_is_old(scene: Scene) -> bool:
    before = scene.location
    scene.location, scene.begin = scene.table.trim(before, 0, 2 * ROWS)
    scene.table.mark(scene.location, before)
    return True


def is_deleted(scene: Scene) -> bool:
    scene.deleted = {scene.table.folder}
    return True


def is_taken_over_and_deleted(scene: Scene) -> bool:
    heir = StreamTable(scene.store, scene.store.url, "other/1-0", {})
    heir.adopt(scene.table.url_of(scene.table.folder))
    scene.deleted = {scene.table.folder}
    return False


# Engines. Each begins to read, and returns who goes on and tells the offsets.

Rest = Callable[[], list[int]]


def read_by_pyiceberg(url: str) -> Rest:
    scan = StaticTable.from_metadata(url).scan()
    return lambda: scan.to_arrow()["offset"].to_pylist()


def read_in_parts(url: str) -> Rest:
    batches: Iterator = iter(StaticTable.from_metadata(url).scan().to_arrow_batch_reader())
    found = next(batches)["offset"].to_pylist()
    return lambda: found + [each for batch in batches for each in batch["offset"].to_pylist()]


def read_by_duckdb(url: str) -> Rest:
    reader = StaticTable.from_metadata(url).scan().to_arrow_batch_reader()
    asked = duckdb.from_arrow(reader).project('"offset"')
    return lambda: [each for (each,) in asked.fetchall()]


def read_by_polars(url: str) -> Rest:
    frame = polars.scan_iceberg(url).select("offset")
    return lambda: frame.collect()["offset"].to_list()


ENGINES = (read_by_pyiceberg, read_in_parts, read_by_duckdb, read_by_polars)


@pytest.mark.parametrize(
    "change",
    [
        is_committed_to, loses_what_was_purged, loses_what_is_old, is_deleted,
        is_taken_over_and_deleted,
    ],
)  # fmt: skip
def test_who_reads_a_table_has_the_grace_time(
    tmp_path: Path, change: Callable[[Scene], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Else it warns.
    monkeypatch.setattr(table_module, "SNAPSHOTS_MAX", 2)
    scene = Scene(tmp_path)
    url, whole = scene.url, list(range(4 * ROWS))
    scene.sweep(0)
    begun = [read(url) for read in ENGINES]
    is_gone = change(scene)
    scene.sweep(5 * GRACE_US)
    scene.sweep(6 * GRACE_US - 1)
    for rest in (*begun, read_by_pyiceberg(url)):
        assert sorted(rest()) == whole
    scene.sweep(6 * GRACE_US)
    for read in ENGINES:
        if is_gone:
            with pytest.raises(Exception, match=r"(?i)no such file|not found"):
                _read(read, url)
        if not scene.deleted:
            assert sorted(_read(read, scene.url)) == list(range(scene.begin, scene.end))


def _read(read: Callable[[str], Rest], url: str) -> list[int]:
    return read(url)()
