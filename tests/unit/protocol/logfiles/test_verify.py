"""`verify` finds each problem and names file and position; `dump` shows what there is."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.batch import HEADER_BYTES, EncodedBatch, crc32c, encode
from jetstream_protocol.logfiles import checkpoint_file, index_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.dump import DumpedBatch, dump
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.offsets_file import Bounds, Mark
from jetstream_protocol.logfiles.verify import verify
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.offsets_file import OffsetsFile
from tests.support.log_batches import batch, stamped

LENGTH = batch(b"0000").length
FIRST_INDEX, SECOND_INDEX, THIRD_INDEX = (f"{base:020d}.index" for base in (0, 4, 8))
FIRST, SECOND, THIRD = (f"{base:020d}.log" for base in (0, 4, 8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream of ten batches in three segments, cleanly closed."""
    disk = OsDisk()
    config = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)
    log = CommitLog.open(disk, str(tmp_path / "17"), config, clean=False)
    for offset in range(10):
        log.append(batch(b"%04d" % offset), leader_epoch=offset // 3, timestamp_us=100 + offset)
    log.close(clean=True)
    disk.close()
    return tmp_path / "17"


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def extend(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def vouching(folder: Path, **files: bool) -> bytes:
    """The folder's checkpoint, which says besides that there are those files."""
    data = (folder / "checkpoint").read_bytes()
    return replace(LogCheckpoint.from_bytes(data, "17"), **files).to_bytes("17")


def found(path: Path) -> list[tuple[str, int, Kind]]:
    return [(Path(f.file).name, f.position, f.kind) for f in verify(path)]


def test_sound_stream_has_no_findings(folder: Path) -> None:
    assert list(verify(folder)) == []
    for segment in folder.glob("*.log"):
        assert list(verify(segment)) == []


def test_a_lost_folder_is_found_by_what_lies_beside_it(folder: Path) -> None:
    data = folder.parent / "data"
    (data / "streams").mkdir(parents=True)
    folder.with_name("17.offsets").rename(data / "streams" / "17.offsets")
    assert ("17", 0, Kind.MISSING_RECORDS) in found(data)
    (data / "quarantine" / "17.123").mkdir(parents=True)
    assert ("17", 0, Kind.MISSING_RECORDS) not in found(data), "it is being set aside"
    (data / "quarantine" / "17.123.offsets").touch()
    assert ("17", 0, Kind.MISSING_RECORDS) in found(data), "what was set aside is another copy"


def this_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def in_this_boot(folder: Path) -> None:
    """Have the log noted as written since the machine started."""
    disk = OsDisk()
    CommitLog.open(disk, str(folder), clean=False, boot_id=this_boot()).note_end()
    disk.close()


def test_in_the_same_boot_only_what_the_files_end_cuts_short_is_torn(folder: Path) -> None:
    in_this_boot(folder)
    assert list(verify(folder)) == []
    extend(folder / THIRD, b"x" * 200)
    assert (THIRD, 2 * LENGTH, Kind.CORRUPT_BATCH) in found(folder)
    (folder / THIRD).write_bytes((folder / THIRD).read_bytes()[: 2 * LENGTH] + stamped(10)[:50])
    assert (THIRD, 2 * LENGTH, Kind.TORN_TAIL) in found(folder)


@pytest.mark.parametrize(("is_same_boot", "kinds"), [(True, []), (False, [Kind.LEFTOVER_FILE])])
def test_a_log_is_being_emptied_unless_it_went_on_since(
    folder: Path, is_same_boot: bool, kinds: list[Kind]
) -> None:
    """As a start decides it."""
    if is_same_boot:
        in_this_boot(folder)
    disk = OsDisk()
    OffsetsFile(disk, str(folder), "").write_bounds(Bounds(0, 0, Mark.EMPTYING))
    assert [finding.kind for finding in verify(folder)] == kinds
    log = CommitLog.open(disk, str(folder), clean=False, boot_id=this_boot())
    assert log.log_end_offset == (10 if is_same_boot else 0)
    disk.close()


def test_live_stream_has_no_findings_between_appends(tmp_path: Path) -> None:
    disk = OsDisk()
    log = CommitLog.open(disk, str(tmp_path / "18"), clean=False)
    for _ in range(3):
        log.append(batch(records=100), leader_epoch=1, timestamp_us=1)
        assert list(verify(tmp_path / "18")) == []
    disk.close()


def wrong_columns() -> EncodedBatch:
    """Both CRCs right, and value offsets that run wild."""
    made = encode([b"a", b"b"], b"a.b")
    body = bytearray(made.body)
    body[4:8] = (2**30).to_bytes(4, "little")
    made.body = bytes(body)
    made.header[12:16] = crc32c(made.body).to_bytes(4, "little")
    made.stamp(10, 9, 200)
    return made


Spoil = Callable[[Path], object]
CASES: dict[str, tuple[Spoil, list[tuple[str, int, Kind]]]] = {
    "torn tail": (
        lambda f: extend(f / THIRD, b"x" * 20),
        [(THIRD, 2 * LENGTH, Kind.TORN_TAIL)],
    ),
    "flipped byte in a body, batches after it": (
        lambda f: spoil(f / SECOND, LENGTH + HEADER_BYTES + 1),
        [(SECOND, LENGTH, Kind.CORRUPT_BATCH)],
    ),
    "flipped byte in the last batch of a sealed segment": (
        lambda f: spoil(f / FIRST, 3 * LENGTH),
        [
            (FIRST, 3 * LENGTH, Kind.CORRUPT_BATCH),
            (SECOND, 0, Kind.OFFSET_GAP),
        ],
    ),
    "records missing that were flushed": (
        lambda f: (f / THIRD).write_bytes((f / THIRD).read_bytes()[:LENGTH]),
        [(THIRD_INDEX, 24, Kind.BAD_INDEX), ("17", 0, Kind.MISSING_RECORDS)],
    ),
    "missing segment": (
        lambda f: (f / SECOND).unlink(),
        [
            (SECOND_INDEX, 0, Kind.BAD_INDEX),
            (SECOND, 0, Kind.MISSING_RECORDS),
            (THIRD, 0, Kind.OFFSET_GAP),
        ],
    ),
    "missing first segment": (
        lambda f: (f / FIRST).unlink(),
        [(FIRST_INDEX, 0, Kind.BAD_INDEX), ("17", 0, Kind.MISSING_RECORDS)],
    ),
    "missing last segment": (
        lambda f: (f / THIRD).unlink(),
        [
            (THIRD_INDEX, 0, Kind.BAD_INDEX),
            (THIRD, 0, Kind.MISSING_RECORDS),
            ("17", 0, Kind.MISSING_RECORDS),
        ],
    ),
    "short sealed segment": (
        lambda f: (f / SECOND).write_bytes((f / SECOND).read_bytes()[: 2 * LENGTH]),
        [
            (SECOND, 0, Kind.MISSING_RECORDS),
            (SECOND_INDEX, 24, Kind.BAD_INDEX),
            (THIRD, 0, Kind.OFFSET_GAP),
        ],
    ),
    "missing offsets file and missing first segment": (
        lambda f: (f.with_name("17.offsets").unlink(), (f / FIRST).unlink()),
        [(FIRST_INDEX, 0, Kind.BAD_INDEX), ("17", 0, Kind.MISSING_RECORDS)],
    ),
    "damaged offsets file": (
        lambda f: spoil(f.with_name("17.offsets"), 20),
        [("17.offsets", 0, Kind.BAD_OFFSETS)],
    ),
    "valid batch at a wrong offset": (
        lambda f: extend(f / THIRD, stamped(12, epoch=5, timestamp=200)),
        [(THIRD, 2 * LENGTH, Kind.OFFSET_GAP)],
    ),
    "leader epoch that falls": (
        lambda f: extend(f / THIRD, stamped(10, epoch=1, timestamp=200)),
        [(THIRD, 2 * LENGTH, Kind.EPOCH_REGRESSION)],
    ),
    "append timestamp that falls": (
        lambda f: extend(f / THIRD, stamped(10, epoch=5, timestamp=50)),
        [(THIRD, 2 * LENGTH, Kind.TIMESTAMP_REGRESSION)],
    ),
    "columns that run wild under right CRCs": (
        lambda f: extend(f / THIRD, wrong_columns().to_bytes()),
        [(THIRD, 2 * LENGTH, Kind.BAD_COLUMNS)],
    ),
    "missing index of a sealed segment": (
        lambda f: (f / FIRST_INDEX).unlink(),
        [(FIRST_INDEX, 0, Kind.MISSING_INDEX)],
    ),
    "missing index of the last segment": (
        lambda f: (f / THIRD_INDEX).unlink(),
        [],
    ),
    "flipped byte in an index": (
        lambda f: spoil(f / FIRST_INDEX, 40),
        [(FIRST_INDEX, 32, Kind.BAD_INDEX)],
    ),
    "short index": (
        lambda f: (f / FIRST_INDEX).write_bytes(b"JSLI"),
        [(FIRST_INDEX, 0, Kind.BAD_INDEX)],
    ),
    "index that cannot be read, as a folder cannot": (
        lambda f: (f / FIRST_INDEX).unlink() or (f / FIRST_INDEX).mkdir(),
        [(FIRST_INDEX, 0, Kind.BAD_INDEX)],
    ),
    "index of another segment": (
        lambda f: shutil.copy(
            f / FIRST_INDEX, f / SECOND_INDEX
        ),
        [(SECOND_INDEX, 16, Kind.BAD_INDEX)],
    ),
    "index that names batches where there are none": (
        lambda f: (f / FIRST_INDEX).write_bytes(
            index_file.encode(0, 4 * LENGTH, array("q", [0, 0, 100, 1, LENGTH - 8, 101]))
        ),
        [(FIRST_INDEX, 56, Kind.BAD_INDEX)],
    ),
    "flipped byte in the checkpoint": (
        lambda f: spoil(f / "checkpoint", 60),
        [("checkpoint", 7, Kind.BAD_CHECKPOINT)],
    ),
    "checkpoint of another stream": (
        lambda f: (f / "checkpoint").write_bytes(LogCheckpoint().to_bytes("18")),
        [("checkpoint", 16, Kind.BAD_CHECKPOINT)],
    ),
    "checkpoint whose epochs are not the batches'": (
        lambda f: (f / "checkpoint").write_bytes(
            LogCheckpoint(recovery_point=10, epochs=((0, 0), (7, 3))).to_bytes("17")
        ),
        [("checkpoint", 0, Kind.BAD_CHECKPOINT)],
    ),
    "producers of another stream": (
        lambda f: (f / "producers").write_bytes(checkpoint_file.encode("producers", "18", {})),
        [("producers", 16, Kind.BAD_CHECKPOINT)],
    ),
    "damaged producers": (
        lambda f: (f / "producers").write_bytes(b"JSLC 1 00000000\n{}\n"),
        [("producers", 7, Kind.BAD_CHECKPOINT)],
    ),
    "producers that are missing": (
        lambda f: (f / "checkpoint").write_bytes(vouching(f, producers=True)),
        [("producers", 0, Kind.BAD_CHECKPOINT)],
    ),
    "damaged state of compaction": (
        lambda f: (f / "compaction").write_bytes(b"JSLC 1 00000000\n{}\n"),
        [("compaction", 7, Kind.BAD_CHECKPOINT)],
    ),
    "a state of compaction that is missing": (
        lambda f: (f / "checkpoint").write_bytes(vouching(f, compaction=True)),
        [("compaction", 0, Kind.BAD_CHECKPOINT)],
    ),
    "a sound state of compaction, which is no problem": (
        lambda f: (f / "compaction").write_bytes(checkpoint_file.encode("compaction", "17", {})),
        [],
    ),
    "a damaged mark of damage": (
        lambda f: (f / "damage").write_bytes(b"JSLC 1 00000000\n{}\n"),
        [("damage", 7, Kind.BAD_CHECKPOINT)],
    ),
    "a sound mark of damage, which is none": (
        lambda f: (f / "damage").write_bytes(checkpoint_file.encode("damage", "17", {})),
        [],
    ),
    "sound producers, which are no problem": (
        lambda f: (f / "producers").write_bytes(checkpoint_file.encode("producers", "17", {})),
        [],
    ),
    "interrupted atomic write": (
        lambda f: (f / "checkpoint.tmp").write_bytes(b"half"),
        [("checkpoint.tmp", 0, Kind.LEFTOVER_FILE)],
    ),
    "file that is none of ours": (
        lambda f: (f / "notes.txt").write_bytes(b"hello"),
        [("notes.txt", 0, Kind.UNKNOWN_FILE)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_found_with_its_file_and_position(folder: Path, name: str) -> None:
    damage, expected = CASES[name]
    damage(folder)
    assert found(folder) == expected


def test_damage_does_not_hide_what_is_after_it(folder: Path) -> None:
    spoil(folder / FIRST, 5)
    spoil(folder / SECOND, LENGTH + 5)
    extend(folder / THIRD, b"torn")
    kinds = [(name, kind) for name, _, kind in found(folder) if name.endswith(".log")]
    assert kinds == [
        (FIRST, Kind.CORRUPT_BATCH),
        (SECOND, Kind.CORRUPT_BATCH),
        (THIRD, Kind.TORN_TAIL),
    ]


def test_findings_are_sentences_that_say_what_will_happen(folder: Path) -> None:
    extend(folder / THIRD, b"x" * 20)
    (finding,) = verify(folder)
    assert finding.repairable
    assert finding.message == "batch header cut short; 20 bytes will be cut off"
    spoil(folder / FIRST, 5)
    assert not next(iter(verify(folder))).repairable


def test_data_folder_is_verified_as_a_whole(folder: Path, tmp_path: Path) -> None:
    disk = OsDisk()
    data = DataFolder.open(disk, str(tmp_path / "data"), node_id=1)
    for stream_id in ("3", "20"):
        shutil.copytree(folder, data.stream_directory(int(stream_id)))
        (tmp_path / "data" / "streams" / stream_id / "checkpoint").unlink()
    data.close()
    assert list(verify(tmp_path / "data")) == []
    spoil(tmp_path / "data" / "streams" / "20" / FIRST, 5)
    (tmp_path / "data" / "streams" / "notes").mkdir()
    (tmp_path / "data" / "meta.json").write_text("{")
    kinds = {(Path(f.file).name, f.kind) for f in verify(tmp_path / "data")}
    assert kinds >= {
        ("meta.json", Kind.BAD_IDENTITY),
        (FIRST, Kind.CORRUPT_BATCH),
        ("notes", Kind.UNKNOWN_FILE),
    }


@pytest.mark.parametrize("examine", [verify, dump])
def test_path_that_holds_no_log_is_said_so(
    tmp_path: Path, examine: Callable[[Path], Iterator[object]]
) -> None:
    with pytest.raises(FileNotFoundError):
        list(examine(tmp_path / "none"))
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ValueError, match="not a segment"):
        list(examine(tmp_path / "file.txt"))
    with pytest.raises(ValueError, match="neither a data folder"):
        list(examine(tmp_path))
    (tmp_path / "empty").mkdir()
    assert list(examine(tmp_path / "empty")) == []


def dumped(path: Path) -> list[tuple[int, list[bytes | None]] | tuple[int, Kind]]:
    return [
        (d.position, d.batch.values()) if isinstance(d, DumpedBatch) else (d.position, d.kind)
        for d in dump(path)
    ]


def test_dump_shows_every_batch_in_order(folder: Path) -> None:
    everything = [d.batch.values()[0] for d in dump(folder) if isinstance(d, DumpedBatch)]
    assert everything == [b"%04d" % offset for offset in range(10)]
    assert dumped(folder / THIRD) == [(0, [b"0008"]), (LENGTH, [b"0009"])]


def test_dump_goes_around_damage(folder: Path) -> None:
    spoil(folder / FIRST, LENGTH + 5)
    extend(folder / FIRST, wrong_columns().to_bytes()[:-1])
    result = dumped(folder / FIRST)
    assert result == [
        (0, [b"0000"]),
        (LENGTH, Kind.CORRUPT_BATCH),
        (2 * LENGTH, [b"0002"]),
        (3 * LENGTH, [b"0003"]),
        (4 * LENGTH, Kind.TORN_TAIL),
    ]


def test_dump_of_a_batch_whose_columns_run_outside_it_is_a_finding(folder: Path) -> None:
    made = encode([b"a"], b"a.b")
    made.body = b"\xff" * len(made.body)
    made.header[12:16] = crc32c(made.body).to_bytes(4, "little")
    made.stamp(10, 9, 200)
    extend(folder / THIRD, made.to_bytes())
    *_, last = dump(folder / THIRD)
    assert isinstance(last, Finding)
    assert (last.kind, last.position) == (Kind.BAD_COLUMNS, 2 * LENGTH)
