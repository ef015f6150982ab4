"""Whether a call is tried again after an error, where, and how soon. recovery.py says what follows
once the calls have given up."""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.errors import JetstreamError, NotLeaderError, NotReplicaError

_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_REDIRECTS_MAX = 8
"""In a row and without waiting: two nodes may each think the other leads."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after a failed attempt: ask `address` (None: the next server) after `wait`."""

    address: str | None
    wait: float


def backoff(first: float, longest: float, failures: int, chance: float) -> float:
    """How long to wait after so many failures in a row: twice as long after each, up to `longest`.
    chance: in [0, 1), so that what failed together does not come again together."""
    return min(longest, first * 2.0 ** min(failures - 1, 64)) * (0.5 + chance / 2)


def next_step(error: JetstreamError, attempt: int, chance: float) -> Step | None:
    """None: give up, the error is final. `attempt` counts from 1; `chance` is in [0, 1)."""
    if not error.retriable:
        return None
    wait = backoff(_BACKOFF_FIRST, _BACKOFF_MAX, attempt, chance)
    if isinstance(error, NotLeaderError | NotReplicaError) and error.redirect is not None:
        at_once = attempt <= _REDIRECTS_MAX
        return Step(error.redirect.grpc or None, 0.0 if at_once else wait)
    return Step(None, wait)
