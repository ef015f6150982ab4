"""Reports the logs that have failed, and notes them beyond this run: a later fsync of the same log
would report success."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import StreamId
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.replication.run_record import RunRecordFile

if TYPE_CHECKING:
    from jetstream_server.replication.replica import Replica

logger = structlog.get_logger("jetstream.replicas")


class Failures:
    """The failures of one node's logs. `add` may be called on any thread, the rest on the loop."""

    def __init__(
        self,
        runs: RunRecordFile,
        monotonic_clock: MonotonicClock,
        report_one: Callable[[Replica], None],
        call_soon_threadsafe: Callable[[Callable[[], None]], object],
    ) -> None:
        """report_one: called once on the loop for each failure of an open replica's log.
        call_soon_threadsafe: of the loop."""
        self._runs = runs
        self._report_one = report_one
        self._call_soon_threadsafe = call_soon_threadsafe
        self._throttle = LogThrottle(lambda: monotonic_clock() / 1e6)
        self._not_reported: dict[Replica, None] = {}
        self._not_noted: dict[StreamId, None] = {}  # missing in the run record

    def add(self, replica: Replica) -> None:
        """Take in that a log has failed."""
        self._not_reported[replica] = None
        try:
            self._call_soon_threadsafe(self.report)
        except RuntimeError:
            pass  # The loop is closed: nothing needs to know.

    def report(self) -> None:
        """Report what is not reported yet."""
        while self._not_reported:
            replica = self._not_reported.popitem()[0]
            if not replica.closed and replica.has_failed:
                self._report_one(replica)

    def note(self, stream_id: StreamId) -> None:
        """Note in the run record that the log has failed, now or by `note_all`."""
        self._not_noted[stream_id] = None
        self.note_all()

    def note_all(self) -> bool:
        """Note the failed logs that the run record lacks. Returns whether all are noted; if not,
        try again."""
        for stream_id in list(self._not_noted):
            try:
                self._runs.suspect(stream_id)
            except StorageError as error:
                if self._throttle.is_due("suspect_not_noted", error.message):
                    logger.error("suspect_not_noted", stream_id=stream_id, reason=error.message)
                return False
            del self._not_noted[stream_id]
        return True

    def note_the_last(self) -> bool:
        """As `note_all`, when the replicas are closed. **safety** Without the note a log that
        failed, if only now, would count as good."""
        self._not_noted.update((replica.stream.id, None) for replica in self._not_reported)
        return self.note_all()

    def trust(self, stream_id: StreamId) -> None:
        """Trust a log again: it was emptied, and is fetched anew."""
        self._not_noted.pop(stream_id, None)
        if stream_id in self._runs.record.suspects:
            try:
                self._runs.rebuilt(stream_id)
            except StorageError as error:
                # If it cannot be recorded, the next start fetches the log anew once more.
                logger.warning("rebuild_not_noted", stream_id=stream_id, reason=error.message)
