"""The names of a log's files.

    <stream folder>/00000000000000000000.log     segment: whole batches, back to back
    <stream folder>/00000000000000000000.index   its index (index_file.py)
    <stream folder>/checkpoint                   checkpoint_file.py
    <stream folder>/producers                    producers and message ids last stored
    <stream folder>/compaction                   how far the log is compacted
    <stream folder>/damage                       what the disk has lost of it
    <stream folder>/*.tmp                        an atomic write, compaction or repair, interrupted
    <stream folder>.offsets                      beside the folder: offsets_file.py

The number is the segment's base offset in twenty digits, so that names sort as offsets do.
"""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TEMPORARY_SUFFIX = ".tmp"
CHECKPOINT_NAME = "checkpoint"
PRODUCERS_NAME = "producers"
COMPACTION_NAME = "compaction"
DAMAGE_NAME = "damage"
OFFSETS_SUFFIX = ".offsets"
_DIGITS = 20  # 2**63 has nineteen digits; Kafka names its files with twenty.


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{LOG_SUFFIX}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{INDEX_SUFFIX}"


def base_offset_of(name: str, suffix: str = LOG_SUFFIX) -> int | None:
    """The base offset in a file name; None if it is not such a name."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _DIGITS or not digits.isascii() or not digits.isdigit():
        return None
    offset = int(digits)
    return offset if offset < 1 << 63 else None
