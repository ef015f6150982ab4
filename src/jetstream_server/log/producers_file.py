"""The file `producers` beside a log's checkpoint, and how it is rebuilt from the batches.

    JSLC 1 <crc32c>\\n
    {"kind":"producers","owner":"17","version":2,"end_offset":4096,"leader_epoch":3,…}\\n

It holds what `Producers` remembered of the log below `end_offset`, where the last record was of
`leader_epoch`. Logs that agree on the epoch of a record agree on all records before it. So the file
is trusted only if the log has a record of that epoch there; a file from before a truncation is
recognised and ignored. The batches after it are read: recovery scans them anyway.

Crash policy: written atomically before each checkpoint. If it is missing, damaged or of another
history, the batches of the last day are read instead. If it ends before what recovery scans, the
batches between are read, too. **safety** The state is never ahead of the
log, and never lacks anything of the log's last day that can be read.

Version 1 had neither the CRCs of the bodies nor the subjects of the ids. Both are read from the
records. A CRC that no record tells any more stays unknown, and such an id is forgotten. Earlier
releases take a file of version 2 for a damaged one, and read the batches of the last day.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import HEADER_BYTES, BatchHeader, decode_header
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import read_prefix
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import PRODUCERS_NAME
from jetstream_protocol.logfiles.scan import Tail
from jetstream_protocol.types import WallUs
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import CannotDecryptError, Encryption
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.log_time import LogTimeImage, LogTimeUs
from jetstream_server.log.producers import (
    IDLE_US,
    UNKNOWN_CRC,
    MessageId,
    Producer,
    Producers,
    StoredBatch,
    known_by,
    matters,
    may_hold_ids,
    message_ids,
)
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import is_refused, owner_of

_VERSION: Final = 2
_HIDDEN: Final = "encrypted"
_IDS_1: Final = "message_ids"
"""Of version 1. **safety** Under this name its readers would take our keys for ids."""


class Saved(NamedTuple):
    """The content of the file. nameless: time of each record whose id is known only together with
    its subject, by offset; from a file of version 1."""

    end_offset: int
    leader_epoch: int
    producers: Producers
    nameless: dict[int, LogTimeUs]

    def fits(self, tail: Tail, epochs: LeaderEpochCache) -> bool:
        """Whether the file belongs to the log that ends at `tail`."""
        is_shorter = tail.offset < self.end_offset
        return not is_shorter and epochs.epoch_at(self.end_offset - 1) == self.leader_epoch


def write_producers(
    disk: Disk,
    directory: str,
    producers: Producers,
    end_offset: int,
    leader_epoch: int,
    encryption: Encryption | None = None,
) -> None:
    """Replace the file atomically and durably. Raises OSError."""
    known, entries, time = producers.image()
    state: dict[str, Any] = {
        "version": _VERSION,
        "end_offset": end_offset,
        "leader_epoch": leader_epoch,
        "time": list(time),
    }
    content: dict[str, Any] = {
        "producers": [[producer_id, *producer] for producer_id, producer in known],
        "ids": [[each.offset, each.time_us, each.known_by.decode("latin-1")] for each in entries],
    }
    if encryption is not None and encryption.keys.can_encrypt and (known or entries):
        # The CRC of a body tells of its content, as an id does.
        hidden = encryption.encrypt_state(json.dumps(content).encode(), PRODUCERS_NAME)
        content = {_HIDDEN: base64.b64encode(hidden).decode()}
    data = checkpoint_file.encode(PRODUCERS_NAME, owner_of(directory), state | content)
    disk.write_atomic(f"{directory}/{PRODUCERS_NAME}", data)


def read_producers(
    disk: Disk, directory: str, window_us: int, encryption: Encryption | None = None
) -> Saved | None:
    """Read the file; None if there is none. Raises CorruptBatchError, CannotDecryptError,
    OSError."""
    try:
        data = disk.read_file(f"{directory}/{PRODUCERS_NAME}")
    except FileNotFoundError:
        return None
    state = checkpoint_file.decode(data, PRODUCERS_NAME, owner_of(directory))
    if state.setdefault("version", 1) not in (1, _VERSION):
        raise CorruptBatchError(f"version {state['version']!r}: written by newer software?")
    if isinstance(hidden := state.get(_HIDDEN), str):
        state |= _decrypt(hidden, encryption)
    if isinstance(hidden := state.get(_IDS_1), str):
        state[_IDS_1] = _decrypt(hidden, encryption)
    return _decode(state, window_us)


def _decrypt(hidden: str, encryption: Encryption | None) -> Any:
    try:
        data = base64.b64decode(hidden, validate=True)
        if encryption is None:
            raise CannotDecryptError(
                f"the file is encrypted with key {read_prefix(data).key_id}, and this node has "
                "no keys"
            )
        return bounded_json.loads(encryption.decrypt_state(data, PRODUCERS_NAME))
    except ValueError as error:
        raise CorruptBatchError(f"the file garbles what it has encrypted: {error}") from error


def _decode(state: dict[str, Any], window_us: int) -> Saved:
    """Decode the state. Raises CorruptBatchError if no server can have written it."""
    try:
        is_old = state["version"] == 1
        producers = tuple(
            (
                int(producer_id),
                Producer(
                    int(last_sequence),
                    LogTimeUs(int(time_us)),
                    tuple(_stored_batch(row, is_old=is_old) for row in batches),
                    int(known_from),
                ),
            )
            for producer_id, last_sequence, time_us, batches, known_from in state["producers"]
        )
        entries = tuple(
            MessageId(int(offset), LogTimeUs(int(time_us)), key.encode("latin-1"))
            for offset, time_us, key in state[_IDS_1 if is_old else "ids"]
        )
        end_offset, leader_epoch = int(state["end_offset"]), int(state["leader_epoch"])
        time_us, timestamp, time_epoch = map(int, state["time"])
        time = LogTimeImage(LogTimeUs(time_us), WallUs(timestamp), time_epoch)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptBatchError(f"the file lacks or garbles {error}") from error
    nameless = {entry.offset: entry.time_us for entry in entries} if is_old else {}
    ids = () if is_old else entries
    return Saved(end_offset, leader_epoch, Producers(window_us, producers, ids, time), nameless)


def _stored_batch(row: Sequence[Any], *, is_old: bool) -> StoredBatch:
    return StoredBatch(*map(int, row), *([UNKNOWN_CRC] if is_old else []))


class ProducersRecovery:
    """Used once, while a log is opened: `note` for each scanned batch, then `finish`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        checkpoint: LogCheckpoint,
        window_us: int,
        encryption: Encryption | None = None,
    ) -> None:
        """Raises OSError."""
        self._window_us = window_us
        self._encryption = encryption
        self._expected = checkpoint.producers
        self.damage = ""
        """Why the file is not trusted; "" when it is, or when no file was needed."""
        self._disk, self._directory = disk, directory
        self._saved = self._read() if self._expected else None
        self._producers = Producers(window_us) if self._saved is None else self._saved.producers
        self._noted_from = 0 if self._saved is None else self._saved.end_offset
        self._nameless = {} if self._saved is None else self._saved.nameless

    def _read(self) -> Saved | None:
        try:
            saved = read_producers(self._disk, self._directory, self._window_us, self._encryption)
        except CorruptBatchError as error:
            self.damage = error.reason
            return None
        except CannotDecryptError as error:
            self.damage = error.message
            return None
        except OSError as error:
            if not is_refused(error):
                raise
            self.damage = str(error.strerror)
            return None
        self.damage = "" if saved else "the file is missing"
        return saved

    def note(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """Note a batch that was found in the log. Raises OSError."""
        if header.base_offset >= self._noted_from and matters(header):
            self._producers.note(*_plain(segment, position, header, self._encryption))

    def finish(
        self, segments: Sequence[Segment], scanned_from: int, tail: Tail, epochs: LeaderEpochCache
    ) -> Producers:
        """The state of the log in `segments`, of which [scanned_from, tail) has been noted.

        Reads a day of the log if the file does not match the checkpoint. Raises OSError.
        """
        producers = self._state_at_end(segments, scanned_from, tail, epochs)
        records = _Records(segments, self._encryption)
        for base_offset in producers.unknown_contents():
            header = records.header_at(base_offset)
            if header is not None:
                producers.learn_content(header)
        if self._nameless and producers is self._producers:
            producers.recall_ids(records.message_ids_at(self._nameless))
        return producers

    def _state_at_end(
        self, segments: Sequence[Segment], scanned_from: int, tail: Tail, epochs: LeaderEpochCache
    ) -> Producers:
        """The state at the log end, without the ids of records whose ids the file lacks."""
        if not self._expected:
            return self._producers  # Nothing before the scanned part matters.
        saved = self._saved
        if saved is not None and saved.fits(tail, epochs):
            if scanned_from <= saved.end_offset:
                return self._producers
            # The node died while it cut the log, between this file and the checkpoint. Compaction
            # may have removed what the file remembers.
            saved = self._read()
            if saved is not None:
                return self._state_from_file(saved, segments)
        return self._state_from_log(_of_the_last_day(segments))

    def _state_from_file(self, saved: Saved, segments: Sequence[Segment]) -> Producers:
        """What the file says, and the batches after it."""
        self._producers, self._nameless = saved.producers, saved.nameless
        for segment in segments:
            if segment.next_offset <= saved.end_offset:
                continue
            with _passing_damage():
                for position, header in segment.headers(0, segment.size):
                    self.note(segment, position, header)
        return self._producers

    def _state_from_log(self, segments: Sequence[Segment]) -> Producers:
        """Read the last day again. Reads bodies, which hold the ids, only where ids still count."""
        producers = Producers(self._window_us)
        with_ids: deque[tuple[LogTimeUs, Segment, int, BatchHeader]] = deque()
        for segment in segments:
            with _passing_damage():
                for position, header in segment.headers(0, segment.size):
                    if not matters(header):
                        continue
                    time_us = producers.note_header(header)
                    if self._window_us and may_hold_ids(header):
                        with_ids.append((time_us, segment, position, header))
                    while with_ids and with_ids[0][0] < time_us - self._window_us:
                        with_ids.popleft()
        for time_us, segment, position, header in with_ids:
            with _passing_damage():
                producers.note_ids(*_plain(segment, position, header, self._encryption), time_us)
        return producers


class _Records:
    """Looks up single batches of the log in `segments`. Methods raise OSError."""

    def __init__(self, segments: Sequence[Segment], encryption: Encryption | None) -> None:
        self._segments = segments
        self._encryption = encryption

    def header_at(self, base_offset: int) -> BatchHeader | None:
        """The header of the batch that begins there, decrypted; None: it cannot be read."""
        at = bisect_right(self._segments, base_offset, key=lambda each: each.base_offset) - 1
        if at < 0 or base_offset >= self._segments[at].next_offset:
            return None
        segment = self._segments[at]
        try:
            with _passing_damage():
                position, header = segment.locate(base_offset)
                if header.base_offset == base_offset:
                    return _plain(segment, position, header, self._encryption)[0]
        finally:
            if at < len(self._segments) - 1:
                segment.unload_index()
        return None

    def message_ids_at(self, times: Mapping[int, LogTimeUs]) -> list[MessageId]:
        """The ids of the records at those offsets, oldest first, as far as they can be read."""
        found: list[MessageId] = []
        offsets = sorted(times)
        for segment in self._segments:
            if segment.next_offset <= offsets[0]:
                continue
            with _passing_damage():
                for position, header in segment.headers(0, segment.size):
                    slot = bisect_left(offsets, header.base_offset)
                    if slot == len(offsets):
                        return found
                    if offsets[slot] < header.next_offset and may_hold_ids(header):
                        plain = _plain(segment, position, header, self._encryption)
                        found += [
                            MessageId(offset, times[offset], known_by(subject, message_id))
                            for offset, subject, message_id in message_ids(*plain)
                            if offset in times
                        ]
        return found


@contextmanager
def _passing_damage() -> Iterator[None]:
    """Passes over what is damaged in a sealed segment, or refused by the device: its readers report
    it. Raises other OSErrors."""
    try:
        yield
    except CorruptBatchError:
        pass
    except OSError as error:
        if not is_refused(error):
            raise


def _plain(
    segment: Segment, position: int, header: BatchHeader, encryption: Encryption | None
) -> tuple[BatchHeader, bytes]:
    """Header and body, decrypted; no body if nothing in it matters, or its key is gone. Raises
    OSError."""
    if not (may_hold_ids(header) or header.flags & Flags.ENCRYPTED):
        return header, b""
    if encryption is None:
        return header, segment.read(position + HEADER_BYTES, header.body_length)
    try:
        batch = encryption.decrypt(segment.read(position, header.length))
        return decode_header(batch), batch[HEADER_BYTES:]
    except (CannotDecryptError, CorruptBatchError):
        return header, b""


def _of_the_last_day(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The last segments, at least all that hold batches of a day. A segment in which the leader
    changed may have timestamps of two clocks, so its time does not count."""
    first, passed_us = len(segments), 0
    later: BatchHeader | None = None
    while first > 0 and passed_us < IDLE_US:
        first -= 1
        if not segments[first].size:
            continue
        with _passing_damage():
            header = segments[first].header_at(0)
            if later is not None and later.leader_epoch == header.leader_epoch:
                passed_us += later.append_timestamp - header.append_timestamp
            later = header
    return segments[first:]
