"""`jetstream stream list`, `describe`: streams as people and programs see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import (
    emit_json,
    node_text,
    nodes_text,
    print_fields,
    print_table,
    replicas_text,
    stream_row,
)
from jetstream_client.cli.stream_or_group import NO_SUCH_STREAM, streams_in
from jetstream_client.cli.units import age_text, duration_text, size_text
from jetstream_client.values.types import DamagedRange, ReplicaProgress, Stream, StreamDescription
from jetstream_protocol.settings import STREAM_SETTINGS, Kind
from jetstream_protocol.times import timestamp_text

_DURATIONS = (
    *(each.name for each in STREAM_SETTINGS if each.kind is Kind.DURATION),
    "hand_over_gap",
)
"""Fields of `describe` in seconds."""

_NODES = ("replicas", "isr", "elr", "observers", "target_replicas")
"""Fields of `describe` that are numbers of nodes."""

_ZERO_MEANS = {each.name: each.zero for each in STREAM_SETTINGS if each.zero}


@common_options(watch=True)
def list_(
    cli: Invocation,
    feeding: Annotated[
        str,
        typer.Option(metavar="SUBJECT", help="Only streams that store messages on this subject."),
    ] = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the server's own, such as __cursors.")
    ] = False,
) -> None:
    """List the streams.

    REPLICAS: how many are in sync, of how many; after "+": how many observers. LAST: the age of the
    last record. "-": no leader answers, or it does not know yet what was committed. IN LAKE: up to
    which offset the lake holds the records, if any stream has `lake`. RECORDS counts
    offsets. It is too high where some have no record: in compacted streams ("<="), and in imported
    ones whose source had deleted messages.
    STATE: read-only, paused, restoring (being restored or imported), encrypted (by its own
    setting), or "-".

    Examples:

      jetstream stream list --feeding orders.eu

      jetstream stream list --watch
    """
    with cli.client() as client:
        cli.show(
            lambda: client.describe_streams(feeding, internal=internal),
            _draw_list,
            _draw_json_lines,
        )


def _draw_json_lines(streams: Sequence[StreamDescription]) -> None:
    for stream in streams:
        _draw_json(stream)


def _draw_list(streams: Sequence[StreamDescription]) -> None:
    columns: tuple[str, ...] = (
        "NAME",
        "SUBJECT",
        "GROUP",
        "LEADER",
        "REPLICAS",
        "RECORDS",
        "BYTES",
        "LAST",
        "STATE",
    )
    now = datetime.now(UTC)
    cells = [_list_cells(stream, now) for stream in streams]
    if any(stream.lake or stream.lake_end_offset for stream in streams):
        columns += ("IN LAKE",)
        cells = [(*row, _lake_text(stream)) for row, stream in zip(cells, streams, strict=True)]
    print_table(columns, cells, "no streams")


def _lake_text(stream: Stream) -> str:
    return f"to {stream.lake_end_offset}" if stream.lake_end_offset else "-"


def _list_cells(stream: StreamDescription, now: datetime) -> tuple[object, ...]:
    """See `list_`."""
    records = "-"
    if stream.high_watermark is not None and stream.log_start_offset is not None:
        count = stream.high_watermark - stream.log_start_offset
        records = f"<={count}" if stream.compact and count else str(count)
    return (
        stream.name,
        stream.subject or "-",
        stream.group or "-",
        node_text(stream.leader),
        replicas_text(stream),
        records,
        "-" if stream.size_bytes is None else size_text(stream.size_bytes),
        "-" if stream.last_append is None else age_text(now - stream.last_append),
        ", ".join(_marks(stream)) or "-",
    )


def _marks(stream: Stream) -> Iterator[str]:
    if stream.readonly:
        yield "read-only"
    if stream.paused:
        yield "paused"
    if stream.restoring:
        yield "restoring"
    if stream.encryption != "node":
        yield "encrypted"


@common_options(watch=True)
def describe(
    cli: Invocation,
    stream: options.StreamName,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Every field, under the name that --json has.")
    ] = False,
) -> None:
    """Show a stream: what it keeps, and where it is.

    --all shows every setting, offset and counter.

    With the name of a keyed group it lists the group's streams, with the columns of `list`; --json
    tells everything of each.

    Examples:

      jetstream stream describe orders --json | jq .high_watermark

      jetstream stream describe orders --watch
    """
    with cli.client() as client:

        def look() -> StreamDescription | list[StreamDescription]:
            try:
                return client.describe_stream(stream)
            except NO_SUCH_STREAM as error:
                return streams_in(client.describe_streams(), stream, error)

        def draw(found: StreamDescription | list[StreamDescription]) -> None:
            if isinstance(found, list):
                (_draw_json_lines if cli.json else _draw_list)(found)
            else:
                (_draw_json if cli.json else _draw_description if all_ else _draw_summary)(found)

        cli.show(look, draw, draw)


def _draw_json(stream: Stream) -> None:
    emit_json(stream_row(stream))


def _draw_summary(stream: StreamDescription) -> None:
    """What a person looks for. A counter is shown where it says that something happened."""
    now = datetime.now(UTC)
    in_sync = f"in sync {nodes_text(stream.isr)}"
    fields: dict[str, object] = {
        "stream": stream.name,
        "subject": stream.subject or "-",
        "group": stream.group,
        "state": ", ".join([stream.state, *_marks(stream)]),
        "records": _records_text(stream),
        "bytes": _bytes_text(stream),
        "lake": _in_lake_text(stream),
        "last": _last_text(stream, now),
        "leader": f"{_leader_text(stream)}, epoch {stream.leader_epoch}",
        "replicas": f"{nodes_text(stream.replicas)}; {in_sync}",
        "observers": nodes_text(stream.observers) if stream.observers else "",
        "acks": f"{stream.acks}, flush {stream.flush}, "
        f"at least {stream.min_insync_replicas} in sync",
        "keeps": _kept_text(stream),
        "created": stream.created_at,
    }
    fields |= {name: getattr(stream, name) or "" for name in _COUNTERS}
    fields["behind"] = tuple(_progress_text(each) for each in stream.progress if each.lag != 0)
    fields["damaged"] = tuple(map(_damaged_text, stream.damaged))
    print_fields({name: value for name, value in fields.items() if value not in ("", ())})


_COUNTERS = ("nacks_sent", "acks_suppressed", "suspected_gaps", "lossy_elections", "hand_overs")


def _leader_text(stream: Stream) -> str:
    return nodes_text([stream.leader]) if stream.leader >= 0 else "none"


def _last_text(stream: StreamDescription, now: datetime) -> str:
    if stream.last_append is None:
        return "-"
    return f"{age_text(now - stream.last_append)} ago, at {timestamp_text(stream.last_append)}"


def _records_text(stream: StreamDescription) -> str:
    """`17, offsets 0 to 16`."""
    start, end = stream.log_start_offset, stream.high_watermark
    if start is None or end is None:
        return "-"
    if start >= end:
        return f"empty; the next offset is {end}"
    at_most = "at most " if stream.compact else ""
    return f"{at_most}{end - start}, offsets {start} to {end - 1}"


def _bytes_text(stream: StreamDescription) -> str:
    if stream.size_bytes is None or stream.segments is None:
        return "-"
    segments = "segment" if stream.segments == 1 else "segments"
    return f"{size_text(stream.size_bytes)} in {stream.segments} {segments}"


def _in_lake_text(stream: Stream) -> str:
    start, end = stream.lake_start_offset, stream.lake_end_offset
    if start < end:
        return f"{end - start}, offsets {start} to {end - 1}"
    return f"nothing yet: see jetstream lake status {stream.name}" if stream.lake else ""


def _kept_text(stream: Stream) -> str:
    """The limits that are set."""
    limits = [
        "the latest record of each key" if stream.compact else "",
        duration_text(stream.max_age) if stream.max_age else "",
        f"at most {size_text(stream.max_bytes)}" if stream.max_bytes else "",
        f"at most {stream.max_messages} records" if stream.max_messages else "",
    ]
    return ", ".join(filter(None, limits)) or "everything"


def _draw_description(description: StreamDescription) -> None:
    row = stream_row(description)
    row["leader"] = nodes_text([description.leader] if description.leader >= 0 else [])
    row |= {name: nodes_text(row[name]) for name in _NODES}
    row["progress"] = tuple(map(_progress_text, description.progress))
    row |= _compaction_fields(row.pop("compaction"))
    row["damaged"] = tuple(map(_damaged_text, description.damaged))
    row |= {name: duration_text(row[name]) for name in _DURATIONS if row[name] is not None}
    row |= {
        name: meaning for name, meaning in _ZERO_MEANS.items() if not getattr(description, name)
    }
    print_fields(row)


def _compaction_fields(compaction: dict[str, Any] | None) -> dict[str, Any]:
    """One line for each, under its own name."""
    if compaction is None:
        return {}
    fields = {f"compaction_{name}": value for name, value in compaction.items()}
    fields["compaction_dirty_ratio"] = f"{compaction['dirty_ratio']:.2f}"
    fields["compaction_ended_at"] = compaction["ended_at"] or "-"
    return fields


def _damaged_text(damaged: DamagedRange) -> str:
    if damaged.start == damaged.end:
        return f"node {damaged.node}: all of it is looked at"
    return f"node {damaged.node} has lost {damaged.start} to {damaged.end - 1}"


def _progress_text(follower: ReplicaProgress) -> str:
    if follower.lag is None:
        return f"node {follower.node} not heard of"
    return f"node {follower.node} at {follower.offset} (lag {follower.lag})"
