"""Which node is asked for which stream: one Fetcher per node that leads streams held here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.replication.fetcher import Fetcher
from jetstream_server.replication.frame_connection import Dial
from jetstream_server.replication.node_link import NodeIdentity
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

logger = structlog.get_logger("jetstream.replication")


class Following:
    """A RoleListener: keeps the fetchers in step with the roles."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: MetadataLog,
        identity: NodeIdentity,
        *,
        dial: Dial,
        now_us: Callable[[], int],
        controller_now_us: Callable[[], int | None],
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._identity = identity
        self._dial = dial
        self._now_us = now_us
        self._controller_now_us = controller_now_us
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
        """The position's flushed offset rose."""
        leader = self._leader_of.get(replica.stream.id)
        if leader is not None:
            self._fetchers[leader].touch(replica.stream.id)
        confirmation = replica.flush_confirmation()
        if confirmation is not None:
            self._propose(confirmation)

    def failed(self, replica: Replica) -> None:
        """It tells the leader nothing any more before it is to be fetched anew (mending.py)."""

    def ask_anew(self, replica: Replica) -> None:
        """Ask the leader once more, although nothing has changed here."""
        leader = self._leader_of.get(replica.stream.id)
        if leader is not None:
            self._fetchers[leader].ask_anew(replica.stream.id)

    def _fetcher(self, leader: NodeId) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                lambda: self._data_address(leader),
                self._identity,
                dial=self._dial,
                now_us=self._now_us,
                accepted=self._replicas.accepted,
                failed=self._replicas.failed,
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
        """The leader does not answer us: enough of such reports depose it (design 7).

        They are dated by the controller's clock, because those of the reporters may differ by more
        than the time within which reports count together.
        """
        now_us = self._controller_now_us()
        if now_us is None:
            return
        for replica in silent:
            stream = replica.stream
            if replica.following is not None and self._identity.node_id in stream.isr:
                self._propose(
                    {
                        "op": "report_leader",
                        "stream_id": stream.id,
                        "leader_epoch": stream.leader_epoch,
                        "reporter": self._identity.node_id,
                        "now_us": now_us,
                    }
                )

    def _propose(self, command: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._try(command))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _try(self, command: dict[str, Any]) -> None:
        try:
            await self._metadata.propose(command)
        except JetstreamError as error:
            # Made void by what happened meanwhile, or said again when it is still true.
            logger.info("proposal_refused", op=command["op"], reason=error.message)

    async def close(self) -> None:
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
