"""Replaces failed logs: reports them to the metadata, then fetches them anew.

failed_log.py decides what is due; this module does it, several times a second until the log is
healthy. First it notes the failure in the run record (run_record.py), which decides whether the log
is trusted after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import DistrustReplica
from jetstream_server.replication.failed_log import Attempts, Step, next_step
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

ROUND_SECONDS = 0.1

logger = structlog.get_logger("jetstream.replication")


class LogReplacement(RoleListener):
    """Call `start`, then `close`."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: RaftMetadataLog,
        *,
        node_id: int,
        incarnation: int,
        request_again: Callable[[Replica], None],
        revived: Callable[[], None],
        monotonic_clock: MonotonicClock,
    ) -> None:
        """request_again: sends the replica's position to its leader again. revived: called when a
        replica can take part in an election among untrusted replicas."""
        self._replicas = replicas
        self._metadata = metadata
        self._node_id = NodeId(node_id)
        self._incarnation = incarnation
        self._request_again = request_again
        self._revived = revived
        self._monotonic_clock = monotonic_clock
        self._failed: dict[Replica, Attempts] = {}
        self._distrusting: dict[Replica, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = run_in_background(self._work(), "mending of replicas")

    async def close(self) -> None:
        await end_tasks(*self._distrusting.values(), self._working)

    def failed(self, replica: Replica) -> None:
        self._failed.setdefault(replica, Attempts())
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._failed:
                self._replicas.failures.note_all()
                for replica in list(self._failed):
                    self._look_at(replica)
                await asyncio.sleep(ROUND_SECONDS)

    def _look_at(self, replica: Replica) -> None:
        step = next_step(replica)
        if replica.closed or step is Step.TRUSTED:
            del self._failed[replica]  # If it fails again, the steps begin again.
        elif step in (Step.WAIT, Step.ONLINE):
            return
        elif self._failed[replica].is_due(step, self._monotonic_clock()):
            if step is Step.DISTRUST:
                self._distrust(replica)
            elif step is Step.FETCH_ANEW:
                self._request_again(replica)
            elif step is Step.REVIVE:
                self._revive(replica)

    def _distrust(self, replica: Replica) -> None:
        """Propose until the metadata shows it: the command may be refused or lost."""
        if replica not in self._distrusting:
            task = run_in_background(self._propose(replica), "distrust of a replica")
            self._distrusting[replica] = task
            task.add_done_callback(lambda _: self._distrusting.pop(replica, None))

    async def _propose(self, replica: Replica) -> None:
        command = DistrustReplica(
            stream_id=replica.stream.id,
            node_id=self._node_id,
            node_incarnation=self._incarnation,
        )
        failure = replica.failures
        try:
            await self._metadata.propose(command)
        except JetstreamError as error:
            logger.info(
                "replica_not_distrusted", stream=replica.stream.full_name, reason=error.message
            )
            return
        replica.failure_recorded(failure)

    def _revive(self, replica: Replica) -> None:
        try:
            replica.revive()
        except StorageError as error:
            logger.info("log_not_revived", stream=replica.stream.full_name, reason=error.message)
        else:
            logger.warning("log_revived", stream=replica.stream.full_name)
            self._revived()
