"""`verify` of what lies beside the streams says what the server would say of it, byte by byte."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.metadata_records import (
    ENTRY,
    HEADER_BYTES,
    TRUNCATE,
    Entry,
    Snapshot,
    encode_entry,
    encode_record,
)
from jetstream_protocol.logfiles.verify import verify
from jetstream_protocol.types import NodeId
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.replication.run_record import RunRecordFile

STARTS_EVERY = 7
"""Bytes between two comparisons with what the server does, which syncs its files each time."""
STATE = zlib.compress(b'{"format":1}\n[]')


def command(number: int) -> bytes:
    return b'\x00{"v":1}\n{"op":"barrier","number":%d}' % number


VOTERS = json.dumps({"voters": {"0": "a:1", "1": "b:1"}, "changed": [2], "recoveries": 0}).encode()


def entry(index: int) -> Entry:
    data = {1: b"\x01", 5: b"\x04" + VOTERS}.get(index, command(index))
    return Entry(data, index, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Node 1 of cluster c5: entries 1 to 9, those up to 4 in a snapshot, and a run."""
    disk = OsDisk()
    data = DataFolder.open(disk, str(tmp_path / "data"), node_id=1)
    group = Group(NodeId(1), tuple((NodeId(each), "") for each in range(3)))
    file = GroupFile.open(data.metadata_directory, group, accept_voters=False)
    file.replace(dataclasses.replace(file.group, cluster_id="c5"))
    data.join("c5")
    journal = Journal.open(data.metadata_directory)
    journal.save_vote(1, "node-2")
    for index in range(1, 7):
        journal.append(entry(index))
    journal.sync()
    journal.install(Snapshot(4, 1, STATE, (entry(3), entry(4)), VOTERS), keep_from=4)
    journal.sync()
    journal.append(entry(7))
    journal.truncate(7)
    for index in (7, 8, 9):
        journal.append(entry(index))
    journal.sync()
    journal.close()
    RunRecordFile(disk, str(tmp_path / "data" / "runs"), "c5/1").begin("session", "boot")
    data.close()
    yield tmp_path / "data"
    disk.close()


def found(folder: Path) -> list[tuple[str, int, Kind]]:
    return [(Path(f.file).name, f.position, f.kind) for f in verify(folder)]


def damage(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.repairable]


def starts(folder: Path) -> bool:
    """Whether a server would go on with a copy of this journal and snapshot."""
    copy = folder.with_name("copy")
    shutil.copytree(folder / "metadata", copy)
    try:
        Journal.open(str(copy)).close()
    except StorageError:
        return False
    else:
        return True
    finally:
        shutil.rmtree(copy)


def test_what_a_server_writes_is_sound(folder: Path) -> None:
    assert found(folder) == []


@pytest.mark.parametrize("name", ["journal", "snapshot"])
def test_every_truncation_of_the_metadata_is_named_as_the_server_takes_it(
    folder: Path, name: str
) -> None:
    file = folder / "metadata" / name
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        findings = list(verify(folder))
        if length % STARTS_EVERY == 0:
            assert bool(damage(findings)) is not starts(folder), (length, findings)
        for finding in findings:
            assert (Path(finding.file).name, finding.position <= length) == (name, True)


@pytest.mark.parametrize("name", ["journal", "snapshot"])
def test_every_flipped_byte_of_the_metadata_is_named_as_the_server_takes_it(
    folder: Path, name: str
) -> None:
    file = folder / "metadata" / name
    whole = file.read_bytes()
    for position in range(len(whole)):
        file.write_bytes(
            whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :]
        )
        findings = list(verify(folder))
        assert findings, position
        if position % STARTS_EVERY == 0:
            assert bool(damage(findings)) is not starts(folder), (position, findings)
        assert findings[0].position <= position


def test_every_damage_to_the_record_of_runs_is_named(folder: Path) -> None:
    runs = folder / "runs"
    whole = runs.read_bytes()
    spoilt = [whole[:length] for length in range(len(whole))]
    spoilt += [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))
    ]
    for data in spoilt:
        runs.write_bytes(data)
        (finding,) = verify(folder)
        assert (finding.file, finding.kind, finding.repairable) == (str(runs), Kind.BAD_RUNS, True)


def append(folder: Path, *records: bytes) -> int:
    """Add records to the journal; where the first of them begins."""
    journal = folder / "metadata" / "journal"
    before = journal.read_bytes()
    journal.write_bytes(before + b"".join(records))
    return len(before)


def old_snapshot(folder: Path) -> None:
    """One that ends before the journal's first entry."""
    other = Journal.open(str(folder.with_name("other")))
    other.install(Snapshot(2, 1, STATE, (entry(2),)))
    other.sync()
    other.close()
    shutil.copy(folder.with_name("other") / "snapshot", folder / "metadata" / "snapshot")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


Spoil = Callable[[Path], object]
CASES: dict[str, tuple[Spoil, list[tuple[str, int, Kind]]]] = {
    "the journal is gone": (
        lambda f: (f / "metadata" / "journal").unlink(),
        [("journal", 0, Kind.MISSING_METADATA)],
    ),
    "journal and snapshot are gone": (
        lambda f: [(f / "metadata" / name).unlink() for name in ("journal", "snapshot")],
        [("journal", 0, Kind.MISSING_METADATA)],
    ),
    "the snapshot is gone": (
        lambda f: (f / "metadata" / "snapshot").unlink(),
        [("journal", HEADER_BYTES, Kind.MISSING_METADATA)],
    ),
    "an older snapshot is in its place": (
        old_snapshot,
        [("journal", HEADER_BYTES, Kind.MISSING_METADATA)],
    ),
    "group.json is cut short": (
        lambda f: (f / "metadata" / "group.json").write_text("{"),
        [("group.json", 0, Kind.BAD_IDENTITY)],
    ),
    "group.json of another node": (
        lambda f: replace(f / "metadata" / "group.json", '"node_id": 1', '"node_id": 2'),
        [("group.json", 0, Kind.BAD_IDENTITY)],
    ),
    "group.json of another cluster": (
        lambda f: replace(f / "metadata" / "group.json", "c5", "c6"),
        [("group.json", 0, Kind.BAD_IDENTITY)],
    ),
    "the record of another folder's runs": (
        lambda f: RunRecordFile(OsDisk(), str(f / "runs"), "c6/1").begin("session", "boot"),
        [("runs", 16, Kind.BAD_RUNS)],
    ),
    "an atomic write that never took place": (
        lambda f: (f / "metadata" / "snapshot.tmp").write_bytes(b"half"),
        [("snapshot.tmp", 0, Kind.LEFTOVER_FILE)],
    ),
    "the reserve for a full disk, and a file that is none of ours": (
        lambda f: [(f / "metadata" / name).write_bytes(b"hello") for name in ("reserve", "notes")],
        [("notes", 0, Kind.UNKNOWN_FILE)],
    ),
    "a file that is none of ours": (
        lambda f: (f / "metadata" / "notes").write_bytes(b"hello"),
        [("notes", 0, Kind.UNKNOWN_FILE)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_found_with_its_file_and_position(folder: Path, name: str) -> None:
    spoil, expected = CASES[name]
    spoil(folder)
    assert found(folder) == expected
    if expected[0][2] == Kind.MISSING_METADATA and (folder / "metadata" / "journal").exists():
        assert not starts(folder)


@pytest.mark.parametrize(
    "record",
    [
        encode_entry(entry(11)),
        encode_record(9, 10, 1, b""),
        encode_record(ENTRY, 10, 1, b"\x05what is this"),
        encode_record(ENTRY, 10, 1, b'\x00{"v":1}\n{not json'),
        encode_record(ENTRY, 10, 1, b""),
    ],
    ids=["a gap", "an unknown record", "an unknown entry", "no JSON", "nothing"],
)
def test_what_we_never_wrote_is_found_although_its_checksum_is_right(
    folder: Path, record: bytes
) -> None:
    position = append(folder, record)
    assert found(folder) == [("journal", position, Kind.BAD_METADATA)]


def test_entries_removed_and_written_again_are_sound(folder: Path) -> None:
    append(folder, encode_record(TRUNCATE, 8, 0, b""), *map(encode_entry, map(entry, (8, 9, 10))))
    assert found(folder) == []


def test_damage_does_not_hide_what_is_after_it(folder: Path) -> None:
    journal = folder / "metadata" / "journal"
    whole = bytearray(journal.read_bytes())
    whole[HEADER_BYTES + 3] ^= 1
    journal.write_bytes(bytes(whole) + b"torn")
    (folder / "runs").write_bytes(b"?")
    (folder / "metadata" / "snapshot").write_bytes(b"?")
    assert [(name, kind) for name, _, kind in found(folder)] == [
        ("runs", Kind.BAD_RUNS),
        ("snapshot", Kind.BAD_METADATA),
        ("journal", Kind.BAD_METADATA),
        ("journal", Kind.TORN_TAIL),
    ]


def test_a_folder_whose_first_start_was_cut_off_is_sound(tmp_path: Path) -> None:
    disk = OsDisk()
    DataFolder.open(disk, str(tmp_path / "data"), node_id=1, cluster="prod").close()
    disk.close()
    assert found(tmp_path / "data") == []
    meta = json.loads((tmp_path / "data" / "meta.json").read_text())
    assert (meta["cluster"], meta["cluster_id"]) == ("prod", "")
