"""Decides about the lake: which records of a stream it holds, and which streams may use it.

The class of each command (commands.py) says what it means. A decision changes nothing: it returns a
Decision, or raises the JetstreamError that the proposer gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_protocol.types import NO_NODE, LeaderEpoch
from jetstream_server.metadata.state.commands import AdoptLake, CommitLake
from jetstream_server.metadata.state.decision import (
    Decision,
    check_leader_epoch,
    decision_for,
    stream_of,
)
from jetstream_server.metadata.state.streams import LakeMark, StreamMetadata, StreamSettings
from jetstream_server.metadata.state.tables import Tables

LOCATION_LENGTH_MAX = 1024


def commit_lake(tables: Tables, command: CommitLake) -> Decision:
    stream = stream_of(tables, command.stream_id)
    start = stream.lake.start if stream.lake.holds_records else command.begin
    mark = LakeMark(
        min(max(start, command.start), command.end),
        command.end,
        command.last_epoch,
        command.location,
        command.version + 1,
    )
    if stream.lake == mark and stream.leader_epoch == command.leader_epoch:
        return Decision(_result(mark))
    check_leader_epoch(stream, command.leader_epoch)
    _check_mark(stream, command)
    after = replace(stream, lake=mark, stream_epoch=stream.stream_epoch + 1)
    return Decision(_result(mark), decision_for(tables, stream, after).changes)


def adopt_lake(tables: Tables, command: AdoptLake) -> Decision:
    stream = stream_of(tables, command.stream_id)
    mark = LakeMark(command.start, command.end, command.last_epoch, command.location, 1)
    if stream.lake == mark:
        return Decision(_result(mark))
    check_leader_epoch(stream, command.leader_epoch)
    if not (stream.config.lake and stream.config.restoring) or stream.lake.version:
        raise PreconditionFailedError(
            f"{stream.full_name} is not a new stream with lake that is being restored"
        )
    is_located = 0 < len(command.location) <= LOCATION_LENGTH_MAX
    is_possible = 0 <= command.start < command.end and command.last_epoch >= 0
    if not (is_located and is_possible):
        raise InvalidRequestError("adopt_lake needs a location, and at least one record")
    # **safety** Epochs never fall: readers know those of the records that they have.
    epoch = LeaderEpoch(max(stream.leader_epoch, command.last_epoch) + 1)
    after = replace(stream, lake=mark, leader_epoch=epoch, stream_epoch=stream.stream_epoch + 1)
    return Decision(_result(mark), decision_for(tables, stream, after).changes)


def _result(mark: LakeMark) -> dict[str, Any]:
    return {"start": mark.start, "end": mark.end, "version": mark.version}


def _check_mark(stream: StreamMetadata, command: CommitLake) -> None:
    """**safety** Nothing but the records right after those that the lake holds may be added."""
    lake = stream.lake
    is_trim = command.begin == command.end and bool(lake.location)
    if not (stream.config.lake or is_trim) or stream.leader == NO_NODE:
        raise PreconditionFailedError(f"{stream.full_name} has no leader, or does not use the lake")
    if (command.expected_location, command.version) != (lake.location, lake.version):
        raise PreconditionFailedError(
            f"the lake's table of {stream.full_name} is at version {lake.version}, not "
            f"{command.version}"
        )
    is_later = lake.end < command.begin < command.end and not lake.holds_records
    if command.begin != lake.end and not is_later:
        raise PreconditionFailedError(
            f"the lake holds the records of {stream.full_name} up to {lake.end}: what begins at "
            f"{command.begin} does not continue them"
        )
    is_located = 0 < len(command.location) <= LOCATION_LENGTH_MAX
    is_as_before = bool(lake.version) and command.last_epoch == lake.last_epoch
    adds = lake.end <= command.begin < command.end
    if not (is_located and (adds or (is_as_before and command.begin == command.end))):
        raise InvalidRequestError("commit_lake needs a location, and at least one record")
    if not lake.last_epoch <= command.last_epoch <= stream.leader_epoch:
        raise InvalidRequestError(
            f"commit_lake names leader epoch {command.last_epoch}, which is not between "
            f"{lake.last_epoch} and {stream.leader_epoch}"
        )


def check_lake(config: StreamSettings, was_compacted: bool = False) -> None:
    """Raise InvalidRequestError, which says why, unless a stream may use the lake."""
    if not config.lake:
        if config.local_max_age_us or config.local_max_bytes:
            raise InvalidRequestError(
                "local_max_age and local_max_bytes remove from the disks what is in the lake: they "
                "need lake"
            )
        return
    reasons = {
        "compact": config.compact or was_compacted,
        "key: subject": config.is_keyed_by_subject,
        "encryption": config.is_encrypted,
        "max_messages": bool(config.max_messages),
    }
    refused = [reason for reason, holds in reasons.items() if holds]
    if refused:
        raise InvalidRequestError(f"{_WHY[refused[0]]}: lake cannot be set for this stream")


_WHY = {
    "compact": "records that compaction removes would stay in the lake",
    "key: subject": "the index of subjects does not know the records in the lake",
    "encryption": "objects in the lake are not encrypted by keys of the nodes",
    "max_messages": "max_messages does not reach the lake yet",
}


def check_lake_stays(stream: StreamMetadata, config: StreamSettings) -> None:
    """Raise PreconditionFailedError if readers would lose the records that only the lake holds."""
    if stream.lake.holds_records and not config.lake:
        raise PreconditionFailedError(
            f"the lake holds records {stream.lake.start} to {stream.lake.end - 1} of "
            f"{stream.full_name}, perhaps alone: purge them first (jetstream stream purge)"
        )


def purged(stream: StreamMetadata, offset: int) -> LakeMark:
    """The mark after a purge of the records below `offset`, also if the lake holds none yet: they
    may be under way there.

    The objects stay in the store, and no reader is given what was purged. **safety** Beyond the end
    only the least epoch is known: who purges may have been elected after the records were appended.
    """
    lake = stream.lake
    if not (lake.version or stream.config.lake) or offset <= lake.start:
        return lake
    return lake._replace(start=offset, end=max(offset, lake.end), version=lake.version + 1)
