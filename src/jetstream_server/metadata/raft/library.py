"""Makes pysyncobj safe to use: version, configuration, no pickle, a transport that waits for the
driver, and names for what our rules need of its inside.

Import this before pysyncobj runs: from then on pysyncobj's modules cannot pickle or unpickle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pysyncobj
import pysyncobj.pickle
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.messages import Message
from jetstream_server.metadata.raft.timings import RaftTimings

PYSYNCOBJ_VERSION = "0.3.17"

ENTRIES_BYTES_MAX = 4 * 1024 * 1024
"""Upper bound on one message. An entry is always far smaller (proposals.BATCH_BYTES_MAX): pysyncobj
would pickle an entry of this length to split it."""


_FOLLOWER = 0


class Peer(Node):  # type: ignore[misc]  # pysyncobj has no types
    """A member, as pysyncobj keeps it in sets. The hash makes their order the same in every
    process, so that a simulation's seed replays exactly."""

    def __hash__(self) -> int:
        return int(self.id)


class Outbox(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """pysyncobj's transport: messages wait here until the driver has synced and sends them."""

    def __init__(self, current_term: Callable[[], int]) -> None:
        super().__init__(None, None, ())
        self.messages: list[tuple[NodeId, Message]] = []
        self._current_term = current_term

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Any, message: Message) -> bool:
        # pysyncobj's acknowledgements do not name their term.
        message.setdefault("term", self._current_term())
        self.messages.append((NodeId(int(node.id)), message))
        return True


class OpenSyncObj(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Names of ours for the private state of pysyncobj that our rules read or change.

    No other file uses a private name of pysyncobj, except to replace a method by that name. Which
    rule needs which name stands in docs/adr/0008-pysyncobj.md, and a test compares. Whatever
    pysyncobj has in public (`raftCurrentTerm`, `otherNodes`, `isNodeConnected` ...) is read there.
    """

    raftCurrentTerm: int
    raftCommitIndex: int
    raftLastApplied: int

    def _begin(self, log: Any, sender: Any, term: int, voted_for: str | None) -> None:
        """Go on where the journal ends, with our log and our sender of snapshots."""
        self._SyncObj__raftLog = log
        self._SyncObj__serializer = sender
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for
        self._continue_after(log.getRaftCommitIndex())

    def _continue_after(self, index: int) -> None:
        """The state is that of a snapshot of this entry."""
        self._SyncObj__raftCommitIndex = index
        self._SyncObj__raftLastApplied = index

    # Elections.

    @property
    def _state(self) -> int:
        return self._SyncObj__raftState  # type: ignore[no-any-return]

    @property
    def _election_deadline(self) -> float:
        return self._SyncObj__raftElectionDeadline

    @_election_deadline.setter
    def _election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    @property
    def _takes_over(self) -> bool:
        """Whether the leader has asked this node to take over, and it has not called an election
        yet."""
        return self._SyncObj__transferInProgress and self._SyncObj__raftElectionDeadline == 0

    def _follow_no_leader(self) -> None:
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def _enter(self, term: int) -> None:
        """Follow in another member's later term, without a leader."""
        self._SyncObj__setCurrentTerm(term, None)
        self._follow_no_leader()

    def _give_up_leader(self) -> None:
        """Expect nothing more of the leader: neither to take over nor what was forwarded to it."""
        self._SyncObj__transferInProgress = False
        self._SyncObj__raftLeader = None
        self._fail_forwarded()

    def _fail_forwarded(self) -> None:
        self._SyncObj__onLeaderChanged()

    # What a leader knows of the others.

    @property
    def _match_index(self) -> dict[Any, int]:
        return self._SyncObj__raftMatchIndex  # type: ignore[no-any-return]

    @property
    def _last_response(self) -> dict[Any, float]:
        return self._SyncObj__lastResponseTime  # type: ignore[no-any-return]

    def _send_entries(self) -> None:
        self._SyncObj__sendAppendEntries()

    @contextmanager
    def _hidden(self, readonly: set[Any]) -> Iterator[None]:
        """Some of the read-only nodes get nothing meanwhile."""
        self._SyncObj__readonlyNodes -= readonly
        try:
            yield
        finally:
            self._SyncObj__readonlyNodes |= readonly

    def _make_voter(self, node: Any, last_index: int, now: float) -> None:
        self._SyncObj__otherNodes.add(node)
        self._SyncObj__readonlyNodes.discard(node)
        self._last_response.setdefault(node, now)
        self._track(node, last_index)

    def _make_readonly(self, node: Any, last_index: int) -> None:
        self._SyncObj__otherNodes.discard(node)
        self._SyncObj__readonlyNodes.add(node)
        self._track(node, last_index)

    def _track(self, node: Any, last_index: int) -> None:
        self._SyncObj__raftNextIndex.setdefault(node, last_index + 1)
        self._match_index.setdefault(node, 0)

    def _forget_voter(self, node: Any) -> None:
        self._SyncObj__otherNodes.discard(node)
        self._SyncObj__raftNextIndex.pop(node, None)
        self._match_index.pop(node, None)

    # Commands that wait for their entry.

    def _await_commit(self, index: int, term: int, callback: Any) -> None:
        self._SyncObj__commandsWaitingCommit[index].append((term, callback))

    def _end_waits(self, index: int) -> None:
        """Fail the commands that wait for an entry up to this one. A snapshot came instead, and
        does not say which commands it contains."""
        waiting = self._SyncObj__commandsWaitingCommit
        for passed in sorted(known for known in waiting if known <= index):
            for _, callback in waiting.pop(passed):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)


def configuration(timings: RaftTimings) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,
        appendEntriesBatchSizeBytes=ENTRIES_BYTES_MAX,
        appendEntriesPeriod=timings.heartbeat,
        raftMinTimeout=timings.election_min,
        raftMaxTimeout=timings.election_max,
        connectionTimeout=timings.election_max,  # Checked, but used only by its own transport.
        leaderFallbackTimeout=timings.leader_fallback,
        commandsWaitLeader=False,
        commandsQueueSize=0,  # Bounded by the proposers: results.SPAN each.
        useFork=False,
        dynamicMembershipChange=False,
        pollerType="select",  # There is no socket to poll.
    )


def check_version() -> None:
    if pysyncobj.version.VERSION != PYSYNCOBJ_VERSION:
        raise AssertionError(
            f"pysyncobj {pysyncobj.version.VERSION} is installed; this code knows the inside of "
            f"{PYSYNCOBJ_VERSION} only"
        )


class _NoPickle:
    """Replaces pickle in pysyncobj: using it is a bug of ours."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"pysyncobj wanted pickle.{name}: nothing here may be pickled")


def _forbid_pickle(modules: Mapping[str, Any]) -> None:
    for module in modules.values():
        module.pickle = _NoPickle()


_forbid_pickle({"syncobj": pysyncobj.syncobj, "serializer": pysyncobj.serializer})

# The only log line of pysyncobj that can occur here is wrong: it reports a removal that RaftLog
# holds back. `_check_removal` reports real ones.
logging.getLogger("pysyncobj.syncobj").setLevel(logging.CRITICAL + 1)
