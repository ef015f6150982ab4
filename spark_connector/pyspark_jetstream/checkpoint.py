"""The position of a streaming query, as Spark keeps it: one JSON object per micro-batch.

    {"version": 1, "cluster": "…",
     "streams": {"17": {"name": "orders@orders.>", "offset": 1000, "epoch": 3}},
     "began": {"17": 0}, "initial": false}

streams: by stream id, which is never used again. `offset` is the next offset to read, `epoch` the
leader epoch of the record before it (-1: unknown), by which a replaced log is noticed.

began: where those streams begin that this batch is the first to read. Spark writes the end of a
batch before it runs the batch, and asks for the beginning of a query again until the first batch is
committed. With "latest" every answer would differ, and the records between them would be skipped.
So the end of the first batch records where the batch began, and that is used when the batch is run
again. The same holds for streams that appear later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_jetstream.errors import OptionError

VERSION = 1


@dataclass(frozen=True)
class Mark:
    """How far one stream was read. `name` is name@subject."""

    name: str
    offset: int
    epoch: int = -1


@dataclass(frozen=True)
class Offsets:
    """The marks of all streams of a query. initial: the query's beginning, before any batch."""

    cluster: str
    streams: Mapping[int, Mark]
    began: Mapping[int, int] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "cluster": self.cluster,
            "streams": {
                str(number): {"name": mark.name, "offset": mark.offset, "epoch": mark.epoch}
                for number, mark in sorted(self.streams.items())
            },
            "began": {str(number): offset for number, offset in sorted(self.began.items())},
            "initial": self.initial,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Offsets:
        """Decode. Raises OptionError for a value that `to_json` did not write."""
        if given.get("version") != VERSION:
            raise OptionError(
                f"the checkpoint is of version {given.get('version')}, this software writes "
                f"{VERSION}: use the pyspark_jetstream that wrote it, or a new checkpointLocation"
            )
        try:
            return cls(
                str(given["cluster"]),
                {
                    int(n): Mark(m["name"], m["offset"], m["epoch"])
                    for n, m in given["streams"].items()
                },
                {int(number): offset for number, offset in given["began"].items()},
                bool(given["initial"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(
                f"the checkpoint cannot be understood ({error!r}): use a new checkpointLocation"
            ) from error

    def start_of(self, number: int, end: Offsets) -> int | None:
        """Where a batch from here to `end` begins in a stream; None: unknown."""
        if number in self.streams and not (self.initial and number in end.began):
            return self.streams[number].offset
        return end.began.get(number)
