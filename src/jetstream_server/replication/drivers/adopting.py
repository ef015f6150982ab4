"""Takes over a table of the lake that a lost cluster has made, for a new stream led by this node.

A process of its own makes the next version of the table (lake/worker.py). It counts once the
metadata group has noted it (AdoptLake). The stream's log then begins where the table ends.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import structlog

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.types import LeaderEpoch
from jetstream_server.lake.stores import StoreOptions
from jetstream_server.lake.tasks import AdoptTask, folder_of, owner_properties
from jetstream_server.metadata.state.commands import AdoptLake
from jetstream_server.replication.drivers.uploading import Copier, Proposer
from jetstream_server.replication.replica import Replica

SECONDS_MAX = 3600.0
"""A year of a busy stream is a million objects, and to list these takes minutes."""

logger = structlog.get_logger("jetstream.replication")


class Adopting:
    """store: where the table is, too."""

    def __init__(self, metadata: Proposer, store: StoreOptions, cluster_id: str) -> None:
        self._metadata = metadata
        self._store = store
        self._cluster_id = cluster_id

    async def adopt(self, replica: Replica, url: str) -> None:
        """Make the table at `url` the stream's. Raises InvalidRequestError for what is no table of
        a stream, PreconditionFailedError unless the stream is new and is being restored,
        UnavailableError, and the errors of the metadata group."""
        stream, log = replica.stream, replica.log
        if stream.config.restoring and stream.lake.version:
            return  # An earlier attempt has done it.
        if not (stream.config.lake and stream.config.restoring) or log.log_end_offset:
            raise PreconditionFailedError(
                f"{stream.full_name} is not a new stream with lake that is being restored"
            )
        task = AdoptTask(
            self._store,
            folder_of(self._cluster_id, stream.id, stream.created_at_us),
            url,
            os.getpid(),
            {
                **owner_properties(self._cluster_id, stream.id),
                "jetstream.stream": stream.full_name,
            },
        )
        with ThreadPoolExecutor(1, "jetstream-adopting") as thread:
            loop = asyncio.get_running_loop()
            copier = Copier(lambda *call: loop.run_in_executor(thread, *call))
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    found = await copier.work(task)
            except TimeoutError:
                raise UnavailableError(f"it took longer than {SECONDS_MAX:g} s") from None
            except (EOFError, OSError) as error:
                raise InvalidRequestError(f"the table cannot be taken over: {error}") from error
            finally:
                await copier.end()
        await self._metadata.propose(
            AdoptLake(
                stream_id=stream.id,
                leader_epoch=stream.leader_epoch,
                start=found["start"],
                end=found["end"],
                last_epoch=LeaderEpoch(found["last_epoch"]),
                location=found["location"],
            )
        )
        logger.info(
            "lake_adopted", stream=stream.full_name, table=url, start=found["start"],
            end=found["end"],
        )  # fmt: skip
