"""Makes pysyncobj safe to use: version, configuration, no pickle, and a transport that waits for
the driver.

Import this before pysyncobj runs: from then on pysyncobj's modules cannot pickle or unpickle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pysyncobj
import pysyncobj.pickle
from pysyncobj import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.messages import Message

PYSYNCOBJ_VERSION = "0.3.17"

ENTRIES_BYTES_MAX = 4 * 1024 * 1024
"""Upper bound on one message. An entry is always far smaller (proposals.BATCH_BYTES_MAX): pysyncobj
would pickle an entry of this length to split it."""


@dataclass(frozen=True, slots=True)
class RaftTimings:
    """In seconds. A follower that hears nothing calls an election after a random time between
    `election_min` and `election_max`, or sooner if its connection to the leader has broken
    (`gone_min` to `gone_max`), as after a kill. A leader that hears no majority for
    `leader_fallback` steps down. Measured failover: docs/replication.md, "Metadata group"."""

    heartbeat: float = 0.1
    election_min: float = 0.5
    election_max: float = 1.0
    gone_min: float = 0.1
    gone_max: float = 0.4
    leader_fallback: float = 0.8
    tick: float = 0.05


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
