"""The member's controller role and its passenger: what runs on the Raft thread beside Raft.

The role is claimed here, by an entry of its own, so that a new metadata leader acts however busy
its server's loop is. **safety** A claim counts in the term in which it was made, and only once
this member has applied an entry of that term: by then it has applied everything that was committed
in earlier ones (docs/replication.md, "Controller").

Controller commands go into the leader's own log at once, past the proposals of the loop, and carry
no command id. They may be repeated, because they are void under any later claim, and within one
claim their order in the log is the order in which this member decided on them: a repetition of a
fencing can not be behind the unfencing that followed it, for that is decided only after the
fencing has applied, and a leader appends to its own log in order. **safety** And they enter the log
in the very term in which they were decided, or not at all: led again in a later one, this member
would else append them behind what others have decided meanwhile, before its new claim voids them.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.passenger import Passenger
from jetstream_server.metadata.proposals import BATCH_HEADER
from jetstream_server.metadata.raft_core import RaftCore
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.transport import PeerLinks

REPEAT_SECONDS = 1.0
"""After which a command that has not applied is put into the log again."""


class Carriage:
    """A passenger's Carrier. `turn` is called each turn, after Raft's messages have been sent."""

    def __init__(
        self,
        node_id: NodeId,
        voters: tuple[NodeId, ...],
        core: RaftCore,
        links: PeerLinks,
        registry: Registry,
        passenger: Passenger | None,
        recoveries: tuple[str, ...] = (),
    ) -> None:
        """recoveries: of the group (group_file.py); the registry is told before anything else."""
        self.node_id = node_id
        self.voters = voters
        self.registry = registry
        self._core = core
        self._links = links
        self._passenger = passenger
        self._recoveries = recoveries
        self._now = 0.0
        # The term this member last led as far as to have applied an entry of it, and the revision
        # it had applied then: a claim is of that term exactly if its own revision is higher.
        self._term = 0
        self._before_claim = 0
        # Commands on their way into the log, and since when.
        self._commanded: dict[str, float] = {}
        self._has_commanded = False

    @property
    def term(self) -> int:
        return int(self._core.raftCurrentTerm)

    @property
    def votes(self) -> bool:
        return self._core.votes()

    @property
    def leader(self) -> NodeId:
        return self._core.leader_id()

    @property
    def controller_epoch(self) -> int | None:
        claim = self.registry.controller
        if self._core.role() != "leader" or self._term != self.term:
            return None
        if claim.node_id != self.node_id or claim.epoch <= self._before_claim:
            return None
        return claim.epoch

    @property
    def is_recovering(self) -> bool:
        """Whether the log does not say yet that the group was recovered. **safety** Until then
        nothing is decided: it would be under epochs and ids that the lost voters may know, too."""
        return len(self._recoveries) > len(self.registry.settings.recoveries)

    def send(self, peer: NodeId, frame: bytes) -> bool:
        return self._links.send(peer, frame)

    def command(self, command: dict[str, Any]) -> None:
        epoch = self.controller_epoch
        assert epoch is not None, "only the controller commands"
        self._submit({**command, "controller_epoch": epoch})

    def turn(self, now: float) -> bool:
        """Returns whether a command was put into the log, so that another turn is due."""
        self._now = now
        self._has_commanded = False
        if self._core.role() == "leader":
            self._lead()
        if self._passenger is not None:
            self._passenger.turn(self)
        return self._has_commanded

    def received(self, peer: NodeId, frame: bytes) -> None:
        """Raises InvalidRequestError for what no passenger understands."""
        if self._passenger is None:
            raise InvalidRequestError("a frame for a passenger, but none rides here")
        self._passenger.received(self, peer, frame)

    def _lead(self) -> None:
        """Claim the controller's role, again should someone else's late claim have applied."""
        if self._term != self.term:
            applied = self._core.applied_entries()
            if not applied or applied[-1].term != self.term:
                return
            self._term, self._before_claim = self.term, self.registry.revision
            self._commanded.clear()
        if self.is_recovering:
            self._submit({"op": "set_cluster", "recoveries": self._recoveries})
        elif self.controller_epoch is None:
            self._submit({"op": "claim_controller", "node_id": self.node_id})

    def _submit(self, command: dict[str, Any]) -> None:
        text = json.dumps(command, separators=(",", ":"))
        for known, at in tuple(self._commanded.items()):
            if self._now - at >= REPEAT_SECONDS:
                del self._commanded[known]
        if text not in self._commanded:
            self._commanded[text] = self._now
            self._has_commanded = True
            data = BATCH_HEADER + b"\n" + text.encode()
            self._core.submit(data, partial(self._failed, text), term=self.term)

    def _failed(self, text: str, _: int) -> None:
        """It did not get into the log, or will not stay there: whoever wants it asks again."""
        self._commanded.pop(text, None)
