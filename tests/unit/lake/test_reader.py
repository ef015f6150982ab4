"""Readers get from the lake what was appended, each group read once, or an error."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from structlog.testing import capture_logs

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.lake import parquet_object
from jetstream_server.lake import reader as reader_module
from jetstream_server.lake.access import Group
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.local import LocalLake
from jetstream_server.lake.reader import IN_USE_US, SAY_AGAIN_US, LakeReader
from jetstream_server.lake.table import StoredObject, StreamTable
from jetstream_server.log.segment import LogSlice
from tests.support.lake_objects import encode
from tests.support.log_batches import stamped
from tests.support.loops import on_loop

STREAM = 7


class Store(FolderStore):
    """Counts its reads, and may hold them up."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []
        self.open = threading.Event()
        self.open.set()

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        self.reads.append(name)
        assert self.open.wait(60)
        return super().get(name, position, length)


class Ground:
    """A lake of two objects, [0, 30) with batches of ten, and [30, 31); and its reader."""

    def __init__(self, folder: Path, value: bytes = b"v", cache_bytes: int = 1 << 30) -> None:
        (folder / "lake").mkdir()
        self.store = Store((folder / "lake").as_uri())
        self.now_us = 0
        epochs = {0: 1, 10: 1, 20: 2}
        self.parts = [
            stamped(each, *[value] * 10, epoch=epochs[each], timestamp=each // 10)
            for each in epochs
        ]
        self.data = b"".join(self.parts)
        last = stamped(30, value, epoch=3, timestamp=4)
        self.table = StreamTable(self.store, self.store.url, "s", {})
        self.location = ""
        for name, data in (("a", self.data), ("b", last)):
            encoded = encode(data)
            self.store.put(name, encoded.data)
            added = StoredObject(name, len(encoded.data), encoded.facts)
            self.location = self.table.append(self.location, added, lambda *_: None)
        self.spare_bytes = 1 << 40
        self.reader = LakeReader(
            LocalLake(self.store),
            str(folder / "cache"),
            cache_bytes,
            lambda: MonotonicUs(self.now_us),
            lambda: self.spare_bytes,
        )

    async def load(self, offset: int) -> JetstreamError | None:
        ended: asyncio.Future[JetstreamError | None] = asyncio.get_running_loop().create_future()
        self.reader.load(STREAM, self.location, offset, ended.set_result)
        return await ended

    async def read(self, offset: int, bytes_max: int = 1 << 20) -> LogSlice:
        assert await self.load(offset) is None
        found = self.reader.find(STREAM, offset, bytes_max)
        assert found is not None
        return found


def bytes_of(found: LogSlice) -> bytes:
    return Path(found.path).read_bytes()[found.position :][: found.length]


@on_loop
async def test_whole_batches_come_from_the_one_that_holds_the_offset(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    assert ground.reader.find(STREAM, 5, 1 << 20) is None
    found = await ground.read(5)
    assert (found.base_offset, found.next_offset, found.last_epoch) == (0, 30, 2)
    assert bytes_of(found) == ground.data
    one = await ground.read(15, 1)
    assert (one.base_offset, one.next_offset, one.last_epoch) == (10, 20, 1)
    assert bytes_of(one) == ground.parts[1]
    two = await ground.read(0, len(ground.parts[0]) + len(ground.parts[1]))
    assert two.next_offset == 20
    assert (await ground.read(30)).next_offset == 31
    assert ground.reader.find(STREAM, 31, 1) is None
    assert ground.reader.find(STREAM + 1, 5, 1) is None
    epochs = [ground.reader.epoch_before(STREAM, each) for each in (1, 20, 21, 30, 31, 32)]
    assert epochs == [1, 1, 2, 2, 3, None]
    await ground.reader.close()


@on_loop
async def test_the_lake_is_searched_for_a_time(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    found = [await ground.reader.offset_at(ground.location, us) for us in (-1, 0, 1, 2, 3, 4, 5)]
    assert found == [0, 0, 10, 20, 30, 30, None]
    (ground.store.root / "b").unlink()
    again = LakeReader(LocalLake(ground.store), str(tmp_path / "again"), 1, lambda: MonotonicUs(0))
    assert await again.offset_at(ground.location, 1) == 10
    with pytest.raises(UnavailableError):
        await again.offset_at(ground.location, 4)
    await again.close()
    await ground.reader.close()


@on_loop
async def test_a_group_is_read_once_for_all_that_wait(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    assert await ground.load(30) is None
    ground.store.reads.clear()
    ground.store.open.clear()
    waiting = [asyncio.ensure_future(ground.load(each % 30)) for each in range(90)]
    await asyncio.sleep(0)
    assert ground.reader.find(STREAM, 0, 1) is None, "the loop does not wait"
    ground.store.open.set()
    assert set(await asyncio.gather(*waiting)) == {None}
    assert ground.store.reads == ["a", "a"], "its footer, and the group"
    await ground.reader.close()


@on_loop
async def test_damaged_objects_are_refused_and_others_are_not(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    path = ground.store.root / "a"
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    assert isinstance(await ground.load(0), UnavailableError)
    assert ground.reader.find(STREAM, 0, 1) is None
    assert (await ground.read(30)).next_offset == 31
    path.write_bytes(whole[:20])
    assert "ends early" in str(await ground.load(0))
    path.unlink()
    assert isinstance(await ground.load(0), UnavailableError)
    assert "no object" in str(await ground.load(99))
    assert ground.reader.failures == 4
    path.write_bytes(whole)
    assert bytes_of(await ground.read(0)) == ground.data
    await ground.reader.close()


@on_loop
async def test_the_cache_is_bounded_and_keeps_what_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100_000)
    ground = Ground(tmp_path, bytes(10_000), cache_bytes=150_000)
    first = await ground.read(0)
    assert isinstance(await ground.load(15), UnavailableError), "all of it is in use"
    assert Path(first.path).exists()
    ground.now_us += IN_USE_US
    second = await ground.read(15)
    assert (first.next_offset, second.base_offset) == (10, 10)
    assert not Path(first.path).exists()
    assert ground.reader.find(STREAM, 0, 1) is None
    assert ground.reader.kept_bytes == second.length
    assert not ground.reader._bases.keys() - {STREAM}
    ground.now_us += IN_USE_US
    ground.reader._make_room(150_000)
    assert not ground.reader._bases, "nothing is kept of what nobody reads"
    await ground.reader.close()
    again = LakeReader(LocalLake(ground.store), str(tmp_path / "cache"), 1, lambda: MonotonicUs(0))
    assert not list((tmp_path / "cache").iterdir()), "what an earlier run has kept is removed"
    await again.close()


@on_loop
async def test_what_is_read_again_because_it_had_to_make_room_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100_000)
    monkeypatch.setattr(reader_module, "REMOVED_MAX", 2)
    ground = Ground(tmp_path, bytes(10_000), cache_bytes=150_000)
    reader = ground.reader
    counts = []
    for offset in (0, 10, 0, 20, 10):  # For 10 the last time it is forgotten that it was kept.
        await ground.read(offset)
        counts.append((reader.reads, reader.rereads))
        ground.now_us += IN_USE_US
    assert counts == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    Path((await ground.read(10)).path).unlink()
    assert reader.find(STREAM, 10, 1) is None
    await ground.read(10)
    assert (reader.reads, reader.rereads) == (6, 1), "nobody needed its room"
    await reader.close()


@on_loop
async def test_a_cache_for_one_group_serves_a_reader_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the epoch of the last record of one group, and for the next one."""
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100_000)
    monkeypatch.setattr(reader_module, "EPOCHS_MAX", 1)
    ground = Ground(tmp_path, bytes(10_000), cache_bytes=150_000)
    reader = ground.reader

    async def load_epoch(offset: int) -> JetstreamError | None:
        ended: asyncio.Future[JetstreamError | None] = asyncio.get_running_loop().create_future()
        reader.load_epoch(STREAM, ground.location, offset, ended.set_result)
        return await ended

    assert reader.epoch_before(STREAM, 20) is None
    assert await load_epoch(19) is None
    assert reader.kept_bytes == 0, "the group itself is not read"
    found = await ground.read(20)
    assert (reader.epoch_before(STREAM, 20), found.base_offset) == (1, 20)
    assert await load_epoch(29) is None
    assert reader.epoch_before(STREAM, 30) == 2
    assert list(reader._epochs) == [(STREAM, 29)]
    assert "no object" in str(await load_epoch(99))
    await reader.close()


@on_loop
async def test_what_is_missing_or_bad_in_the_cache_is_read_anew(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    reader, kept = ground.reader, Path((await ground.read(0)).path)
    for spoil in (kept.unlink, lambda: kept.write_bytes(b"short")):
        spoil()
        assert reader.find(STREAM, 0, 1 << 20) is None
        assert (reader.kept_bytes, kept.exists()) == (0, False)
        assert bytes_of(await ground.read(0)) == ground.data
    kept.write_bytes(bytes(len(ground.data)))
    reader.forget(STREAM, 15)  # Whoever was sent this has complained.
    reader.forget(STREAM, 15)
    assert bytes_of(await ground.read(0)) == ground.data
    await reader.close()


@on_loop
async def test_what_was_purged_leaves_the_cache(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    purged, other = Path((await ground.read(0)).path), Path((await ground.read(30)).path)
    for stream_id, before in ((STREAM, 29), (STREAM + 1, 31)):
        ground.reader.drop(stream_id, before)
        assert purged.exists()
    ground.reader.drop(STREAM, 30)
    assert (purged.exists(), other.exists()) == (False, True)
    assert ground.reader.kept_bytes == other.stat().st_size
    ground.reader.drop(STREAM)
    assert (other.exists(), ground.reader.kept_bytes) == (False, 0)
    await ground.reader.close()


@on_loop
async def test_readers_of_old_records_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100_000)
    monkeypatch.setattr(reader_module, "FULL_DISK_BYTES", 150_000)
    ground = Ground(tmp_path, bytes(10_000))
    ground.spare_bytes = 150_000
    first = await ground.read(0)
    assert isinstance(await ground.load(15), UnavailableError), "a half of the room is for others"
    ground.spare_bytes = 1 << 30
    second = await ground.read(15)
    ground.spare_bytes = -150_000
    ground.reader.give_back()
    assert ground.reader.kept_bytes > 150_000, "it is in use"
    ground.now_us += IN_USE_US
    ground.reader.give_back()
    assert ground.reader.kept_bytes == second.length
    assert not Path(first.path).exists()
    ground.reader.give_back()
    assert Path(second.path).exists(), "a full disk has room for what is read just now"
    await ground.reader.close()


@on_loop
async def test_reads_at_the_same_time_share_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 100_000)
    ground = Ground(tmp_path, bytes(10_000), cache_bytes=150_000)
    ground.store.open.clear()
    waiting = [asyncio.ensure_future(ground.load(each)) for each in (0, 10, 20)]
    await asyncio.sleep(0)
    ground.store.open.set()
    ended = await asyncio.gather(*waiting)
    assert ended.count(None) == 1
    on_disk = sum(each.stat().st_size for each in (tmp_path / "cache").iterdir())
    assert ground.reader.kept_bytes == on_disk <= 150_000
    await ground.reader.close()


@on_loop
async def test_a_failed_read_takes_no_room(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").touch()
    assert isinstance(await ground.load(0), UnavailableError)
    assert ground.reader.kept_bytes == 0
    (tmp_path / "cache").unlink()  # It is made anew.
    assert (await ground.read(0)).next_offset == 30
    await ground.reader.close()


@on_loop
async def test_a_reader_that_tries_again_does_not_fill_the_log(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    reader, away = ground.reader, tmp_path / "away"
    (ground.store.root / "a").rename(away)
    with capture_logs() as logs:
        for us in (1, 20_000_000, SAY_AGAIN_US, SAY_AGAIN_US + 1):
            ground.now_us = us
            assert isinstance(await ground.load(0), UnavailableError)
        (ground.store.root / "a").write_bytes(away.read_bytes()[:20])
        assert "ends early" in str(await ground.load(0))
    reasons = [each["reason"] for each in logs if each["event"] == "lake_unreadable"]
    assert (len(reasons), reader.failures) == (3, 5)
    assert reasons[0] == reasons[1] != reasons[2]
    await reader.close()


@on_loop
async def test_what_waits_at_the_end_is_told(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.store.open.clear()
    waiting = asyncio.ensure_future(ground.load(0))
    await asyncio.sleep(0)
    threading.Timer(0.05, ground.store.open.set).start()
    await ground.reader.close()
    assert isinstance(await waiting, UnavailableError)


class Unforeseen(LocalLake):
    """Fails as a library may at what nobody has thought of."""

    wanted = 0

    def begin(self) -> None:
        self.wanted += 1

    def group(self, location: str, offset: int) -> Group:
        raise ValueError("OverflowError()")

    def offset_at(self, location: str, timestamp_us: int) -> int | None:
        raise ValueError("OverflowError()")


@on_loop
async def test_damage_that_nobody_has_foreseen_is_called_damage(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    lake = Unforeseen(ground.store)
    ground.reader = LakeReader(lake, str(tmp_path / "other"), 1, lambda: MonotonicUs(0))
    assert lake.wanted == 0, "the process would start before anybody needs it"
    assert "damaged: OverflowError()" in str(await ground.load(0))
    assert lake.wanted == 1
    with pytest.raises(UnavailableError, match="damaged"):
        await ground.reader.offset_at(ground.location, 0)
    await ground.reader.close()


@on_loop
async def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    path = ground.store.root / ground.location
    whole = path.read_bytes()
    for damage in (b"", b"[]", whole[: len(whole) // 2], whole.replace(b'"snapshots":', b'"x":')):
        path.write_bytes(damage)
        assert isinstance(await ground.load(0), UnavailableError)
        if b'"x":' not in damage:
            with pytest.raises(UnavailableError, match="is not a table's metadata"):
                await ground.reader.metadata(ground.location)
    path.write_bytes(whole)
    assert await ground.reader.metadata(ground.location) == whole
    for each in (ground.store.root / "s" / "metadata").glob("*.avro"):
        each.write_bytes(b"Obj\x01damaged")
    assert isinstance(await ground.load(0), UnavailableError)
    await ground.reader.close()
