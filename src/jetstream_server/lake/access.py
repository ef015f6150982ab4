"""What a node asks of the lake: to find and read batches, and to sweep folders of streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from jetstream_protocol.types import MonotonicUs

NAMES_MAX: Final = 1_000
"""Of objects in an answer: some 150 bytes each."""


@dataclass(frozen=True, slots=True)
class Group:
    """Whole batches in a row in an object: the unit of a read, [base, end). length: of its batches
    once they are read. offsets, positions, epochs, appended_us: of each batch among them."""

    name: str
    at: int
    base: int
    end: int
    length: int
    offsets: list[int]
    positions: list[int]
    epochs: list[int]
    appended_us: Sequence[int]


@dataclass(frozen=True, slots=True)
class SweptFolder:
    """The folder of a stream: its name, the properties of the stream's table, and how long what is
    not needed stays. begins_anew: earlier sweeps of it count no more."""

    name: str
    properties: Mapping[str, str]
    grace_us: int
    begins_anew: bool = False


class Swept(NamedTuple):
    """What a sweep has found, at `at_us`. gone: deleted, or due. waiting: not needed, and there.
    waits: how long each stays at least, what goes first at the beginning. unknown: committed
    versions that the pointer does not know of. Of names there are NAMES_MAX at most; the counts are
    of all."""

    gone: Sequence[str] = ()
    gone_count: int = 0
    waits: Sequence[tuple[str, int]] = ()
    waiting: int = 0
    unknown: Sequence[str] = ()
    at_us: MonotonicUs = MonotonicUs(0)


class Lake(Protocol):
    """Methods but `begin` block, for any thread. They raise JetstreamError, OSError, and ValueError
    for what is no table of the stream.

    url: of the store.
    """

    url: str

    def begin(self) -> None:
        """Get ready, on the event loop: before each of the others."""

    def stop(self) -> None:
        """Whoever waits gets an error, and nothing more is done."""

    def metadata(self, location: str) -> bytes:
        """The metadata of a table, as the store has it. Raises UnavailableError if it is none."""

    def group(self, location: str, offset: int) -> Group:
        """The group that holds `offset`, in the table whose metadata is at `location`."""

    def read_into(self, name: str, at: int, path: str) -> int:
        """Write the batches of a group, by its name and place, as the log held them, to a file, and
        return how many bytes it has. Raises CorruptBatchError unless they are undamaged. After an
        error there may be a part of the file."""

    def offset_at(self, location: str, timestamp_us: int) -> int | None:
        """The first offset of the batch that was appended at that time or after it, in the table
        at `location`; None: all are older."""

    def appended_at(self, location: str, offset: int) -> int:
        """When the batch that holds `offset` was appended, in the table at `location`."""

    # Sweeps: see sweep.py. For one thread at a time.

    def list_folder(self, folder: SweptFolder) -> int:
        """List what lies there, for a sweep. Returns the number of the listing."""

    def sweep(
        self, folder: SweptFolder, listing: int, location: str, now_us: MonotonicUs, dry_run: bool
    ) -> Swept:
        """Delete what may go: see Sweeper.sweep."""

    def forget(self, folder: str) -> None:
        """The next sweep of the folder begins a new grace time."""

    def sweep_folders(
        self, cluster_id: str, grace_us: int, deleted: Collection[str], now_us: MonotonicUs
    ) -> Sequence[str]:
        """See FolderSweeper.sweep."""
