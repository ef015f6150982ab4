"""The file `producers` beside a log's checkpoint, and how it is made good from the batches.

    JSLC 1 <crc32c>\\n
    {"kind":"producers","owner":"17","end_offset":4096,"leader_epoch":3,"producers":[…],…}\\n

It says what `Producers` remembered of the log below `end_offset`, whose last record there was of
`leader_epoch`. Logs that agree on the epoch of a record agree on all before it (design 7), so a
file is believed exactly if the log has a record of that epoch there: one that is left over from
before a truncation is found out. The batches behind it are read, which recovery scans anyway.

Crash policy: written atomically before each checkpoint. Missing, damaged, of another history: the
batches of a day are read instead. **safety** Never ahead of the log, and never less than it holds
of the last day, as far as that can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jetstream_protocol.batch import HEADER_BYTES, BatchHeader, Flags
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import PRODUCERS_NAME
from jetstream_protocol.logfiles.scan import Tail
from jetstream_server.log.checkpoint import owner_of
from jetstream_server.log.disk import Disk
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.producers import IDLE_US, MessageId, Producer, Producers, StoredBatch
from jetstream_server.log.segment import Segment

_HEADERS: Final = int(Flags.HEADERS)


class Saved(NamedTuple):
    """What a file holds."""

    end_offset: int
    leader_epoch: int
    producers: Producers

    def fits(self, tail: Tail, epochs: LeaderEpochCache) -> bool:
        """Whether it speaks of the log that ends at `tail`."""
        behind = tail.offset < self.end_offset
        return not behind and epochs.epoch_at(self.end_offset - 1) == self.leader_epoch


def write_producers(
    disk: Disk, directory: str, producers: Producers, end_offset: int, leader_epoch: int
) -> None:
    """Replace the file atomically and durably. Raises OSError."""
    known, message_ids = producers.image()
    state = {
        "end_offset": end_offset,
        "leader_epoch": leader_epoch,
        "producers": [[producer_id, *producer] for producer_id, producer in known],
        "message_ids": [
            [entry.offset, entry.timestamp, entry.known_by.decode("latin-1")]
            for entry in message_ids
        ],
    }
    data = checkpoint_file.encode(PRODUCERS_NAME, owner_of(directory), state)
    disk.write_atomic(f"{directory}/{PRODUCERS_NAME}", data)


def read_producers(disk: Disk, directory: str, window_us: int) -> Saved | None:
    """None when there is none that can be read. Raises OSError."""
    try:
        data = disk.read_file(f"{directory}/{PRODUCERS_NAME}")
        return _decode(checkpoint_file.decode(data, PRODUCERS_NAME, owner_of(directory)), window_us)
    except (FileNotFoundError, CorruptBatchError):
        return None  # The batches say the same, only slower.


def _decode(state: dict[str, Any], window_us: int) -> Saved:
    """Raises CorruptBatchError for what no server has written."""
    try:
        producers = tuple(
            (
                int(producer_id),
                Producer(
                    int(last_sequence),
                    int(timestamp),
                    tuple(StoredBatch(*map(int, row)) for row in batches),
                    int(known_from),
                ),
            )
            for producer_id, last_sequence, timestamp, batches, known_from in state["producers"]
        )
        message_ids = tuple(
            MessageId(int(offset), int(timestamp), known_by.encode("latin-1"))
            for offset, timestamp, known_by in state["message_ids"]
        )
        end_offset, leader_epoch = int(state["end_offset"]), int(state["leader_epoch"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptBatchError(f"the file lacks or garbles {error}") from error
    return Saved(end_offset, leader_epoch, Producers(window_us, producers, message_ids))


class ProducersRecovery:
    """Used once, while a log is opened: `note` for each batch that is scanned, then `finish`."""

    def __init__(
        self, disk: Disk, directory: str, checkpoint: LogCheckpoint, window_us: int
    ) -> None:
        """Raises OSError."""
        self._ids_since_us = checkpoint.last_append_timestamp - window_us
        self._window_us = window_us
        self._expected = checkpoint.producers
        self._saved = read_producers(disk, directory, window_us) if self._expected else None
        self._producers = Producers(window_us) if self._saved is None else self._saved.producers
        self._behind = 0 if self._saved is None else self._saved.end_offset

    def note(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """A batch was found in the log. Raises OSError."""
        if header.base_offset >= self._behind:
            self._note(segment, position, header)

    def _note(self, segment: Segment, position: int, header: BatchHeader) -> None:
        has_ids = header.flags & _HEADERS and header.append_timestamp >= self._ids_since_us
        if header.producer_id >= 0 or has_ids:
            body = segment.read(position + HEADER_BYTES, header.body_length) if has_ids else b""
            self._producers.note(header, body)

    def finish(
        self, segments: Sequence[Segment], scanned_from: int, tail: Tail, epochs: LeaderEpochCache
    ) -> Producers:
        """What the log in `segments` makes known; [scanned_from, tail) has been noted.

        Reads a day of it, if the file is not what the checkpoint promised. Raises OSError.
        """
        if not self._expected:
            return self._producers  # There was nothing to know before what was scanned.
        saved = self._saved
        if saved is not None and saved.fits(tail, epochs) and scanned_from <= saved.end_offset:
            return self._producers
        self._producers = Producers(self._window_us)
        self._ids_since_us = max(self._ids_since_us, tail.timestamp - self._window_us)
        self._replay(_since(segments, tail.timestamp - IDLE_US))
        return self._producers

    def _replay(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            try:
                for position, header in segment.headers(0, segment.size):
                    self._note(segment, position, header)
            except CorruptBatchError:
                continue  # Rot in a sealed segment is its readers' to report.


def _since(segments: Sequence[Segment], timestamp_us: int) -> Sequence[Segment]:
    """The last segments, from the one on that holds the first batch of that time or later."""
    first = len(segments)
    while first > 0:
        first -= 1
        try:
            if (
                segments[first].size
                and segments[first].header_at(0).append_timestamp < timestamp_us
            ):
                break
        except CorruptBatchError:
            continue
    return segments[first:]
