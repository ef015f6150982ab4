"""The member's controller role and its extension: work on the Raft thread besides Raft.

The role is claimed here, by its own entry, so that a new metadata leader can act even if its
server's loop is busy. **safety** A claim counts only in its term, and only once this member has
applied an entry of that term: by then it has applied everything committed in earlier terms
(docs/replication.md, "Controller").

Controller commands enter the leader's own log at once, ahead of the loop's proposals, without a
command id. They may be repeated: they are void under any later claim, and within one claim their
order in the log is the order of the decisions. A repeated fencing cannot come after the unfencing
that followed it, because the unfencing is decided only after the fencing was applied, and a leader
appends in order. **safety** They enter the log in the term of their decision or not at all. If this
member led again in a later term, it could append them after decisions of others before its new
claim makes them void.
"""

from __future__ import annotations

from functools import partial

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.member.extension import RaftThreadExtension
from jetstream_server.metadata.member.proposals import BATCH_HEADER
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import ClaimController, SetCluster
from jetstream_server.metadata.state.registry import Registry

REPEAT_SECONDS = 1.0
"""After this time a command that was not applied is appended again."""


class ControllerContext:
    """An extension's context. `turn` is called in each turn, after Raft's messages have been
    sent."""

    def __init__(
        self,
        node_id: NodeId,
        core: RaftCore,
        links: PeerLinks,
        registry: Registry,
        extension: RaftThreadExtension | None,
        recoveries: tuple[str, ...] = (),
    ) -> None:
        """recoveries: of the group (group_file.py); the registry learns of them before anything
        else."""
        self.node_id = node_id
        self.registry = registry
        self._core = core
        self._links = links
        self._extension = extension
        self._recoveries = recoveries
        self._now = 0.0
        # The last term in which this member led and applied an entry, and the revision applied
        # then: a claim belongs to that term exactly if its revision is higher.
        self._term = 0
        self._before_claim = 0
        # Commands that are being appended, and since when.
        self._commanded: dict[str, float] = {}
        self._has_commanded = False

    @property
    def term(self) -> int:
        return int(self._core.raftCurrentTerm)

    @property
    def voters(self) -> tuple[NodeId, ...]:
        return self._core.voters.ids

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
        """Whether the log does not yet record that the group was recovered. **safety** Until it
        does, nothing is decided: decisions would use epochs and ids that the lost voters may have
        used too."""
        is_recorded = len(self._recoveries) <= len(self.registry.settings.recoveries)
        return not is_recorded or self._core.has_overruled_voters

    @property
    def is_certain(self) -> bool:
        """See RaftThreadExtension; without one, no leases are given that depend on it."""
        return self._extension is None or self._extension.is_certain(self)

    def send(self, peer: NodeId, frame: bytes) -> bool:
        return self._links.send(peer, frame)

    def command(self, command: Command) -> None:
        epoch = self.controller_epoch
        assert epoch is not None, "only the controller commands"
        self._submit(encode_command(command, controller_epoch=epoch))

    def turn(self, now: float) -> bool:
        """Do the work of a turn. Returns whether a command was appended: another turn is due
        then."""
        self._now = now
        self._has_commanded = False
        if self._core.role() == "leader":
            self._lead()
        if self._extension is not None:
            self._extension.turn(self)
        return self._has_commanded

    def received(self, peer: NodeId, frame: bytes) -> None:
        """Pass a frame to the extension. Raises InvalidRequestError if there is none."""
        if self._extension is None:
            raise InvalidRequestError("a frame for an extension, but there is none here")
        self._extension.received(self, peer, frame)

    def _lead(self) -> None:
        """Claim the controller's role; again if a late claim of another member was applied."""
        if self._term != self.term:
            applied = self._core.applied_entries()
            if not applied or applied[-1].term != self.term:
                return
            self._term, self._before_claim = self.term, self.registry.revision
            self._commanded.clear()
        if self.is_recovering:
            if len(self._recoveries) > len(self.registry.settings.recoveries):
                self._submit(encode_command(SetCluster(recoveries=self._recoveries)))
        elif self.controller_epoch is None:
            self._submit(encode_command(ClaimController(node_id=self.node_id)))

    def _submit(self, text: str) -> None:
        for known, at in tuple(self._commanded.items()):
            if self._now - at >= REPEAT_SECONDS:
                del self._commanded[known]
        if text not in self._commanded:
            self._commanded[text] = self._now
            self._has_commanded = True
            data = BATCH_HEADER + b"\n" + text.encode()
            self._core.submit(data, partial(self._failed, text), term=self.term)

    def _failed(self, text: str, _: int) -> None:
        """Note that a command did not enter the log, or will not stay there. Callers that still
        need it append it again."""
        self._commanded.pop(text, None)
