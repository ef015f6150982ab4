"""The file `compaction` of a log: how far the log is clean, and since when.

`passes` are ends of earlier passes, (`WallUs`, cleaned to), oldest first: a tombstone below the end
of a pass that is older than the grace time may be removed. A file that is missing or damaged is
rebuilt from the batches (`rebuilt`). Nothing counts as clean then: the next pass covers everything
again, and tombstones stay for another grace time. **safety** Tombstones that compaction may have
removed count as removed: a follower that may hold the records they deleted copies the log anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from jetstream_protocol.batch import BatchHeader
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.names import COMPACTION_NAME
from jetstream_protocol.types import WallUs
from jetstream_server.log.disk import Disk
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import owner_of, read_state

KIND: Final = "compaction"
PASSES_MAX: Final = 64
"""Above this number every second pass is forgotten. Its tombstones wait for the next pass."""


@dataclass(frozen=True, slots=True)
class CompactionState:
    """What compaction knows of a log.

    cleaned_to: below it no two records have the same key. tombstones: how many are left below it.
    tombstones_gone_below: some tombstones before it were or are being removed. swept_below: offset
    below which completed passes have removed tombstones. copied_under: the leader's
    `tombstones_gone_below` when the copying of this log began. committed_below: all records below
    it were committed; no gap ends after it. ended_at_us and the fields up to records_removed
    describe the last pass. undecrypted: ids of keys of encryption that the last pass lacked, each
    with the first batch whose records it could not read.
    """

    cleaned_to: int = 0
    passes: tuple[tuple[WallUs, int], ...] = ()
    tombstones: int = 0
    tombstones_gone_below: int = 0
    swept_below: int = 0
    copied_under: int = 0
    committed_below: int = 0
    ended_at_us: WallUs = WallUs(0)
    duration_us: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    undecrypted: Mapping[str, int] = field(default_factory=dict)

    def tombstones_below(self, wall_us: WallUs, grace_us: int) -> int:
        """The offset below which tombstones have had their grace time."""
        return max((end for at_us, end in self.passes if at_us + grace_us <= wall_us), default=0)

    def after_pass(
        self, cleaned_to: int, wall_us: WallUs, grace_us: int, *, swept_below: int
    ) -> CompactionState:
        """The state after a pass that ended at `wall_us`, and removed tombstones below
        `swept_below`; the caller fills in its other results."""
        below = self.tombstones_below(wall_us, grace_us)
        # Of the passes whose grace time is over, only the one that went furthest still matters.
        passes = [entry for entry in self.passes if entry[0] + grace_us > wall_us]
        over = [entry for entry in self.passes if entry[0] + grace_us <= wall_us]
        if over:
            passes.insert(0, (max(at_us for at_us, _ in over), below))
        passes.append((wall_us, cleaned_to))
        if len(passes) > PASSES_MAX:
            passes = passes[::-2][::-1]
        return replace(
            self,
            cleaned_to=cleaned_to,
            passes=tuple(passes),
            swept_below=max(self.swept_below, swept_below),
            ended_at_us=wall_us,
        )

    def dirty_from(self, offset: int) -> CompactionState:
        """The state when records from this offset on are not clean any more: tombstones there wait
        for another grace time."""
        passes = tuple((at_us, min(end, offset)) for at_us, end in self.passes)
        return replace(
            self,
            cleaned_to=min(self.cleaned_to, offset),
            passes=passes,
            swept_below=min(self.swept_below, offset),
        )

    def with_keys(self, key_ids: Collection[str]) -> CompactionState:
        """The state of a log whose node has these keys of encryption. **safety** Records that no
        pass could read are not clean: the tombstones that delete some of them are still there."""
        readable = [at for key_id, at in self.undecrypted.items() if key_id in key_ids]
        if not readable:
            return self
        left = {key_id: at for key_id, at in self.undecrypted.items() if key_id not in key_ids}
        return replace(self.dirty_from(min(readable)), undecrypted=left)

    def cut_to(self, end_offset: int) -> CompactionState:
        """The state after the log was truncated to this offset: later records are not clean. An
        incomplete copy stays incomplete: `copied_under` is kept."""
        return replace(
            self.dirty_from(end_offset),
            tombstones_gone_below=min(self.tombstones_gone_below, end_offset),
            committed_below=min(self.committed_below, end_offset),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_compaction(disk: Disk, directory: str) -> CompactionState:
    """Read the state; an empty one if there is no file. Raises CorruptBatchError, StorageError."""
    values = read_state(disk, f"{directory}/{COMPACTION_NAME}", KIND, owner_of(directory))
    if values is None:
        return CompactionState()
    try:
        numbers: dict[str, Any] = {
            name: int(values[name])
            for name in CompactionState.__slots__
            if name not in ("passes", "undecrypted")
        }
        passes = tuple((WallUs(int(at_us)), int(end)) for at_us, end in values["passes"])
        given = values.get("undecrypted", {})  # Files of earlier releases lack it.
        undecrypted = {str(key_id): int(at) for key_id, at in given.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptBatchError(f"the file lacks or garbles {error}") from error
    return CompactionState(passes=passes, undecrypted=undecrypted, **numbers)


def rebuilt(segments: Sequence[Segment]) -> CompactionState:
    """Rebuild the state from the batches, for a log whose file is lost. Raises OSError.

    Every record that compaction removed left a mark after it: offset deltas in its batch, or a
    gap before the next batch. So nothing is missing after the last mark, and everything before
    it was committed. `copied_under` cannot be rebuilt: an incomplete copy is copied anew if its
    leader has removed tombstones after its end.
    """
    gone_below = 0
    for segment in reversed(segments):
        try:
            marks = [_mark(header) for _, header in segment.headers(0, segment.size)]
        except CorruptBatchError:
            gone_below = max(gone_below, segment.next_offset)  # It may hold such gaps.
            continue
        if marked := max(marks, default=0):
            gone_below = max(gone_below, marked)
            return CompactionState(tombstones_gone_below=gone_below, committed_below=marked)
    return CompactionState(tombstones_gone_below=gone_below)


def _mark(header: BatchHeader) -> int:
    """The offset below which this batch proves that compaction has removed records; 0: the batch
    proves nothing."""
    if header.flags & Flags.OFFSET_DELTAS:
        return header.next_offset
    return header.base_offset if header.flags & Flags.AFTER_GAP else 0
