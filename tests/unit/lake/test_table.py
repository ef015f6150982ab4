"""The Iceberg table of a stream: a chain of files, of which a compare-and-set chooses one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.table import StaticTable

from jetstream_protocol.batch import encode as encode_batch
from jetstream_server.lake.table import (
    SNAPSHOTS_MAX,
    StoredObject,
    StreamTable,
)
from tests.support.lake_objects import encode

DAY_US = 86_400_000_000


class Folder:
    """A store in a folder: objects are created once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        with open(self.root / name, "rb") as file:
            file.seek(position)
            return file.read(length)

    def names(self) -> set[str]:
        files = (each for each in self.root.rglob("*") if each.is_file())
        return {str(each.relative_to(self.root)) for each in files}


class MovedError(Exception):
    """The pointer is not what the committer believes."""


class Pointer:
    """The metadata group's part: a compare-and-set."""

    def __init__(self) -> None:
        self.location = ""
        self.end = 0

    def commit(self, expected: str, begin: int, end: int, last_epoch: int, location: str) -> None:
        if (expected, begin) != (self.location, self.end):
            raise MovedError
        self.location, self.end = location, end


class Place(NamedTuple):
    folder: Folder
    table: StreamTable
    pointer: Pointer

    def store(self, begin: int, rows: int = 10, us: int = 1, attempt: str = "a") -> StoredObject:
        batch = encode_batch([b"value %d" % at for at in range(rows)], b"orders.new")
        batch.stamp(begin, 3, us)
        encoded = encode(batch.to_bytes())
        name = f"s/data/{begin}-{attempt}.parquet"
        self.folder.put(name, encoded.data)
        return StoredObject(name, len(encoded.data), encoded.facts, (4,))

    def append(self, added: StoredObject) -> None:
        self.table.append(self.pointer.location, added, self.pointer.commit)

    def offsets(self) -> list[int]:
        url = self.table.url_of(self.pointer.location)
        found: list[int] = StaticTable.from_metadata(url).scan().to_arrow()["offset"].to_pylist()
        return sorted(found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = Folder(tmp_path)
    table = StreamTable(folder, f"file://{tmp_path}", "s", {"jetstream.cluster-id": "c"})
    return Place(folder, table, Pointer())


def test_a_reader_of_iceberg_sees_what_was_appended(place: Place) -> None:
    for begin in (0, 10, 20):
        place.append(place.store(begin, us=1 + begin * DAY_US))
    assert place.offsets() == list(range(30))
    assert [(each.begin, each.end) for each in place.table.objects(place.pointer.location)] == [
        (0, 10),
        (10, 20),
        (20, 30),
    ]


def test_polars_sees_what_was_appended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Else it warns.
    polars = pytest.importorskip("polars")
    place.append(place.store(0))
    place.append(place.store(10))
    frame = polars.scan_iceberg(place.table.url_of(place.pointer.location)).collect()
    assert sorted(frame["offset"].to_list()) == list(range(20))
    assert set(frame["subject"].to_list()) == {"orders.new"}


def test_a_refused_commit_changes_nothing_and_is_not_repeated(place: Place) -> None:
    place.append(place.store(0))
    stale = place.pointer.location
    place.append(place.store(10))
    asked = []

    def commit(*given: object) -> None:
        asked.append(given)
        place.pointer.commit(*given)  # type: ignore[arg-type]

    with pytest.raises(MovedError):
        place.table.append(stale, place.store(10, attempt="b"), commit)
    assert len(asked) == 1
    assert place.offsets() == list(range(20))
    place.append(place.store(20))
    assert place.offsets() == list(range(30))


def test_what_a_refused_commit_leaves_is_not_reached(place: Place) -> None:
    place.append(place.store(0))
    before = place.folder.names()
    assert place.table.reached(place.pointer.location) == before
    refused = Pointer()
    refused.location = "other"
    with pytest.raises(MovedError):
        place.table.append(place.pointer.location, place.store(10, attempt="lost"), refused.commit)
    left = place.folder.names() - before
    assert "s/data/10-lost.parquet" in left
    assert not left & place.table.reached(place.pointer.location)


def test_old_snapshots_go_and_their_records_stay(place: Place) -> None:
    count = SNAPSHOTS_MAX + 3
    for at in range(count):
        place.append(place.store(10 * at))
    url = place.table.url_of(place.pointer.location)
    assert len(StaticTable.from_metadata(url).metadata.snapshots) == SNAPSHOTS_MAX
    assert place.offsets() == list(range(10 * count))
    assert len(place.table.objects(place.pointer.location)) == count
    assert place.table.reached(place.pointer.location) < place.folder.names()


def test_a_table_says_what_it_is_of(place: Place) -> None:
    place.append(place.store(0))
    properties = StaticTable.from_metadata(
        place.table.url_of(place.pointer.location)
    ).metadata.properties
    assert properties["jetstream.cluster-id"] == "c"
    assert properties["jetstream.end-offset"] == "10"
    assert properties["jetstream.leader-epoch"] == "3"
    assert properties["commit.retry.num-retries"] == "0"


def test_only_what_is_in_the_store_has_a_name(place: Place) -> None:
    """Somebody may have made a table that names other files of the machine."""
    url, table = place.table.url, place.table
    assert table.name_of(f"{url}/s/data/x") == "s/data/x"
    for wrong in (f"{url}//etc/passwd", f"{url}/s/../../x", f"{url}/s//x", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="is not in the store"):
            table.name_of(wrong)


def test_an_object_of_two_days_is_refused(place: Place) -> None:
    added = place.store(0)
    two = replace(added.facts, last_us=added.facts.last_us + DAY_US)
    with pytest.raises(ValueError, match="one UTC day"):
        place.append(added._replace(facts=two))


def test_a_filter_by_offset_reads_only_the_objects_that_have_it(place: Place) -> None:
    for begin in (0, 10, 20):
        place.append(place.store(begin))
    table = StaticTable.from_metadata(place.table.url_of(place.pointer.location))
    planned = list(table.scan(row_filter="offset >= 12 and offset < 14").plan_files())
    assert [each.file.file_path.rsplit("/", 1)[1] for each in planned] == ["10-a.parquet"]


def test_objects_beyond_so_many_bytes_leave_the_table(place: Place) -> None:
    for begin in (0, 10, 20, 30):
        place.append(place.store(begin))
    sizes = [each.length for each in place.table.objects(place.pointer.location)]
    for bytes_max, begin in ((0, 0), (sum(sizes[1:]) + 1, 0), (sum(sizes[1:]), 10), (1, 30)):
        location = place.pointer.location
        place.pointer.location, start = place.table.trim(location, 0, bytes_max=bytes_max)
        assert (start, place.offsets()) == (begin, list(range(begin, 40)))


def test_old_objects_leave_the_table_and_others_stay(place: Place) -> None:
    for begin in (0, 10, 20, 30):
        place.append(place.store(begin, us=1 + begin))
    location = place.pointer.location
    assert place.table.trim(location, 5) == (location, 5), "one has records after that"
    place.pointer.location, start = place.table.trim(location, 12)
    assert (start, place.offsets()) == (12, list(range(10, 40)))
    place.pointer.location, start = place.table.trim(place.pointer.location, 12, oldest_us=31)
    assert (start, place.offsets()) == (30, list(range(30, 40)))
    place.append(place.store(40))
    assert place.offsets() == list(range(30, 50))
    place.pointer.location, start = place.table.trim(place.pointer.location, 50)
    assert (start, place.offsets()) == (50, [])
    assert place.table.objects(place.pointer.location) == []
    place.append(place.store(50))
    assert place.offsets() == list(range(50, 60))
