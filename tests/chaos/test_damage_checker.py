"""Each anomaly that the damage campaign looks for, planted in what it looks at."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import CorruptBatchError
from tests.chaos.damage.checker import Kind, Memory, check_stream, difference
from tests.chaos.damage.copies import Copy, Hole, Reader, Record
from tests.chaos.damage.harm import FILE_WAYS, FOLDER_WAYS, fingerprint
from tests.chaos.damage.jobs import chunks
from tests.chaos.damage.plan import STOPS, plan
from tests.chaos.damage.publishers import Books
from tests.chaos.damage.streams import SEGMENT_BYTES, Stream
from tests.chaos.damage.targets import KINDS, candidates
from tests.chaos.damage.words import Log, says_what_to_do

PLAIN = Stream("plain")
COMPACTED = Stream("compacted", compacted=True)
LIMITED = Stream("limited", max_bytes=2 * SEGMENT_BYTES)
COUNT = 50


def copy(stream: Stream, node: int = 0, count: int = COUNT) -> Copy:
    """A whole copy in which message n has offset n."""
    records = {n: Record(n, stream.key(n)) for n in range(count)}
    return Copy(node, 0, count, b"".join(map(stream.value, range(count))), records)


def books(count: int = COUNT) -> Books:
    return Books(count, {n: [n] for n in range(count)})


def kinds(stream: Stream, book: Books, *copies: Copy, **more: object) -> set[Kind]:
    memory = more.pop("memory", Memory())
    assert isinstance(memory, Memory)
    excuse = str(more.get("excuse", ""))
    return {each.kind for each in check_stream(stream, book, copies, memory, excuse)}


def test_copies_that_are_whole_have_no_anomaly() -> None:
    for stream in (PLAIN, COMPACTED, LIMITED):
        assert kinds(stream, books(), *(copy(stream, node) for node in range(3))) == set()


def test_a_lost_record_is_found() -> None:
    hurt = copy(PLAIN)
    del hurt.records[7]
    assert kinds(PLAIN, books(), hurt) == {Kind.LOST}


def test_a_record_that_a_later_one_of_its_key_replaced_is_not_lost_and_the_last_one_is() -> None:
    last = max(n for n in range(COUNT) if COMPACTED.key(n) == COMPACTED.key(2))
    compacted = copy(COMPACTED)
    del compacted.records[2]
    assert last > 2
    assert kinds(COMPACTED, books(), compacted) == set()
    del compacted.records[last]
    assert kinds(COMPACTED, books(), compacted) == {Kind.LOST}


def test_wrong_bytes_at_an_acknowledged_offset_are_found() -> None:
    hurt = copy(PLAIN)
    hurt.records[3] = Record(PLAIN.number(PLAIN.value(3) + b"?"), None)
    assert hurt.records[3].number == -1
    assert kinds(PLAIN, books(), hurt) == {Kind.WRONG_BYTES}


def test_an_id_that_a_copy_has_compacted_away_may_be_stored_again() -> None:
    """The copy that was begun anew did not know it, and led."""
    book, whole = books(), copy(COMPACTED)
    first = next(n for n, record in whole.records.items() if replaced(whole, n))
    again = Record(whole.records[first].number, whole.records[first].key)
    for each in (whole, anew := copy(COMPACTED)):
        each.records[COUNT] = again
        each.high_watermark = COUNT + 1
    book.note(again.number, COUNT)
    found = {each.kind for each in check_stream(COMPACTED, book, [whole, anew], Memory())}
    assert found == {Kind.DUPLICATE}
    del anew.records[first]
    assert check_stream(COMPACTED, book, [whole, anew], Memory()) == []


def replaced(whole: Copy, offset: int) -> bool:
    key = whole.records[offset].key
    return any(record.key == key for at, record in whole.records.items() if at > offset)


def test_without_a_copy_nobody_knows_which_ids_compaction_has_removed() -> None:
    told = books()
    told.acked[2].append(COUNT)
    assert kinds(COMPACTED, told) == set()
    assert kinds(PLAIN, told) == {Kind.DUPLICATE}


def test_another_record_at_an_acknowledged_offset_is_found() -> None:
    hurt = copy(PLAIN)
    hurt.records[3] = Record(COUNT + 1, None)
    assert Kind.WRONG_BYTES in kinds(PLAIN, books(), hurt)


def test_an_offset_told_to_two_messages_is_found() -> None:
    book = books()
    book.acked[COUNT] = [7]
    assert Kind.OFFSET_TWICE in kinds(PLAIN, book, copy(PLAIN))


def test_an_offset_that_stands_for_another_record_than_before_is_found() -> None:
    memory = Memory()
    memory.take(copy(PLAIN, count=COUNT + 1))
    now = copy(PLAIN, count=COUNT + 1)
    now.records[COUNT] = Record(COUNT + 5, None)
    assert kinds(PLAIN, books(), now, memory=memory) == {Kind.OFFSET_TWICE}


@pytest.mark.parametrize("stream", [PLAIN, LIMITED], ids=lambda stream: stream.name)
def test_a_log_that_starts_later_without_reason_is_found(stream: Stream) -> None:
    hurt = copy(stream)
    hurt.log_start_offset = 10
    hurt.records = {n: record for n, record in hurt.records.items() if n >= 10}
    assert Kind.SHORTER in kinds(stream, books(), hurt)


def test_a_limit_is_a_reason_to_start_later() -> None:
    count = 2 * LIMITED.max_bytes // len(LIMITED.value(0))
    kept = copy(LIMITED, count=count)
    kept.log_start_offset = 10
    kept.records = {n: record for n, record in kept.records.items() if n >= 10}
    assert kinds(LIMITED, books(count), kept) == set()


def test_a_log_that_ends_before_what_was_acknowledged_is_found() -> None:
    assert kinds(PLAIN, books(), copy(PLAIN, count=COUNT - 1)) == {Kind.SHORTER, Kind.LOST}


def test_a_log_that_ends_before_what_was_read_is_found() -> None:
    memory = Memory()
    memory.take(copy(PLAIN, count=COUNT + 5))
    assert kinds(PLAIN, books(), copy(PLAIN), memory=memory) == {Kind.SHORTER}


def test_a_message_that_is_stored_twice_is_found() -> None:
    hurt = copy(PLAIN, count=COUNT + 1)
    hurt.records[COUNT] = Record(4, None)
    assert kinds(PLAIN, books(), hurt) == {Kind.DUPLICATE}


def test_a_message_that_was_told_two_offsets_is_found() -> None:
    book = books()
    book.acked[4] = [4, COUNT]
    assert Kind.DUPLICATE in kinds(PLAIN, book, copy(PLAIN))


def test_copies_that_differ_are_found() -> None:
    other = copy(PLAIN, node=1)
    other.data = other.data[:-1] + b"?"
    assert kinds(PLAIN, books(), copy(PLAIN), other) == {Kind.DIFFERS}


def test_compacted_copies_may_keep_other_records_and_no_other_last_value() -> None:
    one, other = copy(COMPACTED), copy(COMPACTED, node=1)
    del other.records[2]
    assert difference(COMPACTED, one, other) == ""
    first, second = [n for n in range(COUNT) if COMPACTED.key(n) == COMPACTED.key(2)][-2:]
    other.records[second] = Record(first, COMPACTED.key(first))
    assert Kind.DIFFERS in kinds(COMPACTED, books(), one, other)


def test_with_one_replica_what_is_said_to_be_missing_is_not_lost() -> None:
    hurt = copy(PLAIN)
    for n in range(10, 20):
        del hurt.records[n]
    hurt.holes = [Hole(10, 20, "corrupt_batch")]
    assert kinds(PLAIN, books(), hurt) == set()
    hurt.holes = [Hole(10, 19, "corrupt_batch")]
    assert kinds(PLAIN, books(), hurt) == {Kind.LOST}
    assert kinds(PLAIN, books(), hurt, excuse="offline: damaged") == set()


def test_no_excuse_covers_wrong_bytes_an_offset_twice_or_a_duplicate() -> None:
    hurt, book = copy(PLAIN, count=COUNT + 1), books()
    hurt.records[3] = Record(-1, None)
    hurt.records[COUNT] = Record(4, None)
    book.acked[5] = [6]
    found = kinds(PLAIN, book, hurt, excuse="offline: damaged")
    assert found == {Kind.WRONG_BYTES, Kind.DUPLICATE, Kind.OFFSET_TWICE}


# What the campaign does and hears.


@pytest.mark.parametrize("way", sorted(FILE_WAYS))
def test_every_damage_to_a_file_changes_it(way: str, tmp_path: Path) -> None:
    path, older = tmp_path / "file", tmp_path / "older"
    path.write_bytes(bytes(range(1, 200)))
    older.write_bytes(b"before")
    was = fingerprint(path)
    assert FILE_WAYS[way](path, older, Random(1))
    assert fingerprint(path) != was


@pytest.mark.parametrize("way", sorted(FOLDER_WAYS))
def test_every_damage_to_a_folder_changes_it(way: str, tmp_path: Path) -> None:
    path, older = tmp_path / "folder", tmp_path / "older"
    for folder in (path, older):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").write_text(folder.name)
    was = fingerprint(path)
    assert FOLDER_WAYS[way](path, older, Random(1))
    assert fingerprint(path) != was


def test_every_file_of_a_data_folder_is_of_some_kind(tmp_path: Path) -> None:
    names = (
        "meta.json", "runs", "metadata/journal", "metadata/snapshot", "metadata/group.json",
        "streams/5/00000000000000000000.log", "streams/5/00000000000000000000.index",
        "streams/5/00000000000000000007.log", "streams/5/checkpoint", "streams/5/producers",
        "streams/5/compaction", "streams/5/something-new",
    )  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = {path for kind in KINDS for path in candidates(tmp_path, kind)}
    assert {path for path in found if path.is_file()} == {tmp_path / name for name in names}


def test_a_seed_plans_the_same_rounds_again_and_every_kind_of_file_has_its_turn() -> None:
    planned = [plan("seed", number, 3) for number in range(10 * len(KINDS))]
    assert planned == [plan("seed", number, 3) for number in range(10 * len(KINDS))]
    assert all(sum(each.kind == kind for each in planned) == 10 for kind in KINDS)
    assert {each.stop for each in planned} == set(STOPS)


def lines(tmp_path: Path, *text: str) -> Log:
    path = tmp_path / "log"
    log = Log(path)
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in text)
    log.read()
    return log


@pytest.mark.parametrize(
    ("line", "is_complaint"),
    [
        ('{"event": "log_damaged", "level": "error", "reason": "…"}', True),
        ("error: /data/meta.json is damaged; restore it", True),
        ('{"event": "node_fenced", "level": "warning", "node": 1}', False),
        ('{"event": "session_held", "level": "info"}', False),
    ],
)
def test_a_line_that_any_restart_brings_about_says_nothing_of_damage(
    line: str, is_complaint: bool, tmp_path: Path
) -> None:
    assert bool(lines(tmp_path, line).complaints) is is_complaint


def test_a_traceback_in_a_log_is_heard(tmp_path: Path) -> None:
    entry = '{"event": "internal_error", "level": "error", "exception": "Traceback …"}'
    assert lines(tmp_path, entry).tracebacks
    assert lines(tmp_path, "Traceback (most recent call last):").tracebacks


def test_a_refusal_has_to_name_a_place_and_say_what_to_do() -> None:
    assert says_what_to_do("error: /data/meta.json is damaged; restore it, or move the folder away")
    assert not says_what_to_do("error: /data/metadata/group.json cannot be read: line 1 column 48")
    assert not says_what_to_do("KeyError: 'move /data'")


def test_a_reader_refuses_bytes_with_a_bit_flipped() -> None:
    reader = Reader().records
    batch = encode([PLAIN.value(0)], b"plain")
    batch.stamp(0, 0, 0)
    data = bytearray(batch.to_bytes())
    assert reader(PLAIN, bytes(data)) == {0: Record(0, None)}
    data[100] ^= 4
    with pytest.raises(CorruptBatchError):
        reader(PLAIN, bytes(data))


def test_rounds_are_dealt_out_by_clusters_and_each_is_done_once() -> None:
    assert chunks(0, 25) == [(0, 10), (10, 10), (20, 5)]
    assert chunks(7, 8) == [(7, 3), (10, 5)]
    assert chunks(3, 2) == [(3, 2)]
