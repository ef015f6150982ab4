"""A log that is encrypted: nothing of a record is in its files, and everything works as without."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from jetstream_protocol.batch import HEADER_BYTES, Batch, EncodedBatch, encode, iterate
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import read_prefix
from jetstream_protocol.errors import SequenceTakenError
from jetstream_protocol.logfiles.scan import walk
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.encryption import CannotDecryptError, Keys, key_id_of, plain_batches
from jetstream_server.log.slice_filter import SliceFilter
from tests.support.compacting import GRACE_US, compact, rows, table
from tests.support.log_disk import MemoryDisk
from tests.support.log_producers import OTHER_CRC, crc_of

KEY, OTHER = b"k" * 32, b"o" * 32
SECRET = b"pl4nted"
WINDOW_US = 1000


def keys_of(*keys: bytes, retired: tuple[str, ...] = (), encrypts: bool = True) -> Keys:
    numbers = count()
    return Keys(
        keys,
        lambda length: next(numbers).to_bytes(length, "big"),
        retired=retired,
        encrypts=encrypts and bool(keys),
    )


CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, keys=keys_of(KEY))


def open_log(disk: MemoryDisk, config: LogConfig = CONFIG, *, clean: bool = False) -> CommitLog:
    return CommitLog.open(disk, "/17", config, clean=clean, duplicate_window_us=WINDOW_US)


def secret(number: int, *, compression: int = 0) -> EncodedBatch:
    """A batch whose record has the planted word wherever a record can have it."""
    block = b"NATS/1.0\r\nNats-Msg-Id: %b-id-%d\r\nX: %b\r\n\r\n" % (SECRET, number, SECRET)
    return encode(
        [b"%b value %d" % (SECRET, number)],
        b"%b.subject" % SECRET,
        keys=[b"%b-key-%d" % (SECRET, number % 3)],
        header_blocks=None if compression else [block],
        compression=compression,
    )


def produced(sequence: int) -> EncodedBatch:
    return encode(
        [b"%b value %d" % (SECRET, sequence)], b"s", producer_id=7, producer_sequence=sequence
    )


def fill(log: CommitLog, numbers: range, *, epoch: int = 1) -> None:
    for number in numbers:
        log.append(secret(number), leader_epoch=epoch, timestamp_us=number)


def stored(log: CommitLog) -> bytes:
    """All of the log, as it is in the files."""
    parts, offset = [], log.log_start_offset
    while (found := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        parts.append(log.pread(found))
        offset = found.next_offset
    return b"".join(parts)


def values(log: CommitLog) -> list[bytes | None]:
    plain = plain_batches(log.encryption, stored(log))
    return [value for batch in iterate(plain) for value in batch.values()]


def key_ids(log: CommitLog) -> set[str]:
    data = stored(log)
    read = lambda position, length: data[position : position + length]  # noqa: E731
    return {
        read_prefix(data, position + HEADER_BYTES).key_id
        for position, header in walk(read, 0, len(data), bodies=True)
        if header.flags & Flags.ENCRYPTED
    }


def contents(disk: MemoryDisk) -> bytes:
    return b"".join(disk.read_file(f"/17/{name}") for name in disk.list_directory("/17"))


def test_nothing_of_a_record_is_in_any_file() -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = open_log(disk)
    fill(log, range(20))
    log.append(secret(20, compression=Flags.ZSTD), leader_epoch=1, timestamp_us=20)
    log.flush()
    log.close(clean=True)
    assert log.segment_count > 2
    assert "producers" in disk.list_directory("/17")
    assert SECRET not in contents(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_it_is_the_same_after_a_restart(clean: bool) -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = open_log(disk)
    fill(log, range(10))
    log.flush()
    fill(log, range(10, 15))
    before, image = values(log), log.producers.image()
    log.close(clean=clean)
    again = open_log(disk, clean=clean)
    assert values(again) == before == [b"%b value %d" % (SECRET, each) for each in range(15)]
    assert again.producers.image()[1] == image[1]
    assert again.producers.offset_of(SECRET + b".subject", SECRET + b"-id-3", 0) == 3


@pytest.mark.parametrize("how", ["kept", "lost", "copied"])
def test_a_producers_batch_is_known_by_what_it_was_before_it_was_encrypted(how: str) -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = open_log(disk)
    sent = [produced(sequence) for sequence in range(9)]
    for sequence, batch in enumerate(sent):
        log.append(batch, leader_epoch=1, timestamp_us=sequence)
    log.close(clean=True)
    if how == "copied":
        again = open_log(MemoryDisk())
        again.append_replica(stored(log), leader_epoch=1)
    else:
        if how == "lost":
            disk.remove("/17/producers")
        again = open_log(disk, clean=True)
    for sequence, batch in enumerate(sent[4:], 4):
        original = again.producers.check(7, sequence, crc_of(batch))
        assert original is not None
        with pytest.raises(SequenceTakenError):
            again.producers.check(7, sequence, OTHER_CRC)
    assert again.producers.image()[0] == log.producers.image()[0]


def test_the_file_of_producers_does_not_tell_the_crc_of_what_is_encrypted() -> None:
    """It would show whether somebody has guessed a record."""
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = open_log(disk)
    log.append(produced(0), leader_epoch=1, timestamp_us=0)
    log.close(clean=True)
    assert b"%d" % crc_of(produced(0)) not in disk.read_file("/17/producers")


def test_a_damaged_producers_file_is_made_anew_from_encrypted_batches() -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = open_log(disk)
    fill(log, range(10))
    log.flush()
    image = log.producers.image()
    log.close(clean=True)
    disk.remove("/17/producers")
    assert open_log(disk, clean=True).producers.image()[1] == image[1]


def test_a_follower_takes_the_same_bytes_and_knows_the_message_ids() -> None:
    leader, follower = open_log(MemoryDisk()), open_log(MemoryDisk())
    fill(leader, range(10))
    follower.append_replica(stored(leader), leader_epoch=1)
    assert stored(follower) == stored(leader)
    assert follower.producers.image()[1] == leader.producers.image()[1]


@pytest.mark.parametrize("keys", [None, keys_of(OTHER)])
def test_a_follower_takes_nothing_that_it_could_not_read(keys: Keys | None) -> None:
    leader = open_log(MemoryDisk())
    follower = open_log(MemoryDisk(), replace(CONFIG, keys=keys))
    fill(leader, range(3))
    with pytest.raises(CannotDecryptError, match=key_id_of(KEY)):
        follower.append_replica(stored(leader), leader_epoch=1)
    assert (follower.log_end_offset, follower.offline_reason) == (0, "")


def test_a_follower_takes_what_nobody_can_read_any_more() -> None:
    leader = open_log(MemoryDisk())
    keys = keys_of(OTHER, retired=(key_id_of(KEY),))
    follower = open_log(MemoryDisk(), replace(CONFIG, keys=keys))
    fill(leader, range(3))
    follower.append_replica(stored(leader), leader_epoch=1)
    assert stored(follower) == stored(leader)
    with pytest.raises(CannotDecryptError, match="retired_key_ids"):
        values(follower)


def test_a_follower_that_lacked_a_key_goes_on_once_it_has_it() -> None:
    leader, disk = open_log(MemoryDisk()), MemoryDisk()
    fill(leader, range(3))
    follower = open_log(disk, replace(CONFIG, keys=keys_of(OTHER)))
    with pytest.raises(CannotDecryptError):
        follower.append_replica(stored(leader), leader_epoch=1)
    follower.close(clean=True)
    again = open_log(disk, replace(CONFIG, keys=keys_of(OTHER, KEY)), clean=True)
    again.append_replica(stored(leader), leader_epoch=1)
    assert values(again) == values(leader)


def test_keys_are_rotated_without_a_rewrite() -> None:
    disk = MemoryDisk()
    plain = open_log(disk, replace(CONFIG, keys=None))
    fill(plain, range(3))
    plain.close(clean=True)
    log = open_log(disk)
    fill(log, range(3, 6))
    before = stored(log)
    log.close(clean=True)
    rotated = open_log(disk, replace(CONFIG, keys=keys_of(OTHER, KEY)), clean=True)
    fill(rotated, range(6, 9))
    assert stored(rotated).startswith(before)
    assert key_ids(rotated) == {key_id_of(KEY), key_id_of(OTHER)}
    assert values(rotated) == [b"%b value %d" % (SECRET, each) for each in range(9)]


def test_a_node_that_only_decrypts_reads_all_and_encrypts_its_state() -> None:
    disk = MemoryDisk()
    fill(log := open_log(disk), range(3))
    log.close(clean=True)
    keys = keys_of(KEY, encrypts=False)
    again = open_log(disk, replace(CONFIG, keys=keys), clean=True)
    again.append(encode([b"plain"], b"s"), leader_epoch=1, timestamp_us=9)
    again.flush()
    again.close(clean=True)
    assert values(again)[-1] == b"plain"
    assert b"plain" in contents(disk)
    assert SECRET not in contents(disk)


def test_an_offset_that_is_written_again_has_another_nonce() -> None:
    log = open_log(MemoryDisk())
    fill(log, range(2))
    first = stored(log)
    log.truncate(1)
    log.append(secret(1), leader_epoch=2, timestamp_us=1)
    second = stored(log)
    half = len(first) // 2
    prefixes = [read_prefix(each, half + HEADER_BYTES) for each in (first, second)]
    assert first[:half] == second[:half]
    assert len({(each.salt, each.nonce) for each in prefixes}) == 2


def keyed(disk: MemoryDisk, keys: Keys) -> CommitLog:
    log = open_log(disk, replace(CONFIG, keys=keys))
    fill(log, range(30))
    log.seal()
    log.flush()
    return log


def test_compaction_decrypts_and_encrypts_anew() -> None:
    disk = MemoryDisk()
    log = keyed(disk, keys_of(KEY))
    assert compact(disk, log) is not None
    found = [value for value in values(log) if value is not None]
    assert found == [b"%b value %d" % (SECRET, each) for each in (27, 28, 29)]
    assert SECRET not in contents(disk)
    assert key_ids(log) == {key_id_of(KEY)}


def test_compaction_keeps_what_it_cannot_decrypt() -> None:
    disk = MemoryDisk()
    log = keyed(disk, keys_of(KEY))
    end = log.log_end_offset
    log.close(clean=True)
    later = open_log(disk, replace(CONFIG, keys=keys_of(OTHER)), clean=True)
    fill(later, range(30, 42))
    later.seal()
    later.flush()
    assert compact(disk, later) is not None
    later.close(clean=True)
    both = open_log(disk, replace(CONFIG, keys=keys_of(OTHER, KEY)), clean=True)
    assert values(both)[:end] == [b"%b value %d" % (SECRET, each) for each in range(end)]
    assert values(both)[end:] == [b"%b value %d" % (SECRET, each) for each in (39, 40, 41)]


def put(log: CommitLog, key: bytes, value: bytes | None) -> None:
    """A record in a sealed segment of its own."""
    log.append(encode([value], b"s", keys=[key]), leader_epoch=1, timestamp_us=1)
    log.seal()
    log.flush()


def live(log: CommitLog) -> dict[bytes, bytes]:
    plain = plain_batches(log.encryption, stored(log))
    return table([row for batch in iterate(plain) for row in rows(batch)])


def given(disk: MemoryDisk, log: CommitLog, *keys: bytes) -> CommitLog:
    """The log after a restart with these keys."""
    log.close(clean=True)
    return open_log(disk, replace(CONFIG, keys=keys_of(*keys)), clean=True)


@pytest.mark.parametrize("passes_with_all_keys", [0, 1, 2, 3])
def test_a_deleted_key_stays_deleted_when_the_key_that_encrypted_it_comes_back(
    passes_with_all_keys: int,
) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    put(log, b"gone", b"old")
    put(log, b"kept", b"old")
    log = given(disk, log, OTHER)
    put(log, b"gone", None)
    put(log, b"kept", b"new")
    put(log, b"last", b"new")
    for wall_us in range(1, 5 * GRACE_US, GRACE_US):
        compact(disk, log, wall_us=wall_us)
    log = given(disk, log, OTHER, KEY)
    for number in range(passes_with_all_keys):
        compact(disk, log, wall_us=(6 + number) * GRACE_US)
    assert live(log) == {b"kept": b"new", b"last": b"new"}
    has_tombstone = None in values(log)
    assert has_tombstone == (passes_with_all_keys < 2), "it has a grace time of its own"
    assert values(log).count(b"old") == (2 if not passes_with_all_keys else 0)


def test_a_key_that_comes_back_while_the_node_runs_makes_its_records_dirty() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    put(log, b"gone", b"old")
    keys = keys_of(OTHER)
    log.close(clean=True)
    log = open_log(disk, replace(CONFIG, keys=keys), clean=True)
    put(log, b"gone", None)
    put(log, b"last", b"new")
    compact(disk, log, wall_us=1)
    assert log.compaction.state.cleaned_to == log.log_end_offset
    keys.replace([OTHER, KEY])
    assert log.compaction.state.cleaned_to == 0
    compact(disk, log, wall_us=2)
    assert log.compaction.state.cleaned_to == log.log_end_offset
    assert values(log) == [None, b"new"]


def test_what_was_moved_here_is_dirty_no_longer_than_other_records() -> None:
    """It is a batch of another stream: the node has its key, and cannot decrypt it."""
    log = open_log(disk := MemoryDisk())
    moved = encode([b"old"], b"s", keys=[b"gone"])
    moved.stamp(0, 1, 1)
    elsewhere = keys_of(KEY).of_stream(18)
    log.append_replica(elsewhere.encrypt_bytes(moved.to_bytes()), leader_epoch=1)
    put(log, b"gone", None)
    put(log, b"last", b"new")
    for wall_us in range(1, 5 * GRACE_US, GRACE_US):
        compact(disk, log, wall_us=wall_us)
        assert log.compaction.state.cleaned_to == log.log_end_offset
    with pytest.raises(CannotDecryptError):
        values(log)
    left = stored(log)
    headers = walk(lambda at, length: left[at : at + length], 0, len(left), bodies=True)
    assert [header.record_count for _, header in headers] == [1, 1, 1]


def test_a_compacted_log_is_taken_by_a_follower_and_found_by_recovery() -> None:
    disk = MemoryDisk()
    log = keyed(disk, keys_of(KEY))
    compact(disk, log)
    left = values(log)
    follower = open_log(MemoryDisk())
    follower.append_replica(stored(log), leader_epoch=1, gaps_below=log.log_end_offset)
    assert values(follower) == left
    log.close(clean=False)
    assert values(open_log(disk)) == left


def test_a_filter_looks_into_encrypted_batches_and_keeps_what_it_cannot_read() -> None:
    log = open_log(MemoryDisk(), replace(CONFIG, segment_bytes=1 << 20))
    for subject in (b"us", b"eu", b"us"):
        log.append(encode([bytes(40_000)], subject), leader_epoch=1, timestamp_us=1)
    found = log.read(0, 1 << 20, 3)
    assert found is not None
    data = log.pread(found)
    for encryption, kept in ((log.encryption, [1]), (keys_of(OTHER).of_stream(17), [0])):
        step = SliceFilter(found, data, RecordFilter("eu"), 1 << 20, True, encryption)
        assert list(step.steps()) == [None] * 3
        assert [each.base_offset for each in step.kept] == kept
    assert step.kept[0].length == len(data)


def test_a_worker_gets_the_keys() -> None:
    keys = keys_of(KEY, OTHER)
    again = Keys.of_process(keys.for_process, lambda length: bytes(length))
    assert again.ids == keys.ids == (key_id_of(KEY), key_id_of(OTHER))
    stored_ = keys.of_stream(17).encrypt_bytes(_stamped())
    assert Batch.decode(again.of_stream(17).decrypt(stored_)).values() == [b"x"]


def _stamped() -> bytes:
    batch = encode([b"x"], b"s")
    batch.stamp(0, 0, 0)
    return batch.to_bytes()


def test_keys_do_not_show_themselves() -> None:
    keys = keys_of(KEY)
    assert KEY.hex() not in repr(keys)
    assert KEY.decode() not in repr(keys)
    assert "Keys" not in repr(LogConfig())
    assert KEY.hex() not in repr(CONFIG)
