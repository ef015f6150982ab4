"""A node's membership in its cluster: register, keep the session, and hand over before the stop.

until_led ──> (open the logs) ──> register ──> take_part ──> … ──> hand_over
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import BootUs, NodeId, StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.changes import Change, NodeChanged
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    Barrier,
    DrainNode,
    FenceNode,
    RegisterNode,
    SetCluster,
)
from jetstream_server.metadata.state.nodes import Addresses, NodeMetadata
from jetstream_server.replication.core.restart_trust import judge
from jetstream_server.replication.drivers.controller import Controller, HandOver
from jetstream_server.replication.drivers.log_ends import leaderless_log_ends
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.run_record import RunRecordFile
from jetstream_server.replication.sessions.node_session import NodeSession

RETRY_SECONDS = 0.2
HAND_OVER_SECONDS = 10.0
LEAVE_SECONDS = 1.0
"""Without an answer, the session lapses after about the same time."""
FIRST_LEASE_SECONDS = 10.0
"""How long a start waits for its first lease. Without one the node can serve readers."""

logger = structlog.get_logger("jetstream.server")


def new_session() -> str:
    """A token for one run of a process."""
    return secrets.token_hex(16)


class Membership:
    """One run of one node. lost: called when this process must stop."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        *,
        node_id: int,
        session: str,
        lost: Callable[[], None],
        clocks: Clocks | None = None,
    ) -> None:
        """Create it before the metadata log starts: the node's session runs on its thread."""
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._session = session
        self._lost = lost
        self._left = False
        self._throttle = LogThrottle()
        self._clocks = clocks or Clocks()
        self._node_session = NodeSession(metadata, boot_clock=self._clocks.boot)
        self.lease_held = self._node_session.lease_holds
        """Whether this node may act as a leader."""

    def log_ends_changed(self) -> None:
        """See NodeSession."""
        self._node_session.log_ends_changed()

    def controller_clock(self) -> BootUs | None:
        """See NodeSession."""
        return self._node_session.controller_clock()

    async def until_led(self, cluster_id: str, ack_subjects: list[str]) -> str:
        """Wait, without a limit, for a metadata leader and for everything that it has committed.

        cluster_id: from the data folder; "" if it is new. Returns the cluster's id; in a new
        cluster the first node chooses it. Raises PreconditionFailedError for a folder whose
        cluster's metadata is gone.
        """
        await self._repeat(Barrier())
        if not self._metadata.registry.settings.cluster_id:
            if cluster_id:
                raise PreconditionFailedError(
                    f"the data folder belongs to cluster {cluster_id}, but its metadata group is "
                    "new and knows no cluster: restore the metadata folders of a majority, or "
                    "move the data folders away"
                )
            try:
                await self._repeat(SetCluster(cluster_id=uuid.uuid4().hex))
            except PreconditionFailedError:
                pass  # Another node was first: use its id.
        await self._repeat(SetCluster(ack_subjects=tuple(ack_subjects)))
        await self._repeat(Barrier())
        return self._metadata.registry.settings.cluster_id

    def watch_registration(self, removed: Callable[[], None]) -> None:
        """Watch this run's registration, before it registers: what happens to it while the node
        still starts must not be missed. removed: called when somebody has removed the node."""
        self._metadata.watch(partial(self._watch_own_registration, removed))

    async def register(
        self,
        replicas: ReplicaManager,
        runs: RunRecordFile,
        *,
        rack: str,
        addresses: Addresses,
    ) -> int:
        """Register this run, and which logs are trusted. Returns its incarnation."""
        known = self._metadata.registry.nodes.get(self._node_id)
        replaces = "" if known is None else known.session
        if known is not None and known.session not in runs.record.sessions:
            logger.warning(
                "logs_not_believed",
                file=runs.path,
                reason="it has no entry for this node's last run: it is missing, damaged, or an "
                "older copy",
            )
            runs.folder_replaced(self._metadata.registry.revision)
        problems = {int(replica.stream.id): _problem(replica) for replica in replicas}
        trust = judge(runs.record, None if known is None else known.session, problems)
        registered = await self._repeat(
            RegisterNode(
                session=self._session,
                node_id=self._node_id,
                rack=rack,
                addresses=addresses,
                replaces=replaces,
                trusted=trust.trusted,
                distrusted=tuple(map(StreamId, trust.distrusted)),
                feature_level_max=FEATURE_LEVEL_MAX,
            )
        )
        runs.registered(self._session)
        return int(registered["incarnation"])

    async def _repeat(self, command: Barrier | SetCluster | RegisterNode) -> dict[str, Any]:
        """Propose until the outcome is known. Repeating these commands changes nothing."""
        while True:
            try:
                return await self._metadata.propose(command)
            except (UnavailableError, UnknownOutcomeError) as error:
                if self._throttle.is_due("waiting_for_metadata_leader", error.message):
                    logger.warning(
                        "waiting_for_metadata_leader", op=command.op, reason=error.message
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def take_part(
        self,
        replicas: ReplicaManager,
        runs: RunRecordFile,
        hand_over: HandOver,
        stack: AsyncExitStack,
        *,
        lease_changed: Callable[[], None],
    ) -> None:
        """Start the session and the controller's work. stack: stops both. lease_changed: see
        NodeSession.start."""
        self._node_session.start(
            lambda: leaderless_log_ends(
                self._node_id,
                self._metadata.registry.streams_of(self._node_id),
                replicas.get,
                runs.record,
            ),
            changed=lease_changed,
        )
        stack.push_async_callback(self._node_session.close)
        controller = Controller(
            self._metadata,
            lambda: self._node_session.log_ends,
            hand_over=hand_over,
            monotonic_clock=self._clocks.monotonic,
        )
        controller.start()
        stack.push_async_callback(controller.close)
        try:
            await self._node_session.wait_until_held(FIRST_LEASE_SECONDS)
        except UnavailableError as error:
            logger.warning("no_session_yet", reason=error.message)

    def _watch_own_registration(self, removed: Callable[[], None], change: Change) -> None:
        """Of two processes with the same node id, one must stop. What happens to the registration
        of an earlier run of the node is history."""
        match change:
            case NodeChanged(NodeMetadata() as before, after) if before.session == self._session:
                if after is None:
                    removed()
                elif after.session != self._session:
                    logger.error("node_id_taken_over", node=self._node_id)
                    self._lost()

    async def hand_over(self, replicas: ReplicaManager) -> None:
        """Drain: hand this node's leaderships to other nodes, as far as possible."""
        changed = asyncio.Event()
        stop_watching = self._metadata.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._metadata.propose(DrainNode(node_id=self._node_id))
                while any(self._can_hand_over(replica) for replica in replicas):
                    changed.clear()
                    await changed.wait()
        except (TimeoutError, JetstreamError) as error:
            logger.warning("not_handed_over", reason=str(error) or "it took too long")
        finally:
            stop_watching()

    async def leave(self) -> None:
        """Leave every ISR at once, so that commits do not wait for this node.

        **safety** Give up the session first: a node that may be fenced must not answer publishers.
        """
        if self._left or self._metadata.incarnation is None:
            return
        self._left = True
        self._node_session.give_up()
        command = FenceNode(node_id=self._node_id, node_incarnation=self._metadata.incarnation)
        try:
            await self._metadata.propose(command, patience=LEAVE_SECONDS)
        except JetstreamError as error:
            logger.info("session_left_to_lapse", reason=error.message)

    def _can_hand_over(self, replica: Replica) -> bool:
        """Whether this node leads a stream that another live member of its ISR could lead."""
        tables = self._metadata.registry
        return replica.leadership is not None and any(
            member != self._node_id
            and tables.is_alive(member)
            and tables.may_be_given_leaderships(member)
            for member in replica.stream.isr
        )


def _problem(replica: Replica) -> str:
    """Why the replica's log is not trusted; "": it is. **safety** A log with marked records lacks
    them. The only replica is all there is, whatever is marked in it."""
    log, marked = replica.log, ""
    if log.lost_range is not None and not replica.stream.is_alone(replica.node_id):
        marked = f"{log.directory}: records are marked as damaged"
    return log.offline_reason or log.incomplete_reason or marked
