"""How long Raft waits: for heartbeats, before an election, before a leader gives up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftTimings:
    """In seconds. A follower that hears nothing calls an election after a random time between
    `election_min` and `election_max`, or sooner if its connection to the leader has broken
    (`gone_min` to `gone_max`), as after a kill. A leader that hears no majority for
    `leader_fallback` steps down. Measured failover: docs/replication.md, "Metadata group"."""

    heartbeat: float = 0.1
    election_min: float = 0.5
    election_max: float = 1.0
    gone_min: float = 0.1
    gone_max: float = 0.4
    leader_fallback: float = 0.8
    tick: float = 0.05
