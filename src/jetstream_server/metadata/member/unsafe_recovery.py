"""Continues without voters that are lost for ever: plans what may be lost, and records it.

A metadata group that has lost the majority of its voters cannot decide anything, not even to have
fewer voters. So an operator decides on the folder of a stopped node: from its next start on the
group has the remaining voters. Decisions that only the lost voters knew are lost.

**safety** The lost voters must not overrule that, so none of them can be recovered as well: it may
hold decisions that the others do not. The folder gets a token for the recovery. Links
with nodes that lack the token are refused (handshake.py), and such nodes stop. The first decision
of the recovered group moves epochs and ids far beyond any that the lost voters may have given out
(node_decisions.set_cluster). The token is computed from the group and the remaining voters, so that
all nodes with the same recovery form one group.

The recovered group goes on from what its voters know. A node that does not vote may know more. It
begins anew, at its next start, so that it ends with what they know (`must_begin_anew`).

Reads as much of the journal as is readable. Changes nothing but `group.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.logfiles.metadata_records import (
    ENTRY,
    STATE,
    TRUNCATE,
    VOTERS,
    Record,
    scan,
)
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.member.proposals import Proposals
from jetstream_server.metadata.member.state_machine import RegistryStateMachine
from jetstream_server.metadata.raft.files import read_file
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import REGULAR
from jetstream_server.metadata.raft.messages import VOTERS as NAMED
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata


@dataclass(frozen=True, slots=True)
class KnownHere:
    """The metadata in a folder. term: of its last entry. modified: when the journal was last
    written (seconds, Unix). voters: the last ones that the log has named; None: it has named
    none."""

    term: int
    last_index: int
    modified: float
    registry: Registry
    voters: Voters | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The effects of a recovery, and what it may lose.

    gone: streams without a copy on the remaining nodes. observed: streams of which these nodes have
    no replica, only an observer's copy, which an operator can promote. unled: streams without an
    in-sync replica there, for which an operator must elect one by hand.
    """

    before: Group
    after: Group
    lost: tuple[NodeId, ...]
    known: KnownHere
    gone: tuple[StreamMetadata, ...]
    observed: tuple[StreamMetadata, ...]
    unled: tuple[StreamMetadata, ...]

    @property
    def assumed_alive(self) -> tuple[NodeId, ...]:
        """Non-voting nodes; we cannot know whether they are lost, and assume they are not."""
        known = {*self.before.voters, self.before.node_id}
        return tuple(sorted(set(self.known.registry.nodes) - known))

    def observers_left(self, stream: StreamMetadata) -> list[NodeId]:
        """The remaining nodes that observe the stream."""
        return [node for node in stream.observers if node not in self.lost]


def plan_recovery(directory: str, voters: Sequence[NodeId]) -> Recovery:
    """Plan to continue with these voters.

    Raises PreconditionFailedError when a recovery is not the right way, StorageError for unreadable
    files.
    """
    before = GroupFile.read(directory).group
    known = read_metadata(directory)
    if known.voters is not None and known.voters.recoveries >= len(before.recoveries):
        before = replace(before, addresses=known.voters.addresses, is_named=True)
    left = tuple(sorted(voters))
    _check(before, left)
    lost = tuple(voter for voter in before.voters if voter not in left)
    stay = tuple(each for each in before.addresses if each[0] in left)
    gone, observed, unled = [], [], []
    for stream in known.registry.streams.values():
        if not set(stream.copies) - set(lost):
            gone.append(stream)
        elif not set(stream.replicas) - set(lost):
            observed.append(stream)
        elif not {*stream.isr, *stream.elr} - set(lost):
            unled.append(stream)
    return Recovery(
        before,
        replace(before, addresses=stay, recoveries=(*before.recoveries, _token(before, left))),
        lost,
        known,
        tuple(gone),
        tuple(observed),
        tuple(unled),
    )


def recover(directory: str, recovery: Recovery) -> None:
    """Record the recovery; durable on return. Raises StorageError."""
    GroupFile.read(directory).replace(recovery.after)


def must_begin_anew(group: Group, journal: Journal) -> bool:
    """Whether a node that does not vote still has the state of the group before its recovery.

    **safety** Its snapshot may hold decisions that no remaining voter knows. Nothing would remove
    them: what is applied counts as agreed on. Entries after the snapshot are not applied yet, and
    those that the voters lack are removed as they follow. An entry of the recovered group shows
    that everything before it has been compared with the voters'.
    """
    if not group.recoveries or group.node_id in group.voters or not journal.snapshot_index:
        return False
    return journal.held[-1].term <= group.voter_set.term_min


def _check(before: Group, left: tuple[NodeId, ...]) -> None:
    known = ", ".join(map(str, before.voters))
    if not before.cluster_id:
        raise PreconditionFailedError(
            "this node has never been in touch with its metadata group: there is nothing to recover"
        )
    if left == before.voters and _is_recovered(before, left):
        raise PreconditionFailedError(
            f"this node was recovered already: its voters are {known}; do the same on every other "
            "node that stays, then start them"
        )
    if left == before.voters:
        raise PreconditionFailedError(
            f"the voters are {known}, here and in the configuration: say there which of them are "
            "left, by the key `voters`"
        )
    added = [str(voter) for voter in left if voter not in before.voters]
    if added:
        raise PreconditionFailedError(
            f"node {', '.join(added)} is none of the voters {known}: recover with those that are "
            "left, and add voters afterwards (docs/operations/cluster.md, Changing the voters)"
        )
    if 2 * len(left) > len(before.voters):
        raise PreconditionFailedError(
            f"{len(left)} of the voters {known} are left, a majority: start them, and nothing need "
            "be lost"
        )
    if before.node_id in before.voters and before.node_id not in left:
        raise PreconditionFailedError(
            f"node {before.node_id} is one of the voters {known}, and the configuration goes on "
            "without it, so it is not to stay: move its data folder away, and start it with an "
            "empty one"
        )


def _is_recovered(group: Group, left: tuple[NodeId, ...]) -> bool:
    """Whether the last recovery was one with these voters."""
    *earlier, last = group.recoveries or ("",)
    return last == _token(replace(group, recoveries=tuple(earlier)), left)


def _token(before: Group, left: tuple[NodeId, ...]) -> str:
    text = json.dumps([before.cluster_id, before.recoveries, left])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_metadata(directory: str) -> KnownHere:
    """Read the state after all entries of the journal. Raises StorageError."""
    machine = RegistryStateMachine(Proposals())
    index, term = 0, 0
    voters: Voters | None = None
    entries: dict[int, Record] = {}
    for record in _records(directory, "snapshot", tolerate_torn_tail=False):
        if record.kind == STATE:
            machine.registry.restore(record.payload)
            index, term = record.index, record.term
        elif record.kind == VOTERS:
            voters = Voters.decode(record.payload)
    for record in _records(directory, "journal", tolerate_torn_tail=True):
        if record.kind == TRUNCATE:
            entries = {at: each for at, each in entries.items() if at < record.index}
        elif record.kind == ENTRY:
            entries[record.index] = record
    while index + 1 in entries:
        index += 1
        term = entries[index].term
        payload = entries[index].payload
        if payload[:1] == bytes([REGULAR]):
            machine.apply(payload[1:])
        elif payload[:1] == bytes([NAMED]):
            voters = Voters.decode(payload[1:])
    modified = _modified(os.path.join(directory, "journal"))
    return KnownHere(term, index, modified, machine.registry, voters)


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def _records(directory: str, name: str, *, tolerate_torn_tail: bool) -> Iterator[Record]:
    path = os.path.join(directory, name)
    try:
        data = read_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    yield from scan(path, data, tolerate_torn_tail=tolerate_torn_tail)
