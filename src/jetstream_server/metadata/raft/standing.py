"""A voter's status, from its journal: whether it may vote, and the runs that wrote the journal.

A *learner* follows and counts for nothing: it never votes, is not a candidate, and adds to no
majority. A node is a learner while its journal may lack something that it has promised
(docs/replication.md, "Learners").

* NEW: the journal has promised nothing yet. The voters of a new group become voters together.
* VOTER: the journal holds every vote and every entry that its node has promised.
* LEARNER: it may lack some. This ends when the group has registered a run that began with this
  journal: a majority without this node has committed that, so the log holds everything older.

runs: the tokens (register_node) of the runs that wrote this journal, from the registered one to the
current one. The log registers each run; a journal that does not know the registered one is an older
copy. confirmed: the log was checked up to this entry.

Nothing here does I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from jetstream_protocol import bounded_json

RUNS_MAX = 64
"""Starts in a row without a registration. The registered run is kept in addition."""
UNKNOWN_RUN = ""
"""Stands for the runs of a journal written before runs were recorded."""


class VoterState(StrEnum):
    NEW = "new"
    VOTER = "voter"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class VoterStatus:
    """See the module."""

    state: VoterState = VoterState.NEW
    runs: tuple[str, ...] = ()
    confirmed: int = 0

    def with_run(self, session: str) -> VoterStatus:
        """The status once a run has begun. Must be durable before anything else is sent."""
        runs = (*self.runs, session)
        if len(runs) > RUNS_MAX:
            runs = (runs[0], *runs[1 - RUNS_MAX :])
        return replace(self, runs=runs)

    def founding(self) -> VoterStatus:
        """The status once all journals of the group are known to be new."""
        assert self.state == VoterState.NEW, "only a new journal founds a group"
        return replace(self, state=VoterState.VOTER)

    def vouched_for(self) -> VoterStatus:
        """The status once an operator lets this journal vote, whatever the log says of its runs."""
        return VoterStatus(VoterState.VOTER, (UNKNOWN_RUN, *self.runs[-1:]), self.confirmed)

    def after_loss(self) -> VoterStatus:
        """The status of a journal that may lack something it has promised.

        **safety** It keeps none of its runs: a newer snapshot beside it may name one of them as
        registered, and that must not restore the vote. Only a run that began with the loss may.
        """
        return VoterStatus(VoterState.LEARNER, (), self.confirmed)

    def with_registration(self, session: str, index: int) -> VoterStatus:
        """The status after the committed entry `index` has registered this session for the node."""
        if index <= self.confirmed:
            return self
        if session in self.runs and session != UNKNOWN_RUN:
            runs = self.runs[self.runs.index(session) :]
            if self.state == VoterState.VOTER and runs == self.runs:
                return self
            return VoterStatus(VoterState.VOTER, runs, index)
        if self.state == VoterState.VOTER and not knows(self.runs, session):
            return VoterStatus(VoterState.LEARNER, self.runs[-1:], index)
        return self

    def encode(self) -> bytes:
        return json.dumps({"state": self.state, "runs": self.runs}).encode()

    @classmethod
    def decode(cls, data: bytes, confirmed: int) -> VoterStatus:
        """Decode. Raises ValueError, KeyError or TypeError for bytes that `encode` did not
        write."""
        values = bounded_json.loads(data)
        return cls(VoterState(values["state"]), tuple(map(str, values["runs"])), confirmed)


def knows(runs: tuple[str, ...], session: str | None) -> bool:
    """Whether a journal with these runs is the registered run's or a later one. session: the
    registered one; None: none is."""
    return session is None or session in runs or UNKNOWN_RUN in runs
