"""A range of a log is copied whole and checked, or nothing names it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.table import StaticTable

from jetstream_protocol import typed_json
from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_server.lake import parquet_object, worker
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.object_finder import LakeObjects
from jetstream_server.lake.stores import StoreAwayError, StoreOptions, check_url
from jetstream_server.lake.table import DAY_US, ListedObject, StreamTable
from jetstream_server.lake.tasks import AdoptTask
from jetstream_server.lake.worker import Task, answer_to, copy
from tests.support.lake_objects import decode, encode
from tests.support.log_batches import stamped


def no_pause(_: int) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "lake").mkdir()
    return FolderStore((tmp_path / "lake").as_uri())


def task(folder: Path, data: bytes, begin: int, end: int, **others: object) -> Task:
    path = folder / "segment"
    path.write_bytes(b"before" + data + b"after")
    made = Task(
        store=StoreOptions(""), folder="cluster/7", location="", path=str(path), position=6,
        length=len(data), begin=begin, end=end, start=begin, attempt="a", bytes_per_second=1 << 40,
        parent=0,
    )  # fmt: skip
    return replace(made, **others)  # type: ignore[arg-type]


def listed(store: FolderStore, answer: dict[str, Any]) -> list[ListedObject]:
    return StreamTable(store, store.url, "cluster/7", {}).objects(str(answer["location"]))


def test_what_is_copied_is_the_same(tmp_path: Path, store: FolderStore) -> None:
    first = stamped(5, records=3, epoch=1) + stamped(8, records=2, epoch=2, timestamp=9)
    one = copy(task(tmp_path, first, 5, 10), store, no_pause)
    assert (one["end"], one["last_epoch"], one["length"]) == (10, 2, len(first))
    second = stamped(10, epoch=2, timestamp=9)
    location = str(one["location"])
    two = copy(
        task(tmp_path, second, 10, 11, location=location, start=5, attempt="b"), store, no_pause
    )
    objects = listed(store, two)
    assert [(each.begin, each.end) for each in objects] == [(5, 10), (10, 11)]
    assert [decode(store.get(each.name)) for each in objects] == [first, second]
    assert listed(store, one) == objects[:1], "earlier versions of the table stay"


def test_objects_are_read_by_groups_of_whole_batches(
    tmp_path: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 250_000)
    data = b"".join(stamped(offset, bytes(100_000)) for offset in range(8))
    answer = copy(task(tmp_path, data, 0, 8), store, no_pause)
    objects = LakeObjects(store)
    groups = [objects.group(answer["location"], offset) for offset in range(8)]
    assert [each.base for each in groups] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert b"".join(objects.read(each.name, each.at) for each in groups[::2]) == data
    assert sum(each.length for each in groups[::2]) == len(data)


def test_an_attempt_before_leaves_nothing_in_the_way(tmp_path: Path, store: FolderStore) -> None:
    data = stamped(0)
    first = copy(task(tmp_path, data, 0, 1, attempt="a"), store, no_pause)
    second = copy(task(tmp_path, data, 0, 1, attempt="b"), store, no_pause)
    assert first["location"] != second["location"]
    with pytest.raises(FileExistsError):
        copy(task(tmp_path, data, 0, 1, attempt="b"), store, no_pause)


@pytest.mark.parametrize(
    ("data", "begin", "end"),
    [
        pytest.param(stamped(0) + stamped(1), 0, 1, id="goes on"),
        pytest.param(stamped(1), 0, 2, id="begins later"),
        pytest.param(stamped(0), 1, 2, id="ends before"),
        pytest.param(stamped(0) + stamped(2), 0, 3, id="has a hole"),
        pytest.param(stamped(0, epoch=2) + stamped(1, epoch=1), 0, 2, id="goes back in epochs"),
        pytest.param(stamped(0)[:-8] + b"damaged!", 0, 1, id="is damaged"),
        pytest.param(stamped(0)[:-8], 0, 1, id="is cut short"),
        pytest.param(b"", 0, 0, id="is empty"),
    ],
)
def test_what_is_not_the_range_is_not_copied(
    tmp_path: Path, store: FolderStore, data: bytes, begin: int, end: int
) -> None:
    with pytest.raises(CorruptBatchError):
        copy(task(tmp_path, data, begin, end), store, no_pause)
    assert not list(store.list("cluster/7/metadata/"))


def test_an_object_ends_at_midnight_and_after_so_many_batches(
    tmp_path: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1, DAY_US - 1, DAY_US, DAY_US, DAY_US]
    parts = [stamped(at, timestamp=us) for at, us in enumerate(times)]
    monkeypatch.setattr(worker, "BATCHES_MAX", 2)
    location, ends = "", [0]
    while ends[-1] < 5:
        begin = ends[-1]
        data = b"".join(parts[begin:])
        answer = copy(
            task(tmp_path, data, begin, 5, location=location, start=0, attempt=str(begin)),
            store, no_pause,
        )  # fmt: skip
        location = answer["location"]
        ends.append(answer["end"])
    assert ends == [0, 2, 4, 5]
    assert [(each.begin, each.end) for each in listed(store, answer)] == [(0, 2), (2, 4), (4, 5)]


def test_the_age_of_records_is_since_they_were_appended(tmp_path: Path, store: FolderStore) -> None:
    """Whatever time their publishers have given them."""
    batch = encode_batch([b"value"], b"s", timestamps=[DAY_US - 1])
    batch.stamp(0, 1, 1_000)
    answer = copy(task(tmp_path, batch.to_bytes(), 0, 1), store, no_pause)
    location = answer["location"]
    assert [each.newest_us for each in listed(store, answer)] == [1_000]
    assert LakeObjects(store).offset_at(location, 1_001) is None
    assert StreamTable(store, store.url, "cluster/7", {}).trim(location, 0, 1_001)[1] == 1


def test_damage_that_parquet_does_not_see_is_refused() -> None:
    value = Random(44).randbytes(1000)
    whole = encode(stamped(0, value)).data
    at = whole.index(value) + 500
    with pytest.raises(CorruptBatchError, match="CRC"):
        decode(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def test_empty_batches_are_copied(tmp_path: Path, store: FolderStore) -> None:
    """As compaction leaves them, also at both ends."""
    data = b""
    for base, records in ((0, 0), (3, 1), (4, 0), (7, 0)):
        batch = encode_batch(
            [b"v"] * records, b"", offset_deltas=[0] * records,
            last_offset_delta=0 if records else 2,
        )  # fmt: skip
        batch.stamp(base, 1, base)
        data += batch.to_bytes()
    answer = copy(task(tmp_path, data, 0, 10), store, no_pause)
    (found,) = listed(store, answer)
    assert (found.begin, found.end, decode(store.get(found.name))) == (0, 10, data)


def test_a_compressed_batch_comes_back_plain(tmp_path: Path, store: FolderStore) -> None:
    batch = encode_batch([b"value" * 100] * 20, b"s", compression=Flags.ZSTD)
    batch.stamp(0, 1, 1)
    answer = copy(task(tmp_path, batch.to_bytes(), 0, 20), store, no_pause)
    (found,) = listed(store, answer)
    assert len(decode(store.get(found.name))) > len(batch.to_bytes())


def test_an_object_has_the_columns_of_the_schema_at_its_time(
    tmp_path: Path, store: FolderStore
) -> None:
    data = stamped(0, b'{"a": 1}')
    made = task(tmp_path, data, 0, 1, schema="a int", schema_version=4)
    answer = copy(made, store, no_pause)
    (found,) = listed(store, answer)
    whole = store.get(found.name)
    assert decode(whole) == data
    table = pq.read_table(pa.BufferReader(whole))
    assert table.select(["a", "_error"]).to_pylist() == [{"a": 1, "_error": None}]
    assert json.loads(table.schema.metadata[b"jetstream.object"])["schema_version"] == 4
    properties = StaticTable.from_metadata(f"{store.url}/{answer['location']}").properties
    assert properties["jetstream.schema"] == "a int"
    wrong = task(tmp_path, data, 0, 1, schema="a", schema_version=5, attempt="b")
    with pytest.raises(InvalidRequestError, match="a has no type"):
        copy(wrong, store, no_pause)


def test_a_version_of_the_table_is_read_once_for_its_successor(
    tmp_path: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task(tmp_path, stamped(0, b'{"a": 1}'), 0, 1, schema="a int", schema_version=4)
    location = str(copy(made, store, no_pause)["location"])
    get, read = store.get, list[str]()

    def noted(name: str, position: int = 0, length: int = -1) -> bytes:
        read.append(name)
        return get(name, position, length)

    monkeypatch.setattr(store, "get", noted)
    later = task(tmp_path, stamped(1, b"{}"), 1, 2, location=location, start=0, schema="a int")
    copy(later, store, no_pause)
    assert read.count(location) == 1


@pytest.mark.skipif(typed_json.compiled is None, reason="only compiled code reads these")
def test_a_table_has_the_same_columns_whatever_the_format(tmp_path: Path) -> None:
    row = pa.record_batch({"a": pa.array([1], pa.int32()), "b": ["no"]})
    values = {
        "": b'{"a": 1, "b": "no"}',
        " using avro <a int, b string>": b"\x02\x04no",
        " using protobuf (0) <1 a int32, 2 b string>": b"\x08\x01\x12\x02no",
        " using arrow": bytes(row.serialize()),
    }
    tables = []
    for number, (using, value) in enumerate(values.items()):
        (folder := tmp_path / str(number)).mkdir()
        store = FolderStore(folder.as_uri())
        data = stamped(0, value, b"?")
        made = task(folder, data, 0, 2, schema=f"a int, b string{using}", schema_version=1)
        location = copy(made, store, no_pause)["location"]
        tables.append(StaticTable.from_metadata(f"{store.url}/{location}"))
    first = tables[0].scan().to_arrow().select(["a", "b"])
    assert first.to_pylist() == [{"a": 1, "b": "no"}, {"a": None, "b": None}]
    for table in tables[1:]:
        assert str(table.schema()) == str(tables[0].schema())
        found = table.scan().to_arrow()
        assert found.select(["a", "b"]) == first
        errors = found["_error"].to_pylist()
        assert errors[0] is None
        assert errors[1].startswith("the value is not ")


@pytest.mark.skipif(typed_json.compiled is None, reason="only compiled code reads Avro")
def test_columns_are_made_of_each_format_that_can_be_read_here(
    tmp_path: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a int, b string using avro <a int, b string>"
    data = stamped(0, b"\x02\x04no")
    answer = copy(task(tmp_path, data, 0, 1, schema=text, schema_version=1), store, no_pause)
    monkeypatch.setattr(typed_json, "compiled", None)
    more = stamped(1, b"\x04\x04no")
    later = task(
        tmp_path, more, 1, 2, schema=text, schema_version=1, location=answer["location"], start=0,
        attempt="b",
    )  # fmt: skip
    answer = copy(later, store, no_pause)
    table = StaticTable.from_metadata(f"{store.url}/{answer['location']}").scan().to_arrow()
    rows = table.sort_by("offset").select(["a", "b", "_error"]).to_pylist()
    assert rows == [
        {"a": 1, "b": "no", "_error": None},
        {"a": None, "b": None, "_error": None},
    ]
    objects = listed(store, answer)
    assert [decode(store.get(each.name)) for each in objects] == [data, more]


class Liar(FolderStore):
    """Gives back something else. part: of the names to which it does that."""

    part = ""

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        data = super().get(name, position, length)
        if self.part and self.part in name:
            return data[:-3] + b"?" + data[-2:]
        return data


class Swapper(FolderStore):
    """Gives back a good object with other records."""

    def put(self, name: str, data: bytes) -> None:
        if "/data/" in name:
            data = encode(stamped(0, b"other")).data.ljust(len(data), b"\0")
        super().put(name, data)


@pytest.mark.parametrize("part", ["/data/", ".avro", ".json"])
def test_a_store_that_lies_is_found_out(tmp_path: Path, part: str) -> None:
    (tmp_path / "lake").mkdir()
    store = Liar((tmp_path / "lake").as_uri())
    store.part = part
    with pytest.raises(CorruptBatchError):
        copy(task(tmp_path, stamped(0), 0, 1), store, no_pause)


def test_an_object_with_other_records_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    store = Swapper((tmp_path / "lake").as_uri())
    with pytest.raises(CorruptBatchError):
        copy(task(tmp_path, stamped(0, b"value"), 0, 1), store, no_pause)


class Failing(FolderStore):
    """Says of what it has stored that it has failed. part: of the names to which it does that."""

    part = ""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        if self.part and self.part in name:
            raise StoreAwayError("it took too long")


@pytest.mark.parametrize("part", ["/data/", ".avro", ".metadata.json", "the table is lost"])
def test_a_copy_that_fails_leaves_no_object(tmp_path: Path, part: str) -> None:
    """It is tried again for as long as that takes, and nothing of it can be swept meanwhile."""
    (tmp_path / "lake").mkdir()
    store = Failing((tmp_path / "lake").as_uri())
    location = str(copy(task(tmp_path, stamped(0), 0, 1), store, no_pause)["location"])
    before = {each.name for each in store.list("cluster/7/data/")}
    store.part = part
    if part == "the table is lost":
        store.delete(location)
    second = task(tmp_path, stamped(1), 1, 2, location=location, start=0, attempt="b")
    with pytest.raises(OSError):
        copy(second, store, no_pause)
    assert {each.name for each in store.list("cluster/7/data/")} == before


def test_what_another_attempt_has_stored_is_not_deleted(tmp_path: Path, store: FolderStore) -> None:
    first = task(tmp_path, stamped(0), 0, 1)
    objects = listed(store, copy(first, store, no_pause))
    with pytest.raises(FileExistsError):
        copy(first, store, no_pause)
    left = [each.name for each in store.list("cluster/7/data/")]
    assert left == [each.name for each in objects]


def test_the_table_has_no_holes_and_forgets_what_was_purged(
    tmp_path: Path, store: FolderStore
) -> None:
    location = str(copy(task(tmp_path, stamped(0), 0, 1), store, no_pause)["location"])
    with pytest.raises(ValueError, match="the table ends at 1"):
        copy(task(tmp_path, stamped(2), 2, 3, location=location, start=0), store, no_pause)
    purged = task(tmp_path, stamped(2), 2, 3, location=location, start=2, attempt="b")
    objects = listed(store, copy(purged, store, no_pause))
    assert [each.begin for each in objects] == [2], "what was purged is named no more"


def test_a_purge_within_a_batch_leaves_it_whole(tmp_path: Path, store: FolderStore) -> None:
    data = stamped(0, records=10)
    answer = copy(task(tmp_path, data, 4, 10), store, no_pause)
    (found,) = listed(store, answer)
    assert (found.begin, found.end) == (0, 10)
    assert decode(store.get(found.name)) == data


def test_errors_are_answers(tmp_path: Path) -> None:
    given = task(tmp_path, stamped(0), 0, 1, store=StoreOptions((tmp_path / "lake").as_uri()))
    line = json.dumps(asdict(given))
    assert "not there" in answer_to(line)["error"], "it may not be mounted"
    (tmp_path / "lake").mkdir()
    assert answer_to(line)["end"] == 1
    assert "exists" in answer_to(line)["error"]
    assert "error" in answer_to(line.replace('"attempt"', '"attempts"'))
    damaged = json.dumps(asdict(replace(given, location="cluster/7/metadata/none", attempt="b")))
    assert "none" in answer_to(damaged)["error"]
    adopted = json.dumps(asdict(AdoptTask(given.store, "cluster/8", "file:///elsewhere/7", 0)))
    assert answer_to(adopted)["error"].startswith("file:///elsewhere/7 is not in the store")


def test_a_store_that_is_away_is_no_fault_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    store = Failing((tmp_path / "lake").as_uri())
    store.part = "/data/"
    monkeypatch.setattr(worker, "open_store", lambda options: store)
    line = json.dumps(asdict(task(tmp_path, stamped(0), 0, 1)))
    assert answer_to(line) == {"error": "it took too long", "is_away": True}


@pytest.mark.parametrize("url", ["", "s3://bucket", "/folder", "file://host/folder", "file:folder"])
def test_other_stores_are_no_folders(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="file:///path"):
        FolderStore(url)


@pytest.mark.parametrize(
    "url",
    [
        "/folder",
        "file://host/folder",
        "s3://",
        "s3://k:s@b",
        "gs://b",
        "s3://b/x//y",
        "s3://b/../y",
    ],
)
def test_what_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="the lake is"):
        check_url(url)


def test_a_listing_has_what_was_put(store: FolderStore) -> None:
    def names(prefix: str) -> Iterable[str]:
        return sorted(each.name for each in store.list(prefix))

    assert names("a/") == []
    store.put("a/b/one", b"1")
    store.put("a/two", b"2")
    store.put("b/three", b"3")
    assert names("a/") == ["a/b/one", "a/two"]
    store.delete("a/two")
    store.delete("a/two")
    assert names("a/") == ["a/b/one"]
    assert list(store.folders("a/")) == ["b"]
    store.delete("a/b/one")
    assert list(store.folders("a/")) == [], "empty folders go"
    assert store.root.is_dir()
