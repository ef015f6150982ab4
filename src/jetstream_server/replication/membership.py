"""A node's part in its cluster: registered, heard, and handed over before it goes.

until_led ──> (open the logs) ──> register ──> take_part ──> … ──> hand_over
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.complaints import Complaints
from jetstream_server.metadata.changes import Change, NodeChanged
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.replication.controller import Controller, HandOver
from jetstream_server.replication.log_ends import leaderless_log_ends
from jetstream_server.replication.node_session import NodeSession
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.run_book import RunBook
from jetstream_server.replication.trust import judge

RETRY_SECONDS = 0.2
HAND_OVER_SECONDS = 10.0
LEAVE_SECONDS = 1.0
"""Without an answer the session lapses about as soon."""
SESSION_SECONDS = 10.0
"""How long a start waits for its first lease; it may serve reads without one."""

logger = structlog.get_logger("jetstream.server")


def new_session() -> str:
    """A token for one run of a process."""
    return secrets.token_hex(16)


class Membership:
    """One run of one node. `lost` is called when this process must not go on."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        *,
        node_id: int,
        session: str,
        lost: Callable[[], None],
        clocks: Clocks | None = None,
    ) -> None:
        """Made before the metadata log starts: the node's session rides on its thread."""
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._session = session
        self._lost = lost
        self._left = False
        self._complaints = Complaints()
        self._clocks = clocks or Clocks()
        self._node_session = NodeSession(metadata, clock_us=self._clocks.session_us)

    def speaks(self) -> bool:
        """Whether this node may act as a leader at this very moment (design 6, 7)."""
        return self._node_session.lease_holds()

    def log_ends_changed(self) -> None:
        """See NodeSession."""
        self._node_session.log_ends_changed()

    def controller_now_us(self) -> int | None:
        """See NodeSession."""
        return self._node_session.controller_now_us()

    async def until_led(self, cluster_id: str, ack_subjects: list[str]) -> str:
        """Wait for a metadata leader, as long as it takes, and for all it has committed.

        cluster_id: what the data folder says; "" if it is new. Returns the cluster's id, which in
        a new cluster whoever comes first makes up. Raises PreconditionFailedError for a folder
        whose cluster's metadata is gone.
        """
        await self._repeated({"op": "barrier"})
        if not self._metadata.registry.settings.cluster_id:
            if cluster_id:
                raise PreconditionFailedError(
                    f"the data folder belongs to cluster {cluster_id}, but its metadata group is "
                    "new and knows no cluster: restore the metadata folders of a majority, or "
                    "move the data folders away"
                )
            try:
                await self._repeated({"op": "set_cluster", "cluster_id": uuid.uuid4().hex})
            except PreconditionFailedError:
                pass  # Another node came first: its id it is.
        await self._repeated({"op": "set_cluster", "ack_subjects": ack_subjects})
        await self._repeated({"op": "barrier"})
        return self._metadata.registry.settings.cluster_id

    async def register(
        self, replicas: Replicas, runs: RunBook, *, rack: str, addresses: Mapping[str, str]
    ) -> int:
        """Say that this run is there and what its logs are worth; returns its incarnation."""
        known = self._metadata.registry.nodes.get(self._node_id)
        replaces = "" if known is None else known.session
        problems = {
            int(replica.stream.id): replica.log.offline_reason or replica.log.incomplete_reason
            for replica in replicas
        }
        trust = judge(runs.record, None if known is None else known.session, problems)
        registered = await self._repeated(
            {
                "op": "register_node",
                "node_id": self._node_id,
                "rack": rack,
                "addresses": dict(addresses),
                "replaces": replaces,
                "trusted": trust.trusted,
                "distrusted": list(trust.distrusted),
            }
        )
        runs.registered(self._session)
        return int(registered["incarnation"])

    async def _repeated(self, command: dict[str, Any]) -> dict[str, Any]:
        """Propose until the outcome is known; such commands change nothing when repeated."""
        while True:
            try:
                return await self._metadata.propose(command)
            except (UnavailableError, UnknownOutcomeError) as error:
                if self._complaints.is_due("waiting_for_metadata_leader", error.message):
                    logger.warning(
                        "waiting_for_metadata_leader", op=command["op"], reason=error.message
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def take_part(
        self, replicas: Replicas, runs: RunBook, hand_over: HandOver, stack: AsyncExitStack
    ) -> None:
        """Be heard, and perhaps be the controller; what that starts is stopped by `stack`."""
        self._node_session.start(
            lambda: leaderless_log_ends(
                self._node_id,
                self._metadata.registry.streams_of(self._node_id),
                replicas.get,
                set(map(StreamId, runs.record.suspects)),
            )
        )
        stack.push_async_callback(self._node_session.close)
        self._metadata.watch(self._watch_own_registration)
        controller = Controller(
            self._metadata,
            lambda: self._node_session.log_ends,
            hand_over=hand_over,
            now_us=self._clocks.now_us,
        )
        controller.start()
        stack.push_async_callback(controller.close)
        try:
            await self._node_session.wait_until_held(SESSION_SECONDS)
        except UnavailableError as error:
            logger.warning("no_session_yet", reason=error.message)

    def _watch_own_registration(self, change: Change) -> None:
        """Two processes with one node id must not both go on."""
        match change:
            case NodeChanged(_, after) if after is not None and after.node_id == self._node_id:
                if after.session != self._session:
                    logger.error("node_id_taken_over", node=self._node_id)
                    self._lost()

    async def hand_over(self, replicas: Replicas) -> None:
        """Drain: other nodes take over what this one leads, as far as they can."""
        changed = asyncio.Event()
        stop_watching = self._metadata.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._metadata.propose({"op": "drain_node", "node_id": self._node_id})
                while any(self._can_hand_over(replica) for replica in replicas):
                    changed.clear()
                    await changed.wait()
        except (TimeoutError, JetstreamError) as error:
            logger.warning("not_handed_over", reason=str(error) or "it took too long")
        finally:
            stop_watching()

    async def leave(self) -> None:
        """Be in no ISR any more, at once: nobody waits for a node that does not come back soon.

        **safety** The session is given up first: a node that may be fenced does not speak.
        """
        if self._left or self._metadata.incarnation is None:
            return
        self._left = True
        self._node_session.give_up()
        command = {
            "op": "fence_node",
            "node_id": self._node_id,
            "node_incarnation": self._metadata.incarnation,
        }
        try:
            await self._metadata.propose(command, patience=LEAVE_SECONDS)
        except JetstreamError as error:
            logger.info("session_left_to_lapse", reason=error.message)

    def _can_hand_over(self, replica: Replica) -> bool:
        """Whether this node leads a stream that another live member of its ISR could lead."""
        nodes = self._metadata.registry.nodes
        return replica.leadership is not None and any(
            member != self._node_id and not nodes[member].fenced and not nodes[member].steps_aside
            for member in replica.stream.isr
            if member in nodes
        )
