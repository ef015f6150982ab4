"""Reports a log that may lack acknowledged records, until the metadata knows it."""

from __future__ import annotations

from typing import Protocol

from jetstream_protocol.errors import StorageError
from jetstream_server.log.commit_log import CommitLog


class _Replica(Protocol):
    log: CommitLog

    @property
    def needs_rebuild(self) -> bool: ...


def incompleteness_recorded(replica: _Replica) -> None:
    """Clear the mark of a log that may lack records, because the metadata knows it. **safety** A
    log that may lack its beginning and has to be fetched anew keeps its mark: the next run must not
    take the rest for a complete log.
    """
    if replica.needs_rebuild and replica.log.is_start_unknown:
        return
    try:
        replica.log.incompleteness_recorded()
    except StorageError:
        pass  # The next start reports it again; a failed log has reported itself.
