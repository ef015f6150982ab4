"""One command under one id, however often it is proposed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    UnknownOutcomeError,
)
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.client.raft_metadata_log import Proposal
from jetstream_server.metadata.state.commands import CreateStream, DeleteStream
from jetstream_server.metadata.state.results import SPAN

from .cluster import Cluster


class Group:
    """A registry that is proposed to, with answers that get lost."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.incarnation = self.cluster.register(0)
        self.texts: list[str] = []
        self.lost: list[bool] = []
        self.sequence = 0

    async def submit(self, proposal: Proposal, patience: float) -> dict[str, Any]:
        if not proposal.text:
            proposal.number(self.incarnation, self.sequence)
            self.sequence += 1
        self.texts.append(proposal.text)
        registry = self.cluster.registry
        result = registry.apply(proposal.text, registry.revision + 1)
        if self.lost and self.lost.pop(0):
            raise UnknownOutcomeError("the answer was lost")
        return result

    def create(self, name: str = "orders") -> Proposal:
        command = CreateStream(
            name=name, subject=f"{name}.>", replicas=(NodeId(0),), created_at_us=1
        )
        return Proposal(command, self.submit)


def test_proposed_again_it_is_the_same_command_and_has_the_first_result() -> None:
    group = Group()
    group.lost = [True]
    proposal = group.create()

    async def scenario() -> None:
        with pytest.raises(UnknownOutcomeError):
            await proposal.submit()
        result = await proposal.submit()
        assert result["created"]
        assert len(set(group.texts)) == 1
        assert len(group.cluster.registry.streams) == 1
        assert not proposal.is_void

    asyncio.run(scenario())


def test_a_refusal_is_the_first_ones_too() -> None:
    group = Group()
    group.lost = [True]
    command = CreateStream(name="", subject="", replicas=(), created_at_us=1)
    proposal = Proposal(command, group.submit)

    async def scenario() -> None:
        for error in (UnknownOutcomeError, InvalidRequestError, InvalidRequestError):
            with pytest.raises(error):
                await proposal.submit()

    asyncio.run(scenario())


def test_a_command_whose_id_the_group_has_passed_by_is_void_for_ever() -> None:
    group = Group()

    async def never(proposal: Proposal, _: float) -> str:
        proposal.number(group.incarnation, 0)
        raise UnknownOutcomeError("it was never sent")

    async def scenario() -> None:
        submit = never
        proposal = Proposal(
            DeleteStream(stream_id=StreamId(1)), lambda *arguments: submit(*arguments)
        )
        with pytest.raises(UnknownOutcomeError):
            await proposal.submit()
        assert not proposal.is_void
        group.sequence = 1
        for number in range(SPAN):
            await group.create(f"s{number}").submit()
        submit = group.submit
        with pytest.raises(UnknownOutcomeError):
            await proposal.submit()
        assert proposal.is_void

    asyncio.run(scenario())


def test_a_command_has_one_id() -> None:
    proposal = Group().create()
    proposal.number(1, 2)
    assert json.loads(proposal.text)["id"] == [1, 2]
    with pytest.raises(AssertionError):
        proposal.number(1, 3)
