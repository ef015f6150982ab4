"""`jetstream fetch` of a keyed group: the records of all its streams, merged by time of append.

Records of one stream stay in their order. Those that come while a range is read are of the next
range, so --follow shows each stream in order and the streams nearly so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from jetstream_client.cli.output import printable
from jetstream_client.clients.blocking_client import Client
from jetstream_client.reading.messages import Message
from jetstream_client.values.positions import Position
from jetstream_client.values.types import OffsetAt, ReadFrom, Stream
from jetstream_protocol.errors import JetstreamError, UnavailableError

FOLLOW_SECONDS = 0.5
"""Between two looks for more records, and two attempts where a server refuses at once."""

_BUFFER_BYTES = 64 * 1024 * 1024
"""Upper bound on the buffers of all streams together."""
_FETCH_BYTES_MIN = 64 * 1024
_FETCH_BYTES_MAX = 4 * 1024 * 1024
_WRITTEN_AT_ONCE = 500
_PAUSE_SECONDS = 0.05
"""Before a copy that has not got the records yet is asked again."""


@dataclass(slots=True)
class _Part:
    """What is to be read of one stream: [position, stop), or with `reverse` the same from its end.
    is_first: nothing was read, and the first record may go meanwhile because it is old."""

    stream: Stream
    position: int
    stop: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class GroupFetch:
    """Which records of a group's streams to print."""

    client: Client
    streams: Sequence[Stream]
    write: Callable[[Iterable[Message]], None]
    read_from: ReadFrom
    filter: str
    key: bytes | None
    reverse: bool

    def run(
        self, start: Position, stop: Position | None, count_max: int | None, *, follow: bool
    ) -> None:
        """stop: None: the end, and with `follow` none."""
        firsts = self._offsets(start)
        lasts = self._offsets("latest" if stop is None else stop)
        parts = [
            _Part(stream, first.offset, last.offset, start == "earliest")
            for stream, first, last in zip(self.streams, firsts, lasts, strict=True)
        ]
        is_reported = False
        left = count_max
        while True:
            try:
                for count in self._print(parts, left):
                    left = None if left is None else left - count
                    is_reported = False
                if not follow or stop is not None or left == 0:
                    return
                time.sleep(FOLLOW_SECONDS)
                for part, last in zip(parts, self._offsets("latest"), strict=True):
                    part.stop = last.offset
            except JetstreamError as error:
                if not (follow and error.retriable):
                    raise
                if not is_reported:
                    print(
                        f"waiting for a server: {printable(error.message)}",
                        file=sys.stderr,
                        flush=True,
                    )
                is_reported = True
                time.sleep(FOLLOW_SECONDS)

    def _offsets(self, position: Position) -> list[OffsetAt]:
        return self.client.list_offsets((stream, position) for stream in self.streams)

    def _print(self, parts: Sequence[_Part], count_max: int | None) -> Iterator[int]:
        """Print what the parts have; yields how many records were printed each time. Their
        positions follow only what is printed, so that this can be repeated after a failure."""
        by_name = {part.stream.name: part for part in parts}
        merged = merge(
            *(self._records(part, len(parts), count_max) for part in parts),
            key=lambda message: message.timestamp_us,
            reverse=self.reverse,
        )
        records = islice(merged, count_max)
        while some := list(islice(records, _WRITTEN_AT_ONCE)):
            self.write(some)
            sys.stdout.flush()
            if not self.reverse:
                for message in some:
                    part = by_name[message.stream]
                    part.position, part.is_first = message.offset + 1, False
            yield len(some)
        for part in parts:
            part.position, part.is_first = max(part.position, part.stop), False

    def _records(self, part: _Part, streams: int, count_max: int | None) -> Iterator[Message]:
        position, stop = part.position, part.stop
        fetch_bytes = min(_FETCH_BYTES_MAX, max(_FETCH_BYTES_MIN, _BUFFER_BYTES // streams))
        begin: Position = "earliest" if part.is_first else position
        moved_at = time.monotonic()
        while position < stop:
            messages = self.client.fetch(
                part.stream,
                begin,
                stop=stop,
                max_messages=count_max,
                max_bytes=fetch_bytes,
                read_from=self.read_from,
                filter=self.filter,
                key=self.key,
                reverse=self.reverse,
            )
            yield from messages
            before = position, stop
            if self.reverse:
                stop = messages.next_offset
                position = max(position, messages.log_start_offset)
            else:
                begin = position = messages.next_offset
            if (position, stop) != before:
                moved_at = time.monotonic()
                continue
            if time.monotonic() - moved_at > self.client.config.timeout:
                raise UnavailableError(
                    f"{part.stream.name} gives no record of offsets {position} to {stop - 1}"
                )
            time.sleep(_PAUSE_SECONDS)
