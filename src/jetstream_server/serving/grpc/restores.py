"""Restoring: appends batches with their old offsets and times.

The stream must have been created for it (`restoring`). Its leader appends the batches at the end of
the log, one request at a time. From then on they are like all other batches: followers fetch them,
and they commit by the same rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    UnknownOutcomeError,
)
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.record_sizes import check_record_sizes
from jetstream_protocol.restored_batch import RestoredBatch, open_restored
from jetstream_server.clocks import WallClock
from jetstream_server.log.encryption import NO_KEYS, CannotDecryptError, decrypt_all
from jetstream_server.replication.replica import Replica

COMMIT_SECONDS = 8.0
"""After this time the client gets the answer that the outcome is unknown. It asks where the log
ends, and continues there."""
AHEAD_US_MAX = 3600 * 1_000_000
"""How far a batch's time may be ahead of this node's clock. Later batches never get an earlier
time, so one wrong time would become the time of everything that follows."""


class Restores:
    """Restores on the leader. Call `restore`."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._checking = asyncio.Lock()  # At most one request is decompressed at a time.

    async def restore(self, replica: Replica, data: bytes) -> int:
        """Append the batches. Returns where the next one must begin, once they are committed.

        Raises PreconditionFailedError for a stream that is not being restored, and for batches that
        do not begin at its log end; UnknownOutcomeError when they do not commit in time.
        """
        _check_restoring(replica)
        async with self._checking:
            batches = await asyncio.to_thread(_open, replica, data)
        if batches[-1].timestamp > self._wall_clock() + AHEAD_US_MAX:
            raise InvalidRequestError(
                f"the batch at offset {batches[-1].base_offset} was appended in the future by the "
                "clock of this node: correct that clock, or the time of the batch"
            )
        self._append(replica, batches)
        await self._await_commit(replica, replica.stream.leader_epoch, batches[-1].next_offset)
        return batches[-1].next_offset

    def _append(self, replica: Replica, batches: Sequence[RestoredBatch]) -> None:
        """Append all batches at once, with nothing else in between."""
        _check_restoring(replica)  # Restoring may have ended while the bytes were checked.
        end = replica.log.log_end_offset
        if batches[0].base_offset != end:
            raise PreconditionFailedError(
                f"{replica.stream.full_name} ends at offset {end}: a batch at "
                f"{batches[0].base_offset} does not continue it"
            )
        for batch in batches:
            replica.append(batch.encoded, batch.timestamp, must_commit=True)

    async def _await_commit(self, replica: Replica, leader_epoch: int, offset: int) -> None:
        risen = asyncio.Event()
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                while replica.high_watermark < offset:
                    if replica.closed or replica.stream.leader_epoch != leader_epoch:
                        break
                    risen.clear()
                    replica.add_waiter(risen.set)
                    try:
                        async with asyncio.timeout(0.5):
                            await risen.wait()
                    except TimeoutError:
                        replica.remove_waiter(risen.set)
        except TimeoutError:
            pass
        if replica.high_watermark < offset or replica.stream.leader_epoch != leader_epoch:
            raise UnknownOutcomeError(
                f"the records restored to {replica.stream.full_name} are appended, but not "
                "committed yet: see where its log ends, and go on there"
            )


def _open(replica: Replica, data: bytes) -> list[RestoredBatch]:
    """Check the batches. Raises PreconditionFailedError if this node cannot decrypt them, and the
    errors of `open_restored`."""
    encryption = replica.log.encryption
    try:
        plain = decrypt_all(NO_KEYS if encryption is None else encryption.keys, data)
        opened = open_restored(plain)
        config = replica.stream.config
        schema = replica.stream.schema if config.refuses_mismatches else ""
        fitting = Fitting(schema) if schema else None
        if config.max_message_bytes or config.is_keyed_by_subject or fitting is not None:
            for batch in iterate(plain):
                check_record_sizes(batch, config.max_message_bytes)
                if fitting is not None:
                    fitting.check(batch)
                if config.is_keyed_by_subject and batch.keys() != batch.subjects():
                    raise InvalidRequestError(
                        f"the batch at offset {batch.header.base_offset} has records whose key is "
                        "not their subject, as the stream's `key: subject` wants it"
                    )
        return opened
    except CannotDecryptError as error:
        raise PreconditionFailedError(
            f"node {replica.node_id} leads the stream and cannot decrypt the backup: "
            f"{error.message}"
        ) from error


def _check_restoring(replica: Replica) -> None:
    if not replica.stream.config.restoring:
        raise PreconditionFailedError(
            f"{replica.stream.full_name} takes its records from its subject: only a stream that "
            "was created with `restoring` is restored, until that is altered"
        )
