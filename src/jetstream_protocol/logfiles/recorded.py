"""What is on record of a log, beside its batches: the checkpoint and the offsets file together.

Either may be missing or damaged; then the other one tells. Where both speak, the greater offset
holds: before a log becomes shorter, both are brought down, durably. Where neither does, the log
starts with the first segment that is left, and one that does not begin at 0 is incomplete.

Data folders of releases without an offsets file have checkpoints without `segments`, and there the
first segment that is left is where the log starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.offsets_file import Mark, Offsets


@dataclass(frozen=True, slots=True)
class Recorded:
    """checkpoint, offsets: as read, None for one that cannot be believed. boot_id: of the machine,
    now; "" when that is not known, and then what was not flushed may be lost."""

    checkpoint: LogCheckpoint | None = None
    offsets: Offsets | None = None
    boot_id: str = ""

    @property
    def is_same_boot(self) -> bool:
        """Nothing was lost of what was written, flushed or not: page caches live that long."""
        end = None if self.offsets is None else self.offsets.end
        return end is not None and bool(end.boot_id) and end.boot_id == self.boot_id

    @property
    def may_be_same_boot(self) -> bool:
        """Nothing says that the machine lost power since the log was written."""
        return bool(self.boot_id) and (
            self.is_same_boot or self.offsets is None or self.offsets.end is None
        )

    @property
    def mark(self) -> Mark:
        bounds = None if self.offsets is None else self.offsets.bounds
        return Mark.NONE if bounds is None else bounds.mark

    @property
    def log_start_offset(self) -> int | None:
        """Nothing at or behind it was removed. None: the first segment says where it starts."""
        bounds = None if self.offsets is None else self.offsets.bounds
        checkpoint = self.checkpoint
        if bounds is None and (checkpoint is None or checkpoint.segments is None):
            return None  # Nothing is on record, or a release wrote it that removed files first.
        start = 0 if bounds is None else bounds.log_start_offset
        return max(start, 0 if checkpoint is None else checkpoint.log_start_offset)

    @property
    def is_nothing(self) -> bool:
        """Neither the checkpoint nor the offsets file says anything."""
        return self.checkpoint is None and (self.offsets is None or self.offsets.bounds is None)

    @property
    def flushed_offset(self) -> int:
        bounds = None if self.offsets is None else self.offsets.bounds
        flushed = 0 if bounds is None else bounds.flushed_offset
        return max(flushed, 0 if self.checkpoint is None else self.checkpoint.recovery_point)

    @property
    def end_offset(self) -> int:
        """A log that ends before this offset lacks records."""
        end = None if self.offsets is None else self.offsets.end
        noted = end.log_end_offset if end is not None and self.is_same_boot else 0
        return max(self.flushed_offset, noted)

    def first_loss(self, sizes: dict[int, int]) -> tuple[int, str] | None:
        """Base offset of the first sealed segment that is gone or has another size, and what is
        wrong. sizes: of the segments that are there, by base offset."""
        start = self.log_start_offset or 0
        for base, next_offset, size in (self.checkpoint and self.checkpoint.segments) or ():
            if next_offset <= start:
                continue
            if base not in sizes:
                return base, f"the segment with the offsets [{base}, {next_offset}) is missing"
            if size >= 0 and sizes[base] != size:
                return base, (
                    f"the segment with the offsets [{base}, {next_offset}) has {sizes[base]} bytes "
                    f"and had {size}"
                )
        return None
