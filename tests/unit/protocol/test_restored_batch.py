"""Batches that come back into a log: what is kept of them, and what is refused."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import NO_PRODUCER, decode_header, encode, with_flags
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError, MessageTooLargeError
from jetstream_protocol.restored_batch import RESTORE_BYTES_MAX, filler, open_restored


def stored(base_offset: int, *values: bytes, timestamp: int = 5, **others: int) -> bytes:
    batch = encode(list(values), b"a.b", **others)  # type: ignore[arg-type]
    batch.stamp(base_offset, 7, timestamp)
    return batch.to_bytes()


def test_offsets_and_times_are_kept_and_the_producer_is_dropped() -> None:
    data = stored(40, b"a", b"b", producer_id=9, producer_sequence=3) + stored(42, b"c")
    opened = open_restored(data)
    assert [(each.base_offset, each.next_offset, each.timestamp) for each in opened] == [
        (40, 42, 5), (42, 43, 5),
    ]  # fmt: skip
    opened[0].encoded.stamp(40, 1, 5)
    header = decode_header(opened[0].encoded.to_bytes())
    assert (header.producer_id, header.leader_epoch) == (NO_PRODUCER, 1)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", InvalidRequestError, "nothing to restore"),
        (bytes(RESTORE_BYTES_MAX + 1), MessageTooLargeError, "at most"),
        (stored(0, b"a") + stored(2, b"b"), InvalidRequestError, "follows one that ends before 1"),
        (stored(0, b"a") + stored(1, b"b", timestamp=4), InvalidRequestError, "back in time"),
        (stored(0, b"a", timestamp=-1), InvalidRequestError, "before 1970"),
        (with_flags(stored(3, b"a"), Flags.AFTER_GAP), InvalidRequestError, "a gap"),
        (stored(0, b"a")[:-8], CorruptBatchError, "cut short"),
        (stored(0, b"abc").replace(b"abc", b"abd"), CorruptBatchError, "fails its CRC"),
        (
            stored(0, bytes(17 << 20), compression=int(Flags.ZSTD)),
            MessageTooLargeError,
            "a compressed batch holds at most",
        ),
    ],
)
def test_what_no_log_may_hold_is_refused(data: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        open_restored(data)


@pytest.mark.parametrize("subject", [b"a b", b"a\tb", b"a.b 1\r\nx\r\nPUB c 0", b"a\n"])
def test_no_subject_holds_what_nats_would_take_for_a_command(subject: bytes) -> None:
    """It is sent to NATS in a line with others."""
    for subjects in (subject, [b"a.b", subject]):
        batch = encode([b"1", b"2"], subjects)
        batch.stamp(0, 7, 5)
        with pytest.raises(CorruptBatchError, match="white space"):
            open_restored(batch.to_bytes())


def test_a_gap_is_covered_by_batches_without_records() -> None:
    data = b"".join(filler(5, 3_000_000, 7))  # type: ignore[arg-type]
    opened = open_restored(data)
    assert len(opened) == 3
    assert (opened[0].base_offset, opened[-1].next_offset) == (5, 3_000_000)
    assert sum(each.encoded.record_count for each in opened) == 0
