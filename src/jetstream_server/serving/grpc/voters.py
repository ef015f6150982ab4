"""Changes the voters of the metadata group, at whichever node is asked: the metadata leader acts.

A change is one voter more or less. It is asked for by the whole wanted set, and asked for again
until it is agreed on: the leader may have to wait, or hands over first because it removes itself.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.raft.voter_change import Verdict
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.serving.grpc.peers import Peers

CHANGE_SECONDS = 8.0
"""How long a leader is asked again at most; less than a call between nodes may take."""
CHANGE_SHARE = 0.8
"""Of the time that the caller waits: it hears then what the change waits for, and may ask again."""
ASK_SECONDS = 0.1
VOTERS = "the set of voters"
NOT_YET = "the voters are not changed yet: "


class VotingMetadata(Protocol):
    """The metadata log as this module uses it."""

    @property
    def registry(self) -> Registry: ...

    @property
    def is_alone(self) -> bool: ...

    @property
    def leader(self) -> NodeId: ...

    def status(self) -> MetadataStatus: ...

    async def note_change(self, what: str, made_at: int) -> int: ...

    async def change_voters(self, wanted: tuple[NodeId, ...]) -> tuple[Verdict, str]: ...


class GroupVoters:
    """Part of the `Cluster` service. forward: another node may be asked for the answer."""

    def __init__(self, metadata: VotingMetadata, peers: Peers, node_id: int) -> None:
        self._metadata = metadata
        self._peers = peers
        self._node_id = NodeId(node_id)
        self._noted_at = 0

    async def list(self, *, forward: bool) -> pb.ListVotersResponse:
        """As the metadata leader sees it; without one, as this node does."""
        leader = self._metadata.leader
        if forward and leader not in (NO_NODE, self._node_id):
            listed: pb.ListVotersResponse = await self._peers.ask(leader, pb.ListVotersRequest())
            return listed
        status = self._metadata.status()
        return pb.ListVotersResponse(
            voters=[
                pb.Voter(
                    node_id=voter,
                    address=address,
                    is_leader=voter == status.leader,
                    is_linked=voter == self._node_id or voter in status.connected,
                )
                for voter, address in status.voter_addresses
            ],
            is_committed=status.are_voters_committed,
            answering_node=self._node_id,
        )

    def has(self, node_id: NodeId) -> bool:
        """Whether this node votes, as the node here knows."""
        return node_id in self._metadata.status().voters

    def check_is_none(self, node_id: NodeId) -> None:
        """Raise PreconditionFailedError for a voter: it may not just be forgotten."""
        if self.has(node_id):
            raise PreconditionFailedError(
                f"node {node_id} votes on the metadata: first take its vote, with "
                f"`jetstream voters remove {node_id}` or `jetstream voters replace {node_id} NODE`"
            )

    async def change(
        self,
        request: pb.ChangeVotersRequest,
        *,
        forward: bool,
        seconds: float | None,
        made_at: int = 0,
    ) -> pb.ListVotersResponse:
        """Return once the wanted voters are agreed on. seconds: how long the caller waits; None:
        for ever. made_at: the revision at which the caller sent it; 0: unknown. Raises
        InvalidRequestError, PreconditionFailedError, and UnavailableError with what the leader
        waits for, or for a call that was made before a later one."""
        wanted = tuple(sorted({NodeId(voter) for voter in request.voters}))
        self._check(wanted)
        patience = (
            CHANGE_SECONDS if seconds is None else min(CHANGE_SECONDS, seconds * CHANGE_SHARE)
        )
        waits_for = "there is no metadata leader"
        try:
            async with asyncio.timeout(patience):
                if forward:
                    request.noted_at = await self._metadata.note_change(VOTERS, made_at)
                while True:
                    leader = self._metadata.leader
                    if leader == self._node_id:
                        self._check_is_last(request.noted_at)
                        waits_for = await self._change_here(wanted)
                        if not waits_for:
                            return await self.list(forward=False)
                    elif not forward:
                        raise UnavailableError(f"node {self._node_id} does not lead; try again")
                    elif leader != NO_NODE:
                        try:
                            changed: pb.ListVotersResponse
                            changed = await self._peers.ask(leader, request, patience)
                            return changed
                        except UnavailableError as error:
                            waits_for = error.message.removeprefix(NOT_YET)
                    await asyncio.sleep(ASK_SECONDS)
        except TimeoutError:
            raise UnavailableError(f"{NOT_YET}{waits_for}") from None

    async def _change_here(self, wanted: tuple[NodeId, ...]) -> str:
        """Ask this node, the leader, once. Returns what it waits for; "" when it is done."""
        status = self._metadata.status()
        if status.voters == wanted and status.role == "leader":
            return "" if status.are_voters_committed else "a majority has not agreed yet"
        verdict, reason = await self._metadata.change_voters(wanted)
        if verdict == Verdict.REFUSE:
            raise InvalidRequestError(f"the voters cannot become {_names(wanted)}: {reason}")
        return reason or "a majority has not agreed yet"

    def _check_is_last(self, noted_at: int) -> None:
        """**safety** Raise UnavailableError for a call that was noted before another one: it would
        undo that."""
        if noted_at < self._noted_at:
            raise UnavailableError(f"{VOTERS} was changed after this call was sent; try again")
        self._noted_at = noted_at

    def _check(self, wanted: tuple[NodeId, ...]) -> None:
        known = self._metadata.registry.nodes
        unknown = [voter for voter in wanted if voter not in known]
        voting = self._metadata.status().voters
        if any(voter not in voting for voter in unknown):
            hint = "start it first"
            if self._metadata.is_alone:
                hint = (
                    f"node {self._node_id} was begun alone and listens for no other: write "
                    f"`voters: [{self._node_id}]` into its file and restart it, then start the "
                    "other one with `join`"
                )
            raise PreconditionFailedError(
                f"node {_names([each for each in unknown if each not in voting])} is no node of "
                f"this cluster: {hint}"
            )


def _names(voters: tuple[NodeId, ...] | list[NodeId]) -> str:
    return ", ".join(map(str, voters)) or "nobody"
