"""A range of a log is copied whole and checked, or nothing names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.objects import (
    GROUP_BYTES,
    checked_headers,
    decode_list,
    object_of,
)
from jetstream_server.lake.worker import Task, copy
from tests.support.log_batches import stamped


def no_pause(_: int) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore((tmp_path / "lake").as_uri())


def task(folder: Path, data: bytes, begin: int, end: int, **others: object) -> Task:
    path = folder / "segment"
    path.write_bytes(b"before" + data + b"after")
    made = Task(
        url="", folder="cluster/7", location="", path=str(path), position=6, length=len(data),
        begin=begin, end=end, start=begin, attempt="a", bytes_per_second=1, parent=0,
    )  # fmt: skip
    return replace(made, **others)  # type: ignore[arg-type]


def test_what_is_copied_is_the_same(tmp_path: Path, store: FolderStore) -> None:
    first = stamped(5, records=3, epoch=1) + stamped(8, records=2, epoch=2, timestamp=9)
    one = copy(task(tmp_path, first, 5, 10), store, no_pause)
    assert (one["last_epoch"], one["length"]) == (2, len(first))
    second = stamped(10, epoch=2)
    location = str(one["location"])
    two = copy(
        task(tmp_path, second, 10, 11, location=location, start=5, attempt="b"), store, no_pause
    )
    objects = decode_list(store.get(str(two["location"])))
    assert [(each.begin, each.end) for each in objects] == [(5, 10), (10, 11)]
    assert [store.get(each.name) for each in objects] == [first, second]
    assert decode_list(store.get(location)) == objects[:1], "earlier lists stay"
    assert object_of(objects, 4) is object_of(objects, 11) is None
    assert object_of(objects, 9) == objects[0]


def test_objects_are_read_by_groups_of_whole_batches(tmp_path: Path, store: FolderStore) -> None:
    value = bytes(GROUP_BYTES // 3)
    data = b"".join(stamped(offset, value) for offset in range(8))
    answer = copy(task(tmp_path, data, 0, 8), store, no_pause)
    (found,) = decode_list(store.get(str(answer["location"])))
    assert len(found.groups) > 1
    read = b""
    for group in found.groups:
        part = store.get(found.name, group.position, group.length)
        same, end = found.group_of(group.base_offset)
        assert same == group
        assert [each.base_offset for each in checked_headers(part, group.base_offset, end)]
        read += part
    assert read == data


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
        pytest.param(stamped(0), 0, 2, id="ends early"),
        pytest.param(stamped(0) + stamped(1), 0, 1, id="goes on"),
        pytest.param(stamped(1), 0, 2, id="begins late"),
        pytest.param(stamped(0) + stamped(2), 0, 3, id="a hole"),
        pytest.param(stamped(0, epoch=2) + stamped(1, epoch=1), 0, 2, id="an older epoch"),
        pytest.param(stamped(0)[:-9] + b"x" + stamped(0)[-8:], 0, 1, id="rotten"),
        pytest.param(stamped(0)[:-8], 0, 1, id="torn"),
        pytest.param(b"", 0, 0, id="nothing"),
    ],
)
def test_what_is_not_exactly_the_range_is_refused(
    tmp_path: Path, store: FolderStore, data: bytes, begin: int, end: int
) -> None:
    with pytest.raises(CorruptBatchError):
        copy(task(tmp_path, data, begin, end), store, no_pause)
    assert not list(tmp_path.glob("lake/**/*.json"))


class LyingStore(FolderStore):
    """It changes what it was given."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data[:-1] + b"?")


def test_an_object_that_comes_back_different_counts_for_nothing(tmp_path: Path) -> None:
    store = LyingStore((tmp_path / "lake").as_uri())
    with pytest.raises(CorruptBatchError, match="does not give back"):
        copy(task(tmp_path, stamped(0), 0, 1), store, no_pause)
    assert not list(tmp_path.glob("lake/**/*.json"))


def test_a_range_that_does_not_continue_the_list_is_refused(
    tmp_path: Path, store: FolderStore
) -> None:
    location = str(copy(task(tmp_path, stamped(0), 0, 1), store, no_pause)["location"])
    with pytest.raises(CorruptBatchError, match="ends at 1"):
        copy(task(tmp_path, stamped(2), 2, 3, location=location, start=0), store, no_pause)
    purged = task(tmp_path, stamped(2), 2, 3, location=location, start=2)
    objects = decode_list(store.get(str(copy(purged, store, no_pause)["location"])))
    assert [each.begin for each in objects] == [2], "what was purged is named no more"


@pytest.mark.parametrize("url", ["", "s3://bucket", "/folder", "file://host/folder", "file:folder"])
def test_other_stores_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="file:///path"):
        FolderStore(url)


@pytest.mark.parametrize("data", [b"", b"{}", b"[{}]", b'[{"name":1}]', b"\xff"])
def test_a_list_that_is_none_is_damaged(data: bytes) -> None:
    if data == b"{}":
        assert decode_list(data) == ()
        return
    with pytest.raises(CorruptBatchError):
        decode_list(data)
