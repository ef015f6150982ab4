"""One pass of compaction over the sealed segments of a log: reads them, writes their successors.

    run ──> Mapped(end_offset) ──> Rewritten(…) for each segment that changes ──> Done(…)

Runs beside the log, in its own process: it only reads the segments and writes new files beside
them, `<segment>.<token>.tmp` and `<index>.<token>.tmp`, the first synced when it is yielded.
The log's owner then swaps them in (`LogStorage.swap`). Crash policy: an interrupted pass leaves
temporary files, which recovery removes, and segments that were already swapped, each of which holds
all records that had to stay.

Memory: the map of keys, and a few megabytes of a segment at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from jetstream_protocol.batch import HEADER_BYTES, Batch, BatchHeader, decode_header
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import read_prefix
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.names import TEMPORARY_SUFFIX, index_name, segment_name
from jetstream_protocol.logfiles.scan import SCAN_BYTES, Read, Window
from jetstream_server.log.compaction.rules import LatestOffsets, Rewriter
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import CannotDecryptError, Encryption
from jetstream_server.log.index import Index

KEYS_MAX: Final = 1 << 20
"""Keys in one pass: about 200 MB of memory. A log with more keys is compacted in several passes."""
_WRITE_BYTES: Final = 1 << 20
_KEYS: Final = int(Flags.KEYS)
_ENCRYPTED: Final = int(Flags.ENCRYPTED)

Pause = Callable[[int], None]
"""Called with the number of bytes read; may wait, to leave disk and processor to others."""


@dataclass(frozen=True, slots=True)
class Source:
    """A sealed segment as it was when the pass was planned."""

    base_offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Task:
    """What a pass has to do; see Rewriter. cleaned_to: below this offset no two records have the
    same key."""

    directory: str
    token: str
    sources: tuple[Source, ...]
    cleaned_to: int
    tombstones_below: int
    kept_base_offsets: tuple[int, ...]
    index_interval_bytes: int
    keys_max: int = KEYS_MAX

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Task:
        sources = tuple(Source(*row) for row in values["sources"])
        kept = tuple(values["kept_base_offsets"])
        return cls(**{**values, "sources": sources, "kept_base_offsets": kept})

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        values["sources"] = [[s.base_offset, s.next_offset, s.size] for s in self.sources]
        return values


@dataclass(frozen=True, slots=True)
class Mapped:
    """The keys are mapped up to `end_offset`. The rest of the log is left to a later pass."""

    end_offset: int
    keys: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The successor of a segment is ready: `size` bytes, synced."""

    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Done:
    """The pass has ended. tombstones: how many are left below its end offset. bytes_before,
    bytes_after: the size of the covered segments. undecrypted: see CompactionState."""

    bytes_before: int
    bytes_after: int
    records_removed: int
    tombstones: int
    undecrypted: dict[str, int] = field(default_factory=dict)


Step = Mapped | Rewritten | Done


def temporary_name(name: str, token: str) -> str:
    """Name of the file to which a file's successor is written. The token keeps passes apart."""
    return f"{name}.{token}{TEMPORARY_SUFFIX}"


def run(
    disk: Disk, task: Task, pause: Pause, encryption: Encryption | None = None
) -> Iterator[Step]:
    """Do one pass, and yield a step whenever one is complete. Raises OSError, and
    CorruptBatchError with file and position.

    Encrypted batches are encrypted again with the active key. Batches that cannot be decrypted
    stay as they are.
    """
    latest = _map(disk, task, pause, encryption)
    yield Mapped(latest.end_offset, len(latest))
    rewriter = Rewriter(latest, task.tombstones_below, frozenset(task.kept_base_offsets))
    before = after = 0
    undecrypted: dict[str, int] = {}
    for source in task.sources:
        if source.base_offset >= latest.end_offset:
            break
        size = _rewrite(disk, task, source, rewriter, pause, encryption, undecrypted)
        before += source.size
        after += source.size if size is None else size
        if size is not None:
            yield Rewritten(source.base_offset, size)
    yield Done(before, after, rewriter.records_removed, rewriter.tombstones, undecrypted)


def _map(disk: Disk, task: Task, pause: Pause, encryption: Encryption | None) -> LatestOffsets:
    """Map the keys after the clean part to their last offsets, until the map is full."""
    latest = LatestOffsets(task.cleaned_to, task.keys_max)
    for source in task.sources:
        if source.next_offset <= task.cleaned_to:
            continue
        for header, data in _batches(disk, task, source, pause):
            if header.next_offset <= task.cleaned_to:
                continue
            if not latest.has_room_for(header):
                return latest
            plain = _decrypt(header, data, encryption) if header.flags & _KEYS else None
            if plain is not None:
                latest.add(Batch.decode(plain))
            else:
                latest.skip(header)
    return latest


def _rewrite(
    disk: Disk, task: Task, source: Source, rewriter: Rewriter, pause: Pause,
    encryption: Encryption | None, undecrypted: dict[str, int],
) -> int | None:  # fmt: skip
    """Write the segment's successor, and return its size in bytes; None when nothing changes."""
    writer = _Writer(disk, task, source)
    position = 0
    rewriter.begin_segment(source.base_offset)
    for header, data in _batches(disk, task, source, pause):
        position += header.length
        plain = _decrypt(header, data, encryption)
        if plain is None:
            left = rewriter.leave(data)
            _note_undecrypted(header, data, encryption, undecrypted)
        else:
            left = rewriter.rewrite(plain, ends_segment=position == source.size)
            if left is plain:
                left = data
            elif left and plain is not data:
                assert encryption is not None, "somebody decrypted it"
                left = encryption.encrypt_bytes(left)
        if left is not data:
            writer.begin()
        writer.add(left)
    return writer.finish()


def _decrypt(header: BatchHeader, data: bytes, encryption: Encryption | None) -> bytes | None:
    """The batch without encryption; None: its key is not known here. Raises CorruptBatchError."""
    if not header.flags & _ENCRYPTED:
        return data
    try:
        return None if encryption is None else encryption.decrypt(data)
    except CannotDecryptError:
        return None


def _note_undecrypted(
    header: BatchHeader, data: bytes, encryption: Encryption | None, undecrypted: dict[str, int]
) -> None:
    """Note that a batch with keys was passed over, unless this node has its key: then it was
    changed or moved, and stays unreadable."""
    key_id = read_prefix(data, HEADER_BYTES).key_id
    if header.flags & _KEYS and (encryption is None or key_id not in encryption.keys.ids):
        undecrypted.setdefault(key_id, header.base_offset)


def _batches(
    disk: Disk, task: Task, source: Source, pause: Pause
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Header and bytes of each batch of a segment. The body is not checked yet."""
    path = f"{task.directory}/{segment_name(source.base_offset)}"
    window = Window(_reader(disk, path), source.size, SCAN_BYTES)
    position = 0
    try:
        while position < source.size:
            header = window.header(position)
            at = window.locate(position, header.length)
            data = window.buffer[at : at + header.length]
            yield header, data
            position += header.length
            pause(header.length)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, path, position) from error


def _reader(disk: Disk, path: str) -> Read:
    def read(position: int, length: int) -> bytes:
        try:
            return disk.pread(path, position, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CorruptBatchError("the device cannot read it") from error

    return read


class _Writer:
    """Writes the successor of one segment, with its index. Writes nothing until the first
    difference: in a mostly clean log most segments stay unchanged."""

    def __init__(self, disk: Disk, task: Task, source: Source) -> None:
        self._disk = disk
        self._source = source
        folder, name = task.directory, segment_name(source.base_offset)
        self._source_path = f"{folder}/{name}"
        self._path = f"{folder}/{temporary_name(name, task.token)}"
        name = index_name(source.base_offset)
        self._index_path = f"{folder}/{temporary_name(name, task.token)}"
        self._index = Index(task.index_interval_bytes)
        self._begun = False
        self._parts: list[bytes] = []
        self._pending = 0
        self._size = 0

    def begin(self) -> None:
        """Note that the successor differs from here on. Writes the unchanged part first."""
        if self._begun:
            return
        self._begun = True
        self._disk.create(self._path)
        for position in range(0, self._size, _WRITE_BYTES):
            length = min(_WRITE_BYTES, self._size - position)
            part = self._disk.pread(self._source_path, position, length)
            self._disk.write(self._path, position, [part])

    def add(self, data: bytes) -> None:
        """Append a batch to the successor; no bytes: the batch was removed."""
        if not data:
            return
        header = decode_header(data[:HEADER_BYTES])
        self._index.add(header.base_offset, self._size, header.append_timestamp)
        self._size += len(data)
        if self._begun:
            self._parts.append(data)
            self._pending += len(data)
            if self._pending >= _WRITE_BYTES:
                self._write()

    def _write(self) -> None:
        if self._parts:
            self._disk.write(self._path, self._size - self._pending, [b"".join(self._parts)])
        self._parts.clear()
        self._pending = 0

    def finish(self) -> int | None:
        """Sync the successor, and return its size in bytes; None when nothing has changed."""
        if not self._begun:
            return None
        self._write()
        self._disk.fsync(self._path)
        index = self._index.to_bytes(self._source.base_offset, self._size)
        self._disk.create(self._index_path)
        self._disk.write(self._index_path, 0, [index])
        return self._size
