from __future__ import annotations

import errno

import pytest

from jetstream_protocol.errors import CorruptBatchError, StorageError, StorageFullError
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_server.log.state_files import (
    read_log_checkpoint,
    read_state,
    write_log_checkpoint,
    write_state,
)
from tests.support.log_disk import FaultyDisk, MemoryDisk

CHECKPOINT = LogCheckpoint(
    log_start_offset=3,
    recovery_point=90,
    last_append_timestamp=1_700_000_000_000_000,
    epochs=((0, 0), (4, 17)),
    clean_size=4096,
)


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/17")
    return disk


def test_checkpoint_is_read_as_written(disk: MemoryDisk) -> None:
    assert read_log_checkpoint(disk, "/17") is None
    write_log_checkpoint(disk, "/17", CHECKPOINT)
    assert read_log_checkpoint(disk, "/17") == CHECKPOINT


def test_checkpoint_survives_a_power_failure(disk: MemoryDisk) -> None:
    disk.fsync_directory("/")
    write_log_checkpoint(disk, "/17", CHECKPOINT)
    assert read_log_checkpoint(disk.power_failed(lambda n: 0), "/17") == CHECKPOINT


def test_checkpoint_is_text_for_people(disk: MemoryDisk) -> None:
    write_log_checkpoint(disk, "/17", CHECKPOINT)
    text = disk.read_file("/17/checkpoint").decode()
    assert text.startswith("JSLC 1 ")
    assert '"recovery_point":90' in text


def refused(disk: MemoryDisk) -> bool:
    """Whether the checkpoint there is found damaged: recovery does without it then."""
    with pytest.raises(CorruptBatchError):
        read_log_checkpoint(disk, "/17")
    return True


def test_every_flipped_bit_and_every_shortened_checkpoint_is_refused(disk: MemoryDisk) -> None:
    data = CHECKPOINT.to_bytes("17")
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        disk.put("/17/checkpoint", bytes(damaged))
        assert refused(disk)
        disk.put("/17/checkpoint", data[:at])
        assert refused(disk)


def test_checkpoint_copied_from_another_log_is_refused(disk: MemoryDisk) -> None:
    disk.put("/17/checkpoint", CHECKPOINT.to_bytes("18"))
    assert refused(disk)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"log_start_offset": 0},
        {"log_start_offset": "x"},
        {"log_start_offset": 9, "recovery_point": 8},
        {"log_start_offset": -1},
        {"epochs": [[1, 5], [0, 9]]},
        {"epochs": [[1, 5], [2, 5]]},
        {"epochs": [[1]]},
        {"epochs": 4},
    ],
)
def test_checkpoint_that_cannot_be_true_is_refused(
    disk: MemoryDisk, state: dict[str, object]
) -> None:
    complete: dict[str, object] = {
        "log_start_offset": 0, "recovery_point": 8, "last_append_timestamp": 0, "epochs": [],
        "clean_size": -1,
    }  # fmt: skip
    merged = complete | state if state else {}
    if state == {"log_start_offset": 0}:
        del merged["recovery_point"]
    disk.put("/17/checkpoint", checkpoint_file.encode("log", "17", merged))
    assert refused(disk)


def test_state_of_another_kind_or_owner_is_refused(disk: MemoryDisk) -> None:
    write_state(disk, "/17/state", "session", "me", {"clean": True})
    assert read_state(disk, "/17/state", "session", "me") == {"clean": True}
    for kind, owner in (("session", "you"), ("log", "me")):
        with pytest.raises(CorruptBatchError):
            read_state(disk, "/17/state", kind, owner)
    assert read_state(disk, "/17/none", "session", "me") is None


def test_disk_failures_are_storage_errors(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk)
    faulty.fail("write_atomic", "/state", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        write_state(faulty, "/17/state", "session", "me", {})
    faulty.fail("read_file", "/state", errno.EIO)
    with pytest.raises(StorageError, match="reading /17/state"):
        read_state(faulty, "/17/state", "session", "me")
