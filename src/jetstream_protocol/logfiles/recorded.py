"""What is recorded of a log outside of its batches: the checkpoint and the offsets file together.

If one of them is missing or damaged, the other one is used. If both can be read, the greater offset
counts: before a log becomes shorter, both are lowered durably. If neither can be read, the log
starts with the first segment that is left, and is incomplete if that does not begin at 0.

Data folders of releases without an offsets file have checkpoints without `segments`. There the log
starts with the first segment that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.offsets_file import Mark, Offsets
from jetstream_protocol.types import NO_EPOCH


class LedEpoch(NamedTuple):
    """A leader epoch and where it began. Its leader's log held everything that was committed."""

    leader_epoch: int
    start_offset: int


NO_EPOCH_LED: Final = LedEpoch(NO_EPOCH, 0)


@dataclass(frozen=True, slots=True)
class Recorded:
    """checkpoint, offsets: as read; None: missing or not trusted. boot_id: of the machine's current
    boot; "" when unknown: unflushed records may be lost then."""

    checkpoint: LogCheckpoint | None = None
    offsets: Offsets | None = None
    boot_id: str = ""

    @property
    def is_same_boot(self) -> bool:
        """Whether the machine has not restarted since the log was written. Then nothing written is
        lost, flushed or not: page caches live that long."""
        end = None if self.offsets is None else self.offsets.end
        return end is not None and bool(end.boot_id) and end.boot_id == self.boot_id

    @property
    def may_be_same_boot(self) -> bool:
        """Whether the machine may not have restarted since the log was written."""
        return bool(self.boot_id) and (
            self.is_same_boot or self.offsets is None or self.offsets.end is None
        )

    @property
    def may_be_cut(self) -> bool:
        """Whether an earlier process may have cut the log, and not synced that. Only its own notes
        tell; without boot ids there are none."""
        end = None if self.offsets is None else self.offsets.end
        return bool(self.boot_id) and (end is None or end.is_cut)

    @property
    def mark(self) -> Mark:
        bounds = None if self.offsets is None else self.offsets.bounds
        return Mark.NONE if bounds is None else bounds.mark

    @property
    def is_being_emptied(self) -> bool:
        """Whether a reset did not end. **safety** Not if the log went on in this boot after the
        offset at which it begins anew: then its records count."""
        bounds = None if self.offsets is None else self.offsets.bounds
        if bounds is None or not bounds.mark & Mark.EMPTYING:
            return False
        return self._noted_end <= bounds.log_start_offset

    @property
    def log_start_offset(self) -> int | None:
        """The first offset that must not be missing; None: the first segment says where the log
        starts."""
        bounds = None if self.offsets is None else self.offsets.bounds
        checkpoint = self.checkpoint
        if bounds is None and (checkpoint is None or checkpoint.segments is None):
            return None  # Nothing is on record, or a release wrote it that removed files first.
        start = 0 if bounds is None else bounds.log_start_offset
        return max(start, 0 if checkpoint is None else checkpoint.log_start_offset)

    @property
    def is_nothing(self) -> bool:
        """Whether neither the checkpoint nor the offsets file says anything."""
        return self.checkpoint is None and (self.offsets is None or self.offsets.bounds is None)

    @property
    def offsets_damage(self) -> str:
        """What is wrong with the offsets file; "": nothing is."""
        offsets, checkpoint = self.offsets, self.checkpoint
        if offsets is None or offsets.damage:
            return "" if offsets is None else offsets.damage
        # A checkpoint is written after the first slot, but a power failure may lose that slot.
        was_written = checkpoint is not None and checkpoint.segments is not None
        if offsets.bounds is None and was_written and self.is_same_boot:
            return "the slot with log start and flushed offset is empty"
        return ""

    @property
    def flushed_offset(self) -> int:
        bounds = None if self.offsets is None else self.offsets.bounds
        flushed = 0 if bounds is None else bounds.flushed_offset
        return max(flushed, 0 if self.checkpoint is None else self.checkpoint.recovery_point)

    @property
    def led_epoch(self) -> LedEpoch:
        """The leader epoch that the offsets file notes. It began at the flushed offset beside it at
        the latest: **safety** a log that does not reach there any more says nothing of it."""
        bounds = None if self.offsets is None else self.offsets.bounds
        if bounds is None or not bounds.leader_epoch:
            return NO_EPOCH_LED
        return LedEpoch(bounds.leader_epoch, bounds.flushed_offset)

    @property
    def end_offset(self) -> int:
        """The offset that the log must reach. A log that ends before it lacks records."""
        return max(self.flushed_offset, self._noted_end)

    @property
    def _noted_end(self) -> int:
        """The log end that was noted in this boot; 0: none was."""
        end = None if self.offsets is None else self.offsets.end
        return end.log_end_offset if end is not None and self.is_same_boot else 0

    def first_loss(self, sizes: dict[int, int], from_offset: int) -> tuple[int, str] | None:
        """The first sealed segment that is gone or has another size: base offset and problem.

        sizes: of the existing segments, by base offset. from_offset: base offset of the first one;
        losses before it are not reported.
        """
        start = max(self.log_start_offset or 0, from_offset)
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
        return self._missing_after_listed(sizes, start)

    def _missing_after_listed(self, sizes: dict[int, int], start: int) -> tuple[int, str] | None:
        """The lost segment after the listed ones: base offset and problem; None: it is not lost.

        It was the last segment when the checkpoint was written, so its end is unknown. **safety**
        If the log was flushed beyond its base it must exist, unless it lies wholly below the log
        start.
        """
        listed = (self.checkpoint and self.checkpoint.segments) or ()
        end = max((next_offset for _, next_offset, _ in listed), default=None)
        if end is None or end in sizes or self.flushed_offset <= end:
            return None
        following = min((base for base in sizes if base > end), default=None)
        if following is not None and following <= start:
            return None
        upto = self.flushed_offset if following is None else following
        return end, f"the segment with the offsets [{end}, {upto}) is missing"
