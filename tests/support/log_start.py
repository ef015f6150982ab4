"""What retention does to a log, in one step."""

from __future__ import annotations

from jetstream_server.log.commit_log import CommitLog


def advance_log_start(log: CommitLog, offset: int) -> None:
    """Records below `offset` are gone for readers; segments wholly below it are removed."""
    if offset > log.log_start_offset:
        if offset > log.flushed_offset:
            log.flush()  # A segment that is not flushed is not removed yet.
        log.begin_advance(offset)
        log.finish_advance()


def delete_segments_before(log: CommitLog, offset: int) -> int:
    """Remove sealed segments wholly below `offset`; returns the new log start."""
    bases = [each.base_offset for each in log.damage.segments() if each.base_offset <= offset]
    if len(bases) > 1:
        advance_log_start(log, bases[-1])
    return log.log_start_offset
