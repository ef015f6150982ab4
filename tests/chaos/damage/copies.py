"""One replica's copy of a stream, read from that node alone, over its data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from jetstream_protocol.batch import Batch, decode_header
from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    from_proto,
)
from jetstream_protocol.generated import dataplane_pb2
from tests.chaos.damage.streams import Stream
from tests.support.api import DataPlane

BYTES_MAX = 1 << 20
BEYOND = 1 << 60


@dataclass(frozen=True, slots=True)
class Record:
    """number: of the message, -1 when the value is none that was published."""

    number: int
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that the node refuses to serve, and with what words."""

    start: int
    end: int
    reason: str


@dataclass(slots=True)
class Copy:
    """What is below the node's high watermark.

    data: the batches' bytes. holes: what could not be read.
    """

    node: int
    log_start_offset: int = 0
    high_watermark: int = 0
    data: bytes = b""
    records: dict[int, Record] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)


class Reader:
    """Reads copies; batches that it has decoded once it knows again."""

    def __init__(self, connect: Callable[[tuple[str, int]], DataPlane] = DataPlane) -> None:
        self._connect = connect
        self._decoded: dict[bytes, dict[int, Record]] = {}

    def read(
        self, address: tuple[str, int], node: int, stream: Stream, resume_at: tuple[int, ...] = ()
    ) -> Copy:
        """The whole copy; OSError or JetstreamError when the node serves nothing at all.

        resume_at: offsets to go on at, after one that cannot be read; none: the copy ends there.
        """
        with closing(self._connect(address)) as plane:
            copy = Copy(node)
            offset = _open(plane, stream.name, copy)
            pieces: list[bytes] = []
            while offset < copy.high_watermark:
                try:
                    offset = self._piece(plane, stream, offset, copy, pieces)
                except JetstreamError as error:
                    end = _end_of_hole(error, offset, (*resume_at, copy.high_watermark))
                    copy.holes.append(Hole(offset, end, f"{error.code}: {error.message}"))
                    offset = end
            copy.data = b"".join(pieces)
            return copy

    def _piece(
        self, plane: DataPlane, stream: Stream, offset: int, copy: Copy, pieces: list[bytes]
    ) -> int:
        """One answer, up to the first batch that fails its checks; returns the offset after it.

        If the first batch fails, this tells the node, which then checks its file.
        """
        try:
            return self._take(_ask(plane, stream.name, offset)[1], stream, offset, copy, pieces)
        except CorruptBatchError:
            _, tail = _ask(plane, stream.name, offset, refused=True)
            return self._take(tail, stream, offset, copy, pieces)

    def _take(
        self, tail: bytes, stream: Stream, offset: int, copy: Copy, pieces: list[bytes]
    ) -> int:
        next_offset = offset
        try:
            for after, batch in _split(tail):
                records = self.records(stream, batch)
                copy.records.update((at, each) for at, each in records.items() if at >= offset)
                pieces.append(batch)
                next_offset = after
        except CorruptBatchError:
            if next_offset == offset:
                raise
        if next_offset == offset:
            raise CorruptBatchError(f"nothing is served at offset {offset}, though it is committed")
        return next_offset

    def records(self, stream: Stream, data: bytes) -> dict[int, Record]:
        """Of one batch, by their offsets. Raises CorruptBatchError."""
        known = self._decoded.get(data)
        if known is None:
            batch = Batch.decode(data)
            rows = zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
            known = {offset: Record(stream.number(value), key) for offset, key, value in rows}
            self._decoded[data] = known
        return known


def _ask(
    plane: DataPlane, name: str, offset: int, *, refused: bool = False
) -> tuple[dataplane_pb2.DataFetchResponse, bytes]:
    """One answer. refused: those before failed their checks."""
    head, tail = plane.fetch(name, offset, bytes_max=BYTES_MAX, refused=refused)
    assert isinstance(head, dataplane_pb2.DataFetchResponse)
    if head.HasField("error"):
        raise from_proto(head.error)
    return head, tail


def _open(plane: DataPlane, name: str, copy: Copy) -> int:
    """Find out the log's range, which the error for an offset beyond it names; returns the first
    offset."""
    try:
        found: dataplane_pb2.DataFetchResponse | OffsetOutOfRangeError = _ask(plane, name, BEYOND)[
            0
        ]
    except OffsetOutOfRangeError as error:
        found = error
    copy.log_start_offset = found.log_start_offset
    copy.high_watermark = found.high_watermark
    return copy.log_start_offset


def _end_of_hole(error: JetstreamError, offset: int, resume_at: tuple[int, ...]) -> int:
    """Where to go on after what cannot be read."""
    if isinstance(error, RecordsDamagedError):
        return max(offset + 1, min(error.end_offset, resume_at[-1]))
    return min(at for at in resume_at if at > offset)


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Next offset and bytes of each batch. Raises CorruptBatchError."""
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        end = position + header.length
        yield header.next_offset, data[position:end]
        position = end
