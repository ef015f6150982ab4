"""Decides which votes and acknowledgements count in the metadata group, this node's own included.

Every member sends its status (standing.py) first on each link, and again when it changes. A voter
counts while it reports that it is one, and while its journal knows every run of its node that the
log names: otherwise that journal is an older copy. Every entry of the log matters here, because an
entry that is not known to be committed may be.

**Founding.** All journals of a new group are empty, but so is one that replaces a lost one. So a
new journal becomes a voter's only when *every* voter has reported that its own has promised
nothing. It votes for the first time only when every voter has reported that it is a voter. So a
node that loses its journal later finds a voter that is not new.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jetstream_protocol import bounded_json
from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus, knows

_MENTIONED = b'"register_node"'


@dataclass(frozen=True, slots=True)
class VoterReport:
    """A member's report. is_pristine: its journal has promised nothing yet."""

    is_voter: bool
    is_pristine: bool
    runs: tuple[str, ...]


class Registration(NamedTuple):
    """A run in an entry not applied yet. Its command is refused if `replaces` is wrong. address: of
    its Raft port; "": unknown."""

    at: int
    node_id: int
    session: str
    replaces: str | None
    address: str = ""


class Registrations:
    """The runs registered by entries not applied yet, in the log's order."""

    def __init__(self) -> None:
        self._ahead: list[Registration] = []

    def added(self, entry: Entry) -> None:
        if _MENTIONED in entry.data:
            self._ahead.extend(_registrations(entry))

    def truncated(self, index: int) -> None:
        """Note that the entries from `index` on were removed."""
        self._ahead = [known for known in self._ahead if known.at < index]

    def applied(self, index: int) -> None:
        if self._ahead and self._ahead[0].at <= index:
            self._ahead = [known for known in self._ahead if known.at > index]

    def addresses(self) -> dict[NodeId, str]:
        """Where the nodes of these runs may be. After a restart nothing is applied before a leader
        is found."""
        return {NodeId(known.node_id): known.address for known in self._ahead if known.address}

    def session(self, node_id: NodeId, session: str | None) -> str | None:
        """The node's session at the end of the log. session: the one in the applied state."""
        for known in self._ahead:
            if known.node_id == node_id and known.replaces in (None, session or ""):
                session = known.session
        return session


class Voting:
    """See the module. `others`: the voters except this node, as of the set in force."""

    def __init__(self, others: Iterable[NodeId]) -> None:
        self.registrations = Registrations()
        self._others = tuple(others)
        self._reports: dict[NodeId, VoterReport] = {}
        # Voters that have reported their status once.
        self._founders: set[NodeId] = set()
        self._has_founded = False

    def use(self, others: Iterable[NodeId]) -> None:
        """Note that another set of voters is in force."""
        self._others = tuple(others)

    def reported(self, node_id: NodeId, report: VoterReport) -> None:
        self._reports[node_id] = report  # Who does not vote may become a voter.
        if node_id in self._others and report.is_voter:
            self._founders.add(node_id)
            self._has_founded = self._has_founded or not report.is_pristine

    def heard_raft_from(self, node_id: NodeId) -> None:
        """Note a Raft message. A voter that is a candidate or leads knows that everybody is a
        voter."""
        self._has_founded = self._has_founded or node_id in self._founders

    def may_found(self, own: VoterStatus, *, is_pristine: bool) -> bool:
        """Whether this node's new journal may become a voter's."""
        return (
            own.state == VoterState.NEW
            and is_pristine
            and all(
                node in self._reports and self._reports[node].is_pristine for node in self._others
            )
        )

    def may_vote(self, own: VoterStatus, *, is_pristine: bool) -> bool:
        """Whether this node votes and may be a candidate."""
        if own.state != VoterState.VOTER:
            return False
        everybody = self._founders.issuperset(self._others)
        return not is_pristine or self._has_founded or everybody

    def counts(self, node_id: NodeId, applied_session: str | None) -> bool:
        """Whether another node's votes and acknowledgements count.

        **safety** By the set in force: a vote at the candidate, an acknowledgement at the leader.
        """
        return node_id in self._others and self.is_current(node_id, applied_session)

    def is_current(self, node_id: NodeId, applied_session: str | None) -> bool:
        """Whether another node, a voter or not, holds all that it has promised."""
        report = self._reports.get(node_id)
        if report is None or not report.is_voter:
            return False
        return knows(report.runs, self.registrations.session(node_id, applied_session))

    @property
    def has_group(self) -> bool:
        """Whether another member has promised something. If so, a new journal is not part of a new
        group."""
        return any(report.is_voter and not report.is_pristine for report in self._reports.values())

    def is_known(self, node_id: NodeId) -> bool:
        """Whether that node has sent its status since this process began."""
        return node_id in self._reports


def _registrations(entry: Entry) -> Iterable[Registration]:
    for line in entry.data.split(b"\n")[1:]:
        if _MENTIONED not in line:
            continue
        try:
            values = bounded_json.loads(line)
            if values.get("op") == "register_node":
                node_id, session = int(values["node_id"]), str(values["session"])
                address = str(values.get("addresses", {}).get("raft", ""))
                replaces = values.get("replaces")
                yield Registration(entry.index, node_id, session, replaces, address)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # The registry will refuse it as well.
