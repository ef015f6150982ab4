"""The voters of the metadata group: one set of them, and the sets that this node's log has named.

A change of the voters is an entry of the log with the whole new set (docs/adr/0030). A set is in
force on a node from when the entry is appended there, committed or not, and the set before it again
if the entry is removed. So the set in force is that of the last such entry in the log; without one,
that of the snapshot; without one, that of the folder's `group.json`.

**safety** A set from before a recovery without lost voters (unsafe_recovery.py) does not count for
a node that has taken part in it: the log of the lost group would outvote the recovery.

Nothing here does I/O.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jetstream_protocol import bounded_json
from jetstream_protocol.types import NodeId

VOTERS_MAX = 64
ADDRESS_CHARACTERS_MAX = 300
TERMS_PER_RECOVERY = 1_000_000_000
"""More than the lost voters can have entered: a term a second for thirty years."""


@dataclass(frozen=True, slots=True)
class Voters:
    """A set of voters. addresses: by id, host:port of the Raft port ("": unknown). recoveries: how
    many recoveries without lost voters the group had gone through when it agreed on the set."""

    addresses: tuple[tuple[NodeId, str], ...]
    recoveries: int = 0

    @classmethod
    def of(cls, addresses: Mapping[NodeId, str], recoveries: int = 0) -> Voters:
        return cls(tuple(sorted(addresses.items())), recoveries)

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id, _ in self.addresses)

    @property
    def term_min(self) -> int:
        """The terms in which these voters elect leaders are higher. **safety** An entry is known by
        its number and term, so no term may be one in which voters that a recovery has lost have
        elected another leader. Those that are left may not have heard of it."""
        return self.recoveries * TERMS_PER_RECOVERY

    def __contains__(self, node_id: NodeId) -> bool:
        return any(voter == node_id for voter, _ in self.addresses)

    def changed_to(self, wanted: Voters) -> tuple[NodeId, ...]:
        """The voters that are in one of the two sets only."""
        return tuple(sorted(set(self.ids) ^ set(wanted.ids)))

    def may_become(self, wanted: Voters) -> bool:
        """Whether one entry may lead to that set. **safety** Majorities of two sets that differ in
        one voter share a voter. A recovery has given up the others."""
        return len(self.changed_to(wanted)) == 1 or wanted.recoveries > self.recoveries

    def encode(self, changed: Iterable[NodeId] = ()) -> bytes:
        """The set as JSON, in an entry or a snapshot. changed: for people who read the file."""
        values = {
            "voters": {str(node_id): address for node_id, address in self.addresses},
            "changed": list(changed),
            "recoveries": self.recoveries,
        }
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, data: bytes) -> Voters:
        """Decode. Raises ValueError for bytes that are no set of voters."""
        try:
            values = bounded_json.loads(data)
            addresses = {NodeId(int(key)): address for key, address in values["voters"].items()}
            recoveries = int(values.get("recoveries", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a set of voters: {error!r}") from error
        if not 0 < len(addresses) <= VOTERS_MAX or min(addresses) < 0 or recoveries < 0:
            raise ValueError("not a set of voters: too few, too many, or no node ids")
        if not all(
            isinstance(address, str) and len(address) <= ADDRESS_CHARACTERS_MAX
            for address in addresses.values()
        ):
            raise ValueError("not a set of voters: an address is none")
        return cls.of(addresses, recoveries)


class VoterLog:
    """The sets that snapshot and log have named; see the module. initial: that of `group.json`."""

    def __init__(self, initial: Voters) -> None:
        self._initial = initial
        # (index, set), by index; that of the snapshot at the snapshot's.
        self._named: list[tuple[int, Voters]] = []

    def restart(self, snapshot_index: int, snapshot_voters: Voters | None) -> None:
        """Begin anew with a snapshot: entries up to it are in it, entries after it remain."""
        named = [(index, voters) for index, voters in self._named if index > snapshot_index]
        if snapshot_voters is not None:
            named.insert(0, (snapshot_index, snapshot_voters))
        self._named = named

    def added(self, index: int, voters: Voters) -> None:
        self._named.append((index, voters))

    def truncated(self, index: int) -> None:
        """Note that the entries from `index` on were removed."""
        while self._named and self._named[-1][0] >= index:
            self._named.pop()

    @property
    def in_force(self) -> Voters:
        return self._valid_at(len(self._named)) or self._initial

    def named_at(self, index: int) -> Voters | None:
        """The set that log and snapshot name as of that entry; None: they name none."""
        return self._valid_at(bisect_right(self._named, index, key=lambda named: named[0]))

    def at(self, index: int) -> Voters:
        """The set as of that entry."""
        return self.named_at(index) or self._initial

    @property
    def is_overruled(self) -> bool:
        """Whether the log names only voters of before a recovery. They would come into force on
        nodes that begin anew."""
        return bool(self._named) and self._named[-1][1].recoveries < self._initial.recoveries

    @property
    def last_change(self) -> int:
        """The index of the last entry that named a set; 0: there is none."""
        return self._named[-1][0] if self._named else 0

    def _valid_at(self, count: int) -> Voters | None:
        voters = self._named[count - 1][1] if count else None
        if voters is None or voters.recoveries < self._initial.recoveries:
            return None
        return voters
