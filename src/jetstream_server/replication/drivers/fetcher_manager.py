"""Keeps one Fetcher for each node that leads streams followed here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import BootUs, NodeId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import ConfirmFlush, ReportLeader
from jetstream_server.net.frame_connection import Dial
from jetstream_server.net.node_link import NodeIdentity
from jetstream_server.replication.drivers.fetcher import Fetcher
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

logger = structlog.get_logger("jetstream.replication")


class FetcherManager(RoleListener):
    """Gives each stream to the fetcher of its leader."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: RaftMetadataLog,
        identity: NodeIdentity,
        *,
        dial: Dial,
        monotonic_clock: MonotonicClock,
        controller_clock: Callable[[], BootUs | None],
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._identity = identity
        self._dial = dial
        self._monotonic_clock = monotonic_clock
        self._controller_clock = controller_clock
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._leader_of: dict[int, NodeId] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def role_changed(self, replica: Replica) -> None:
        stream = replica.stream
        leader = stream.leader if replica.following is not None and not replica.closed else None
        known = self._leader_of.get(stream.id)
        if known is not None and known != leader:
            self._fetchers[known].drop(stream.id)
            del self._leader_of[stream.id]
        if leader is not None:
            self._leader_of[stream.id] = leader
            self._fetcher(leader).follow(replica)

    def flushed(self, replica: Replica) -> None:
        """Report a risen flushed offset, which is part of the position."""
        leader = self._leader_of.get(replica.stream.id)
        if leader is not None:
            self._fetchers[leader].touch(replica.stream.id)
        confirmation = replica.flush_confirmation()
        if confirmation is not None:
            self._propose(confirmation)

    def request_again(self, replica: Replica) -> None:
        """Ask the leader again, although nothing has changed here."""
        leader = self._leader_of.get(replica.stream.id)
        if leader is not None:
            self._fetchers[leader].request_again(replica.stream.id)

    def _fetcher(self, leader: NodeId) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                lambda: self._data_address(leader),
                self._identity,
                dial=self._dial,
                monotonic_clock=self._monotonic_clock,
                silent=self._report,
            )
        return fetcher

    def _data_address(self, node_id: NodeId) -> tuple[str, int] | None:
        node = self._metadata.registry.nodes.get(node_id)
        if node is None:
            return None
        host, _, port = node.addresses.data.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def _report(self, silent: list[Replica]) -> None:
        """Report a leader that does not answer. Enough reports depose it.

        Reports carry the controller's time, because the reporters' clocks may differ by more than
        the time within which reports count together.
        """
        now_us = self._controller_clock()
        if now_us is None:
            return
        for replica in silent:
            stream = replica.stream
            if replica.following is not None and self._identity.node_id in stream.isr:
                self._propose(
                    ReportLeader(
                        stream_id=stream.id,
                        leader_epoch=stream.leader_epoch,
                        reporter=NodeId(self._identity.node_id),
                        now_us=now_us,
                    )
                )

    def _propose(self, command: ConfirmFlush | ReportLeader) -> None:
        task = run_in_background(self._try(command), "proposal of a follower")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _try(self, command: ConfirmFlush | ReportLeader) -> None:
        try:
            await self._metadata.propose(command)
        except JetstreamError as error:
            # The command is void by now, or is proposed again while it applies.
            logger.info("proposal_refused", op=command.op, reason=error.message)

    async def close(self) -> None:
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))
        await end_tasks(*self._tasks)
