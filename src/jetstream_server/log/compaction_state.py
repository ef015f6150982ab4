"""The file `compaction` of a log: how far it is clean, and since when.

`passes` are ends of earlier passes, (time µs, cleaned to), oldest first: a tombstone below the end
of a pass that is older than the grace time may go. Missing or damaged, the file says that nothing
is clean: the next pass goes over everything again, and tombstones stay for another grace time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from jetstream_protocol.logfiles.names import COMPACTION_NAME
from jetstream_server.log.checkpoint import owner_of, read_state
from jetstream_server.log.disk import Disk

KIND: Final = "compaction"
PASSES_MAX: Final = 64
"""Beyond, every second one is forgotten: tombstones below it wait for the next one's time."""


@dataclass(frozen=True, slots=True)
class CompactionState:
    """cleaned_to: no two records below have the same key. tombstones: how many are left there;
    tombstones_gone_below: some before this were or are being removed. swept_below: of the last pass
    that ended, the offset before which it removed them. copied_under: the leader's, when this log
    began to be copied from it. committed_below: what is below was committed; no gap ends behind it.
    ended_at_us and what follows: of the last
    pass."""

    cleaned_to: int = 0
    passes: tuple[tuple[int, int], ...] = ()
    tombstones: int = 0
    tombstones_gone_below: int = 0
    swept_below: int = 0
    copied_under: int = 0
    committed_below: int = 0
    ended_at_us: int = 0
    duration_us: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0

    def tombstones_below(self, now_us: int, grace_us: int) -> int:
        """Tombstones before this offset have had their grace time."""
        return max((end for at_us, end in self.passes if at_us + grace_us <= now_us), default=0)

    def after_pass(self, cleaned_to: int, now_us: int, grace_us: int) -> CompactionState:
        """With a pass that ended now; the caller fills in what it found."""
        below = self.tombstones_below(now_us, grace_us)
        # Of those whose time is over only the furthest still says something.
        passes = [entry for entry in self.passes if entry[0] + grace_us > now_us]
        over = [entry for entry in self.passes if entry[0] + grace_us <= now_us]
        if over:
            passes.insert(0, (max(at_us for at_us, _ in over), below))
        passes.append((now_us, cleaned_to))
        if len(passes) > PASSES_MAX:
            passes = passes[::-2][::-1]
        return replace(self, cleaned_to=cleaned_to, passes=tuple(passes), ended_at_us=now_us)

    def cut_to(self, end_offset: int) -> CompactionState:
        """After the log was truncated to there: what comes next is not clean. A copy that is not
        complete is not by that, either: `copied_under` stays."""
        passes = tuple((at_us, min(end, end_offset)) for at_us, end in self.passes)
        return replace(
            self,
            cleaned_to=min(self.cleaned_to, end_offset),
            passes=passes,
            tombstones_gone_below=min(self.tombstones_gone_below, end_offset),
            swept_below=min(self.swept_below, end_offset),
            committed_below=min(self.committed_below, end_offset),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_compaction(disk: Disk, directory: str) -> CompactionState:
    """Raises StorageError; a file that cannot be believed says nothing."""
    values = read_state(disk, f"{directory}/{COMPACTION_NAME}", KIND, owner_of(directory))
    if values is None:
        return CompactionState()
    try:
        numbers = {
            name: int(values[name]) for name in CompactionState.__slots__ if name != "passes"
        }
        passes = tuple((int(at_us), int(end)) for at_us, end in values["passes"])
    except (KeyError, TypeError, ValueError):
        return CompactionState()
    return CompactionState(passes=passes, **numbers)
