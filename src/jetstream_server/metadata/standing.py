"""What a journal says of its own node: may it vote, and in which runs was it written.

A *learner* follows and counts for nothing: it votes for nobody, does not stand, and what it holds
makes no majority. A node is a learner while its journal may lack something that it had promised
(docs/replication.md, "Learners").

* NEW: of a journal that has promised nothing yet. The voters of a new group become voters together.
* VOTER: the journal holds every vote and every entry that its node has promised.
* LEARNER: it may lack some. Until the group has registered a run that began with this journal:
  a majority without this node has committed that, so everything older is in the log by then.

runs: the sessions (register_node) of the runs that wrote this journal, from the one that the group
has registered on, the current one last. The log registers each run; a journal that does not know
the registered one is an older copy. confirmed: up to this entry the log has been looked at.

Nothing here does I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

RUNS_MAX = 64
"""Starts in a row that never came to register; the registered one is kept beside them."""
UNKNOWN_RUN = ""
"""Stands for the runs of a journal that was written before runs were recorded."""


class State(StrEnum):
    NEW = "new"
    VOTER = "voter"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class Standing:
    """See the module."""

    state: State = State.NEW
    runs: tuple[str, ...] = ()
    confirmed: int = 0

    def begun(self, session: str) -> Standing:
        """A run begins. Durable before anything else is said."""
        runs = (*self.runs, session)
        if len(runs) > RUNS_MAX:
            runs = (runs[0], *runs[1 - RUNS_MAX :])
        return replace(self, runs=runs)

    def founding(self) -> Standing:
        """All voters of a new group are as new as this one."""
        assert self.state == State.NEW, "only a new journal founds a group"
        return replace(self, state=State.VOTER)

    def vouched_for(self) -> Standing:
        """An operator says that this journal is to vote, whatever the log says of its runs."""
        return Standing(State.VOTER, (UNKNOWN_RUN, *self.runs[-1:]), self.confirmed)

    def lost(self) -> Standing:
        """The journal may lack what it had promised."""
        return Standing(State.LEARNER, self.runs[-1:], self.confirmed)

    def registered(self, session: str, index: int) -> Standing:
        """After the entry `index` of the log, committed, this session is the node's registered."""
        if index <= self.confirmed:
            return self
        if session in self.runs and session != UNKNOWN_RUN:
            runs = self.runs[self.runs.index(session) :]
            if self.state == State.VOTER and runs == self.runs:
                return self
            return Standing(State.VOTER, runs, index)
        if self.state == State.VOTER and not knows(self.runs, session):
            return Standing(State.LEARNER, self.runs[-1:], index)
        return self

    def encode(self) -> bytes:
        return json.dumps({"state": self.state, "runs": self.runs}).encode()

    @classmethod
    def decode(cls, data: bytes, confirmed: int) -> Standing:
        """Raises ValueError, KeyError or TypeError for what `encode` did not write."""
        values = json.loads(data)
        return cls(State(values["state"]), tuple(map(str, values["runs"])), confirmed)


def knows(runs: tuple[str, ...], session: str | None) -> bool:
    """Whether a journal of these runs is of the registered one or a later; None: there is none."""
    return session is None or session in runs or UNKNOWN_RUN in runs
