"""Makes replicas whole again whose logs have failed: told to the metadata, then fetched anew.

failure.py decides what is due, this does it, several times a second for as long as it takes. What a
failed log is worth after a restart is the record of runs' (run_book.py): it is noted there first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_server.background import run_in_background
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.replication.failure import Attempts, Step, next_step
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

ROUND_SECONDS = 0.1

logger = structlog.get_logger("jetstream.replication")


class Mending:
    """A RoleListener: `start`, then `close`."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: MetadataLog,
        *,
        node_id: int,
        incarnation: int,
        ask_anew: Callable[[Replica], None],
        revived: Callable[[], None],
        now_us: Callable[[], int],
    ) -> None:
        """ask_anew: has the replica's leader told once more where it stands. revived: called when
        a replica can take part in an election in which nobody is believed."""
        self._replicas = replicas
        self._metadata = metadata
        self._node_id = node_id
        self._incarnation = incarnation
        self._ask_anew = ask_anew
        self._revived = revived
        self._now_us = now_us
        self._failed: dict[Replica, Attempts] = {}
        self._distrusting: dict[Replica, asyncio.Task[None]] = {}
        self._failures: dict[Replica, int] = {}
        self._told: dict[Replica, int] = {}  # the failure that the metadata was told of last
        self._wake = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = run_in_background(self._work(), "mending of replicas")

    async def close(self) -> None:
        tasks = [*self._distrusting.values()]
        if self._working is not None:
            tasks.append(self._working)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def role_changed(self, replica: Replica) -> None:
        """It is looked at often enough."""

    def flushed(self, replica: Replica) -> None:
        """Of no concern here."""

    def failed(self, replica: Replica) -> None:
        """A RoleListener's: its log can not be relied on any more."""
        self._failed.setdefault(replica, Attempts())
        self._failures[replica] = self._failures.get(replica, 0) + 1
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._failed:
                self._replicas.note_suspects()
                for replica in list(self._failed):
                    self._look_at(replica)
                await asyncio.sleep(ROUND_SECONDS)

    def _look_at(self, replica: Replica) -> None:
        step = next_step(replica, is_told=self._is_told(replica))
        if replica.closed or step is Step.TRUSTED:
            del self._failed[replica]  # Should it fail again, it begins anew.
            del self._failures[replica]
            self._told.pop(replica, None)
        elif step in (Step.WAIT, Step.MENDED):
            return
        elif self._failed[replica].is_due(step, self._now_us()):
            if step is Step.DISTRUST:
                self._distrust(replica)
            elif step is Step.FETCH_ANEW:
                self._ask_anew(replica)
            elif step is Step.REVIVE:
                self._revive(replica)

    def _is_told(self, replica: Replica) -> bool:
        return self._told.get(replica) == self._failures[replica]

    def _distrust(self, replica: Replica) -> None:
        """Until the metadata shows it: it may be refused, or be lost."""
        if replica not in self._distrusting:
            task = asyncio.get_running_loop().create_task(self._propose(replica))
            self._distrusting[replica] = task
            task.add_done_callback(lambda _: self._distrusting.pop(replica, None))

    async def _propose(self, replica: Replica) -> None:
        command = {
            "op": "distrust_replica",
            "stream_id": replica.stream.id,
            "node_id": self._node_id,
            "node_incarnation": self._incarnation,
        }
        failure = self._failures[replica]
        try:
            await self._metadata.propose(command)
        except JetstreamError as error:
            logger.info(
                "replica_not_distrusted", stream=replica.stream.full_name, reason=error.message
            )
            return
        self._told[replica] = failure

    def _revive(self, replica: Replica) -> None:
        try:
            replica.revive()
        except StorageError as error:
            logger.info("log_not_revived", stream=replica.stream.full_name, reason=error.message)
        else:
            logger.warning("log_revived", stream=replica.stream.full_name)
            self._revived()
