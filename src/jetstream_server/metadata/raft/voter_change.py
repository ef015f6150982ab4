"""Decides whether a leader may change the voters now: one at a time, through the group's own log.

The rules (docs/adr/0030; each has a mutant in tests/unit/metadata). A leader appends a change

1. **safety** only once it has committed an entry of its own term. Otherwise two leaders could have
   two sets without a common majority: one appends a change and is cut off, the next one does not
   know of it and appends another.
2. **safety** only while no earlier change is uncommitted, and only to a set that differs from the
   one in force in one voter. So majorities of successive sets share a voter.
3. that adds a voter, only if that node's journal is current, its run is registered, and it has
   caught up (catching_up.py). Otherwise commits would wait for it.
4. only if the voters of the new set that it hears are a majority of it. It never removes the last.
5. that removes the leader itself, never: it hands over first, and its successor appends the change.
   So no member leads without a vote, counting majorities of which it is no part.
6. **safety** only while it is certain to be the only leader, by voters of the set in force, and
   once those that elected it have reported how long earlier leaders were certain. So that stays
   known to the voters that a later leader asks (replication/sessions/quorum.py).

Votes are counted by the set in force at the candidate, acknowledgements by that at the leader
(`Voting.counts`). Whoever is asked for a vote looks neither whether the candidate is in its own set
nor whether it is itself: either may not have the newest.

Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.voters import VOTERS_MAX, Voters


class Verdict(Enum):
    APPEND = auto()
    HAND_OVER = auto()
    WAIT = auto()
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Situation:
    """What the leader knows. heard: the voters that count and that it hears, itself included.
    caught_up: nodes that may be added."""

    leader: NodeId
    in_force: Voters
    is_committed: bool
    has_committed_own: bool
    is_certain: bool
    heard: frozenset[NodeId]
    caught_up: frozenset[NodeId]


def judge(situation: Situation, wanted: Voters) -> tuple[Verdict, str]:
    """What the leader does with the wish for that set, and why, for people."""
    before, changed = situation.in_force, situation.in_force.changed_to(wanted)
    if not changed:
        return Verdict.REFUSE, "these nodes are the voters already"
    if len(changed) > 1 or not wanted.ids or len(wanted.ids) > VOTERS_MAX:
        return Verdict.REFUSE, "voters are added and removed one at a time, and one remains"
    (node_id,) = changed
    if not situation.has_committed_own:
        return Verdict.WAIT, "the metadata leader has just been elected"
    if not situation.is_committed:
        return Verdict.WAIT, "the last change of the voters is not committed yet"
    if node_id in before:
        if node_id == situation.leader:
            return Verdict.HAND_OVER, f"node {node_id} leads, and hands over first"
    elif node_id not in situation.caught_up:
        return Verdict.WAIT, f"node {node_id} has not caught up with the metadata leader"
    heard = situation.heard | situation.caught_up
    there = [voter for voter in wanted.ids if voter in heard]
    if 2 * len(there) <= len(wanted.ids):
        missing = ", ".join(str(voter) for voter in wanted.ids if voter not in heard)
        return (
            Verdict.WAIT,
            f"of the voters {', '.join(map(str, wanted.ids))} the metadata leader does not hear "
            f"{missing}: no majority would be left",
        )
    if not situation.is_certain:
        return Verdict.WAIT, "the metadata leader waits for a majority to confirm it"
    return Verdict.APPEND, ""
