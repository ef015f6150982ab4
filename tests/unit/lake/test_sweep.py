"""The sweep deletes what no table needs, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")

from obstore.store import MemoryStore

from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake import sweep as sweep_module
from jetstream_server.lake import table as table_module
from jetstream_server.lake.bucket_store import BucketStore
from jetstream_server.lake.stores import Listed, Store, StoreAwayError
from jetstream_server.lake.sweep import FolderSweeper, Sweeper
from jetstream_server.lake.table import Adopted, StoredObject, StreamTable
from tests.support.lake_objects import encode

GRACE_US = 1000


class Scene:
    """A store with the table of one stream."""

    def __init__(self, memory: MemoryStore | None = None, folder: str = "s") -> None:
        self.store = BucketStore(MemoryStore() if memory is None else memory)
        self.table = StreamTable(self.store, "s3://lake", folder, {"jetstream.stream-id": "7"})
        self.sweeper = Sweeper(self.table, self.store, GRACE_US)
        self.location = ""
        self.end = 0

    def upload(self, attempt: str = "a") -> StoredObject:
        batch = encode_batch([b"value"] * 10, b"orders.new")
        batch.stamp(self.end, 3, 1)
        encoded = encode(batch.to_bytes())
        name = f"{self.table.folder}/data/{self.end}-{attempt}.parquet"
        self.store.put(name, encoded.data)
        return StoredObject(name, len(encoded.data), encoded.facts)

    def commit(self, added: StoredObject) -> None:
        self.location = self.table.append(self.location, added, lambda *_: None)
        self.end = added.facts.end

    def names(self) -> set[str]:
        return {each.name for each in self.store.list("")}

    def sweep(self, at: int, location: str | None = None) -> list[str]:
        listed = self.sweeper.listed()
        at_us = MonotonicUs(at)
        return self.sweeper.sweep(listed, self.location if location is None else location, at_us)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.commit(scene.upload())
    return scene


def test_what_the_table_needs_stays_for_ever(scene: Scene) -> None:
    before = scene.names()
    for at in (0, 5 * GRACE_US, 10 * GRACE_US):
        assert scene.sweep(at) == []
    assert scene.names() == before | {scene.table.marker_of(scene.location)}


def test_what_a_refused_commit_left_goes_after_the_grace_time(scene: Scene) -> None:
    scene.table.mark(scene.location)
    before = scene.names()
    lost = scene.upload("lost").name
    assert scene.sweep(0) == []
    assert scene.sweep(GRACE_US - 1) == []
    assert lost in scene.names()
    assert scene.sweep(GRACE_US) == [lost]
    assert scene.names() == before


def test_a_dry_run_deletes_nothing_and_tells_what_waits(scene: Scene) -> None:
    lost = scene.upload("lost").name
    before = scene.names()

    def look(at: int) -> list[str]:
        listed = scene.sweeper.listed()
        return scene.sweeper.sweep(listed, scene.location, MonotonicUs(at), dry_run=True)

    assert look(0) == []
    assert scene.sweeper.waits_us(MonotonicUs(10)) == {lost: GRACE_US - 10}
    assert look(GRACE_US) == look(2 * GRACE_US) == [lost]
    assert scene.names() == before
    assert scene.sweep(2 * GRACE_US) == [lost]
    assert scene.sweeper.waits_us(MonotonicUs(2 * GRACE_US)) == {}


def test_an_object_that_is_committed_between_sweeps_stays(scene: Scene) -> None:
    added = scene.upload("slow")
    scene.sweep(0)
    scene.commit(added)
    assert scene.sweep(GRACE_US) == []
    assert added.name in scene.names()


def test_an_object_that_is_committed_during_the_listing_stays(scene: Scene) -> None:
    """The pointer is read after the listing: an earlier one would not reach it."""
    added = scene.upload("late")
    scene.sweep(0)
    listed = scene.sweeper.listed()
    scene.commit(added)
    assert scene.sweeper.sweep(listed, scene.location, MonotonicUs(GRACE_US)) == []
    assert added.name in scene.names()


def test_the_grace_time_begins_when_nobody_needs_it(scene: Scene) -> None:
    """An old file was needed until now: readers of the version before may be at it."""
    older = scene.location
    scene.commit(scene.upload())
    newest, scene.location = scene.location, older
    scene.sweep(10 * GRACE_US)
    scene.location = newest
    assert scene.sweep(10 * GRACE_US + GRACE_US - 1) == []


def test_other_streams_are_not_swept(scene: Scene) -> None:
    for name in ("s2/data/x", "t/data/x", "cluster_id"):
        scene.store.put(name, b"x")
    scene.sweep(0)
    scene.sweep(GRACE_US)
    assert {"s2/data/x", "t/data/x", "cluster_id"} < scene.names()


def test_without_a_table_nothing_is_swept(scene: Scene) -> None:
    before = scene.names()
    for at in (0, GRACE_US):
        assert scene.sweep(at, "") == []
    assert scene.names() == before


def test_a_table_of_another_stream_stops_the_sweep(scene: Scene) -> None:
    scene.upload("lost")
    before = scene.names()
    other = StreamTable(scene.store, "s3://lake", "s", {"jetstream.stream-id": "8"})
    scene.sweeper = Sweeper(other, scene.store, GRACE_US)
    for at in (0, GRACE_US):
        with pytest.raises(ValueError, match="another cluster or stream"):
            scene.sweep(at)
    assert scene.names() == before


def forgets_what_was_committed(sweeper: Sweeper) -> None:
    sweeper._unknown = lambda listed, location: []  # type: ignore[method-assign]


@pytest.mark.parametrize("mutate", [None, forgets_what_was_committed])
def test_what_an_unknown_pointer_names_stays_for_ever(
    scene: Scene, mutate: Callable[[Sweeper], None] | None
) -> None:
    """The metadata was put back from an older copy, with the pointer of then, and goes on."""
    older, older_end = scene.location, scene.end
    for _ in range(3):
        before = scene.location
        scene.commit(scene.upload())
        scene.table.mark(scene.location, before)
    lost = scene.location
    needed = scene.table.reached(lost)
    scene.location, scene.end = older, older_end
    for _ in range(2):
        before = scene.location
        scene.commit(scene.upload("b"))
        scene.table.mark(scene.location, before)
    if mutate is not None:
        mutate(scene.sweeper)
    for at in range(4):
        scene.sweep(at * GRACE_US)
    assert (needed <= scene.names()) is (mutate is None)
    assert scene.table.reached(scene.location) <= scene.names()
    if mutate is None:
        assert scene.sweeper.unknown == (lost,)


def test_the_marker_of_an_earlier_version_keeps_nothing(scene: Scene) -> None:
    """It stays if a process died between noting the next one and removing it."""
    scene.table.mark(scene.location)
    marker = scene.table.marker_of(scene.location)
    for _ in range(2):
        scene.commit(scene.upload())
    assert scene.sweep(0) == []
    assert scene.sweeper.unknown == ()
    assert scene.sweep(GRACE_US) == [marker]
    scene.location, start = scene.table.trim(scene.location, 10)
    assert start == 10
    scene.sweep(GRACE_US)
    assert any("/data/" in each for each in scene.sweep(2 * GRACE_US)), "what was purged goes"
    assert scene.sweeper.unknown == ()


def test_what_another_table_has_taken_over_stays(scene: Scene) -> None:
    scene.commit(scene.upload())
    scene.table.mark(scene.location)
    scene.upload("lost")
    properties = {"jetstream.stream-id": "9"}
    new = StreamTable(scene.store, "s3://lake", "c/9-1", properties)
    for url in ("s3://lake/s", "s3://lake/s/", f"s3://lake/{scene.location}"):
        found = new.adopt(url)
        assert (found.start, found.end, found.last_epoch) == (0, 20, 3)
    assert new.objects(found.location) == scene.table.objects(scene.location)
    new.check_is_ours(found.location)
    before = scene.names()
    added = scene.upload("later")
    location = new.append(found.location, added, lambda *_: None)
    assert [each.end for each in new.objects(location)] == [10, 20, 30]
    written = scene.names() - before - {added.name}
    assert all(each.startswith("c/9-1/metadata/") for each in written), "by its own stream's sweep"
    own = Sweeper(new, scene.store, GRACE_US)
    for at in (0, GRACE_US, 2 * GRACE_US):
        own.sweep(own.listed(), location, MonotonicUs(at))
    assert new.reached(location) <= scene.names()
    trimmed, start = new.trim(location, 10)
    assert (start, [each.begin for each in new.objects(trimmed)]) == (10, [10, 20])
    sweeper = FolderSweeper(scene.store, "c", GRACE_US)
    scene.store.put("c/8-1/adopted/x", b"")
    for at in (0, GRACE_US):
        assert scene.sweep(at) == []
        assert sweeper.sweep({"c/8-1", "c/9-1"}, MonotonicUs(at)) == (["9-1"] if at else [])
    assert {each for each in before if each.startswith("s/")} < scene.names()
    assert "c/8-1/adopted/x" in scene.names()


class _Interrupted(BucketStore):
    """Before the request of that number, somebody else acts. requests: so many were made."""

    def __init__(self, memory: MemoryStore, at: int, act: Callable[[], None]) -> None:
        super().__init__(memory)
        self._at, self._act = at, act
        self.requests = 0

    def _count(self) -> None:
        self.requests += 1
        if self.requests == self._at:
            self._act()

    def put(self, name: str, data: bytes) -> None:
        self._count()
        super().put(name, data)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        self._count()
        return super().get(name, position, length)

    def list(self, prefix: str) -> Iterator[Listed]:
        self._count()
        return iter(list(super().list(prefix)))

    def delete(self, *names: str) -> None:
        self._count()
        super().delete(*names)


@pytest.mark.parametrize("is_sweep_interrupted", [True, False])
def test_a_table_that_is_taken_over_while_its_folder_is_deleted_is_whole(
    is_sweep_interrupted: bool,
) -> None:
    """**safety** At whichever request of the one the other one comes in between."""
    outcomes = set()
    at, is_over = 0, False
    while not is_over:
        at += 1
        memory = MemoryStore()
        scene = Scene(memory, folder="c/8-1")
        scene.commit(scene.upload())
        scene.table.mark(scene.location)
        found: list[Adopted] = []

        def adopt(store: Store, found: list[Adopted] = found) -> None:
            with suppress(ValueError, OSError):
                found.append(StreamTable(store, "s3://lake", "c/9-1", {}).adopt("s3://lake/c/8-1"))

        def sweep(store: Store) -> None:
            sweeper = FolderSweeper(store, "c", GRACE_US)
            for now in (0, GRACE_US):
                sweeper.sweep({"c/8-1"}, MonotonicUs(now))

        first, other = (sweep, adopt) if is_sweep_interrupted else (adopt, sweep)
        store = _Interrupted(memory, at, partial(other, BucketStore(memory)))
        first(store)
        is_over = store.requests < at
        for each in found:
            new = StreamTable(scene.store, "s3://lake", "c/9-1", {})
            assert new.reached(each.location) <= scene.names()
        if not found and not is_over:
            sweep(scene.store)
            assert not any(name.startswith("c/8-1/") for name in scene.names()), "nothing stays"
        outcomes.add(bool(found))
    assert outcomes == {True, False}


class _AwayOnceNoted(BucketStore):
    """Lists nothing any more once a note was stored. listed: the prefixes."""

    def __init__(self, memory: MemoryStore) -> None:
        super().__init__(memory)
        self.listed: list[str] = []
        self.is_noted = False

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self.is_noted = True

    def list(self, prefix: str) -> Iterator[Listed]:
        self.listed.append(prefix)
        if self.is_noted:
            raise StoreAwayError("no answer")
        return super().list(prefix)


def test_a_failed_adoption_does_not_end_the_sweeps_of_a_folder() -> None:
    memory = MemoryStore()
    scene = Scene(memory, folder="c/8-1")
    scene.commit(scene.upload())
    scene.table.mark(scene.location)
    store, before = _AwayOnceNoted(memory), scene.names()
    with pytest.raises(StoreAwayError):
        StreamTable(store, "s3://lake", "c/9-1", {}).adopt("s3://lake/c/8-1")
    assert scene.names() == before
    assert store.listed == ["c/8-1/committed/", "c/8-1/metadata/", "c/8-1/"], "a million objects"


def test_of_versions_that_end_alike_the_later_one_is_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The note of the one before could not be removed. Names are random, and tell nothing."""
    for first in (1, 2):
        scene = Scene(folder="c/8-1")
        scene.commit(scene.upload())
        names = iter([first, 3 - first])
        made = SimpleNamespace(uuid4=lambda names=names: SimpleNamespace(hex=str(next(names))))
        with monkeypatch.context() as patch:
            patch.setattr(table_module, "uuid", made)
            scene.commit(scene.upload("b"))
            scene.table.mark(scene.location)
            trimmed, _ = scene.table.trim(scene.location, 10)
            scene.table.mark(trimmed)
        new = StreamTable(scene.store, "s3://lake", "c/9-1", {"jetstream.stream-id": "9"})
        assert new.adopt("s3://lake/c/8-1/").start == 10


def test_what_is_no_table_is_not_taken_over(scene: Scene) -> None:
    new = StreamTable(scene.store, "s3://lake", "c/9-1", {})
    scene.store.put("other/metadata/x.metadata.json", b"{}")
    before = scene.names()
    for url in ("s3://elsewhere/s", "s3://lake/s", "s3://lake/none", "s3://lake/other"):
        with pytest.raises(ValueError):
            new.adopt(url)
    with pytest.raises(Exception):  # noqa: B017  what the library raises
        new.adopt("s3://lake/other/metadata/x.metadata.json")
    assert scene.names() == before


def test_a_folder_of_many_objects_goes_in_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of a busy stream is a million."""
    memory = MemoryStore()
    store = _Interrupted(memory, 0, lambda: None)
    for number in range(5):
        BucketStore(memory).put(f"c/8-1/data/{number}", b"")
    monkeypatch.setattr(sweep_module, "DELETED_AT_ONCE", 2)
    sweeper = FolderSweeper(store, "c", GRACE_US)
    assert sweeper.sweep({"c/8-1"}, MonotonicUs(0)) == []
    store.requests = 0
    assert sweeper.sweep({"c/8-1"}, MonotonicUs(GRACE_US)) == ["8-1"]
    assert store.requests == 2 + 3, "it is listed twice"
    assert list(store.list("")) == []


def test_the_folders_of_deleted_streams_go_after_the_grace_time(scene: Scene) -> None:
    kept = {
        "c/7-1/data/x", "c/8-2/data/x", "c/8/x", "c/08-1/x", "c/9-1/metadata/y", "c/name/z",
        "other/8-1/x",
    }  # fmt: skip
    for name in (*kept, "c/8-1/data/x"):
        scene.store.put(name, b"x")
    sweeper, deleted = FolderSweeper(scene.store, "c", GRACE_US), {"c/8-1"}

    def sweep(at: int) -> list[str]:
        return sweeper.sweep(deleted, MonotonicUs(at))

    assert sweep(0) == []
    deleted.add("c/9-1")
    assert sweep(GRACE_US - 1) == []
    assert sweep(GRACE_US) == ["8-1"]
    deleted.remove("c/9-1")  # Nobody knows better now.
    assert sweep(2 * GRACE_US) == []
    assert kept < scene.names()
    assert "c/8-1/data/x" not in scene.names()
