"""The store in a folder says in words what it cannot do: people read that in `lake status`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.stores import (
    Store,
    StoreAwayError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
)
from tests.support.small_disk import SmallDisk, missing

ASKED: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("7/data/a", b"records"),
    "get": lambda store: store.get("7/data/a"),
    "a part": lambda store: store.get("7/data/a", 2, 3),
    "list": lambda store: list(store.list("7/")),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_folder_that_is_away_is_said_to_be(
    tmp_path: Path, ask: Callable[[Store], object]
) -> None:
    root = tmp_path / "lake"
    with pytest.raises(StoreAwayError) as raised:
        ask(FolderStore(root.as_uri()))
    assert str(raised.value) == f"the folder of the lake is not there: {root}"


def test_a_missing_and_a_second_object_are_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path.as_uri())
    with pytest.raises(StoreMissingError, match=r"^the lake's folder has no 7/data/a$"):
        store.get("7/data/a")
    store.put("7/data/a", b"records")
    with pytest.raises(StoreExistsError, match=r"^7/data/a exists already in the lake's folder$"):
        store.put("7/data/a", b"records")


def test_what_else_fails_is_said_without_a_number(tmp_path: Path) -> None:
    store = FolderStore(tmp_path.as_uri())
    (tmp_path / "7").write_bytes(b"")
    with pytest.raises(StoreAwayError, match=r"/7/data/a: Not a directory$"):
        store.get("7/data/a")


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_full_disk_is_said_to_be(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 1 << 20)
    try:
        (tmp_path / "lake").mkdir()
        store = FolderStore((tmp_path / "lake").as_uri())
        disk.fill()
        with pytest.raises(StoreFullError, match=r"^the disk of the lake's folder is full: /"):
            store.put("7/data/a", b"records" * 1000)
    finally:
        disk.close()
