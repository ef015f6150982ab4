"""How far readers are behind their streams: in records, and in seconds.

A place is a stream's id and the next offset of a reader. One request asks a node about any number
of places in streams that it leads. Each place costs the node a lookup in an index and the read of
one batch header.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from jetstream_protocol.batch import HEADER_BYTES, decode_header
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import WallUs
from jetstream_server.replication.core.lake_bounds import is_in_lake, start_offset
from jetstream_server.replication.replica import Replica

Place: TypeAlias = tuple[int, int]
_Query = pb.ListOffsetsRequest.Query
_Result = pb.ListOffsetsResponse.Result


@dataclass(frozen=True, slots=True)
class Lag:
    """log_start_offset, high_watermark: of the stream. records: committed records not read yet (for
    a compacted stream an upper bound). seconds: the time since the first of them was appended; 0:
    there are none; None: it cannot be read now."""

    log_start_offset: int
    high_watermark: int
    records: int
    seconds: float | None


def lag_of(offset: int, start: int, end: int, appended: WallUs | int | None, now_us: WallUs) -> Lag:
    """The lag at `offset` of a log with these bounds. appended: the time of the first record
    not read yet; None: compaction has removed all of them, or there is none."""
    records = max(0, end - max(start, offset))
    waiting = records > 0 and appended is not None
    return Lag(start, end, records, max(0.0, (now_us - (appended or 0)) / 1e6) if waiting else 0.0)


def appended_us(replica: Replica, offset: int) -> WallUs | None:
    """When the batch with the record at `offset`, or with the first one after it, was appended;
    None: no such record is committed. Raises the errors of Replica.read and CommitLog.pread, and
    InLakeError for one that is only in the lake (`resolve_in_lake`)."""
    stream, log = replica.stream, replica.log
    if not is_in_lake(stream, log, max(offset, start_offset(stream, log))):
        offset = max(offset, log.log_start_offset)
    found = replica.read(offset, 1, is_leader=False)
    if found is None:
        return None
    return decode_header(replica.log.pread(replace(found, length=HEADER_BYTES))).append_timestamp


def request_for(places: Collection[Place]) -> pb.ListOffsetsRequest:
    """The request to the node that leads all these streams."""
    refs = {stream_id: common_pb2.StreamRef(id=stream_id) for stream_id, _ in places}
    return pb.ListOffsetsRequest(
        queries=[
            *(_Query(stream=ref, earliest=True) for ref in refs.values()),
            *(_Query(stream=ref, latest=True) for ref in refs.values()),
            *(_Query(stream=refs[stream_id], offset=offset) for stream_id, offset in places),
        ]
    )


def lags_in(
    places: Collection[Place], answer: pb.ListOffsetsResponse, now_us: WallUs
) -> dict[Place, Lag]:
    """The lags in the node's answer, without places in streams that it does not lead. Empty for an
    answer to something else."""
    ids = list(dict.fromkeys(stream_id for stream_id, _ in places))
    results = answer.results
    if len(results) != 2 * len(ids) + len(places):
        return {}
    starts = dict(zip(ids, results, strict=False))
    ends = dict(zip(ids, results[len(ids) :], strict=False))
    found: dict[Place, Lag] = {}
    for place, record in zip(places, results[2 * len(ids) :], strict=True):
        stream_id, offset = place
        start, end = starts[stream_id], ends[stream_id]
        if not start.HasField("error") and not end.HasField("error"):
            appended = record.append_timestamp if record.HasField("append_timestamp") else None
            lag = lag_of(offset, start.offset, end.offset, appended, now_us)
            is_known = lag.records == 0 or not record.HasField("error")
            found[place] = lag if is_known else replace(lag, seconds=None)
    return found
