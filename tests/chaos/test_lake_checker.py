"""The checker of the lake's campaign finds each kind of failure that is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.stores import StoreOptions
from jetstream_server.lake.table import ListedObject
from jetstream_server.lake.tasks import MarkTask, Task
from jetstream_server.lake.worker import copy, mark
from tests.chaos.damage.copies import Copy
from tests.chaos.lake.checker import Kind, check_orphans, check_table, orphans, why_not_in_a_row
from tests.support.log_batches import stamped

FOLDER = "cluster/7-0"
DATA = [stamped(offset, b"value %d" % offset) for offset in range(4)]


class Scene:
    """A table with the records [0, 4), in two objects; `version` is where its last one is."""

    def __init__(self, folder: Path) -> None:
        (folder / "lake").mkdir()
        self.store = FolderStore((folder / "lake").as_uri())
        self.version, self._segment = "", folder / "segment"
        for begin in (0, 2):
            self.append(begin)
        self.copy = Copy(0, 0, 4, b"".join(DATA))

    def append(self, begin: int, attempt: str = "a") -> None:
        data = b"".join(DATA[begin : begin + 2])
        self._segment.write_bytes(data)
        task = Task(
            StoreOptions(""), FOLDER, self.version, str(self._segment), 0, len(data), begin,
            begin + 2, 0, attempt, 1 << 40, 0,
        )  # fmt: skip
        before, self.version = self.version, copy(task, self.store, lambda _: None)["location"]
        mark(MarkTask(StoreOptions(""), FOLDER, self.version, before, 0), self.store)

    def kinds(self, start: int = 0, end: int = 4) -> list[Kind]:
        found = check_table(self.store, self.version, start, end, self.copy)
        return [Kind(each.kind) for each in found]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nothing_is_found_where_all_is_well(scene: Scene) -> None:
    assert scene.kinds() == []
    assert orphans(scene.store, scene.version) == []
    assert check_orphans([]) == []


def test_a_table_that_is_not_the_log_is_found(scene: Scene) -> None:
    assert scene.kinds(end=5) == [Kind.TABLE]
    scene.copy.data = b"".join(reversed(DATA))
    assert scene.kinds() == [Kind.TABLE]


def test_an_object_that_is_not_there_is_found(scene: Scene) -> None:
    name = next(each.name for each in scene.store.list(f"{FOLDER}/data/"))
    scene.store.delete(name)
    assert scene.kinds() == [Kind.TABLE]


def test_holes_and_repetitions_are_found() -> None:
    def objects(*bounds: tuple[int, int]) -> list[ListedObject]:
        return [ListedObject("", begin, end, 1, 1) for begin, end in bounds]

    assert why_not_in_a_row(objects((0, 2), (2, 4)), 0, 4) == ""
    assert "after 2" in why_not_in_a_row(objects((0, 2), (3, 4)), 0, 4)
    assert "after 2" in why_not_in_a_row(objects((0, 2), (0, 2), (2, 4)), 0, 4)
    assert "end at 2" in why_not_in_a_row(objects((0, 2)), 0, 4)


def test_what_nobody_needs_is_found(scene: Scene) -> None:
    name = f"{FOLDER}/data/{0:020}-{2:020}-1-left.parquet"
    scene.store.put(name, b"of a copy that was interrupted")
    assert orphans(scene.store, scene.version) == [name]
    (found,) = check_orphans([name])
    assert found.kind == Kind.ORPHAN
