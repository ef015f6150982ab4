"""Metadata groups inside the test's process: real members, threads, sockets and journals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import Proposal, RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.raft import core
from jetstream_server.metadata.raft.library import configuration
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import CreateStream, RegisterNode
from jetstream_server.metadata.state.nodes import Addresses
from tests.chaos.metadata_group import free_addresses

SECRET = b"the cluster's credential"
HOURS = 3600.0
CALM = RaftTimings(election_min=HOURS, election_max=2 * HOURS, leader_fallback=HOURS)
"""Members that stand still lose no leadership; who closes its connections is missed as ever."""


def register(log: RaftMetadataLog) -> RegisterNode:
    """The registration of the log's own run."""
    node_id = log.status().node_id
    raft = log._config.voters.get(node_id, "a:3")
    addresses = Addresses(grpc="a:1", data="a:2", raft=raft, http="a:4")
    return RegisterNode(session=log._session, node_id=node_id, addresses=addresses)


def create(name: str, *replicas: int) -> CreateStream:
    nodes = tuple(map(NodeId, replicas))
    return CreateStream(name=name, subject=f"{name}.>", replicas=nodes, created_at_us=1)


class Members:
    """Starts members; whatever is still running at the end is closed."""

    def __init__(self, directory: Path, count: int) -> None:
        self.voters = {
            NodeId(number): address for number, address in enumerate(free_addresses(count))
        }
        self.raft = RaftTimings()
        self._configurations: list[Any] = []
        """What the library has of them, one for each run."""
        self.running: list[RaftMetadataLog] = []
        self.failures: list[str] = []
        self._directory = directory
        self.runs = 0

    def config(self, node_id: int, **changes: Any) -> MemberConfig:
        config = MemberConfig(
            directory=str(self._directory / str(node_id)),
            node_id=NodeId(node_id),
            voters=self.voters,
            listen=self.voters.get(NodeId(node_id), "127.0.0.1:0"),
            secret=SECRET,
            raft=self.raft,
        )
        return replace(config, **changes)

    def configured(self, timings: RaftTimings) -> Any:
        """Stands for what the library is given."""
        self._configurations.append(configuration(timings))
        return self._configurations[-1]

    def use(self, timings: RaftTimings) -> None:
        """From now on, by those that run and those that will."""
        for name in RaftTimings.__slots__:
            object.__setattr__(self.raft, name, getattr(timings, name))
        for each in self._configurations:
            each.raftMinTimeout, each.raftMaxTimeout = timings.election_min, timings.election_max
            each.leaderFallbackTimeout = timings.leader_fallback
        for log in self.running:  # Who has an hour from its last heartbeat may hear no other.
            if (member_loop := log._member._member_loop) is not None:
                core = member_loop._core
                beyond = core.election_in() - timings.election_max
                core._election_deadline -= max(0.0, beyond)

    async def start(self, node_id: int, **changes: Any) -> RaftMetadataLog:
        self.runs += 1
        log = RaftMetadataLog(
            self.config(node_id, **changes), f"run-{self.runs}", self.failures.append
        )
        self.running.append(log)
        await log.start()
        return log

    async def stop(self, log: RaftMetadataLog) -> None:
        self.running.remove(log)
        await log.close()


@asynccontextmanager
async def members(directory: Path, count: int = 3) -> AsyncIterator[Members]:
    """Nobody is started yet."""
    group = Members(directory, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "configuration", group.configured)
        try:
            yield group
        finally:
            await asyncio.gather(*(log.close() for log in group.running))


@asynccontextmanager
async def running(
    directory: Path, count: int = 3, **changes: Any
) -> AsyncIterator[tuple[Members, list[RaftMetadataLog]]]:
    """All voters, registered, with a leader that all know and that standing still costs nothing."""
    async with members(directory, count) as group:
        logs = [await group.start(node_id, **changes) for node_id in group.voters]
        await asyncio.gather(*(log.wait_for_leader(60) for log in logs))
        for log in logs:
            await persist(log, register(log))
        group.use(CALM)
        await agreed(logs)
        yield group, logs


async def persist(log: RaftMetadataLog, command: Command) -> dict[str, Any]:
    """Propose until there is a leader to propose to."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await log.propose(command)
            except UnavailableError:
                await asyncio.sleep(0.05)


async def propose_under(
    log: RaftMetadataLog, command: Command, controller_epoch: int | None
) -> dict[str, Any]:
    """As a decision of a controller whose claim that was."""
    proposal = Proposal(command, log._submit, controller_epoch=controller_epoch)
    return await proposal.submit()


async def agreed(logs: list[RaftMetadataLog]) -> int:
    """The leader that all of them name."""
    async with asyncio.timeout(60):
        while True:
            leaders = {log.leader for log in logs}
            if len(leaders) == 1 and leaders != {-1}:
                return leaders.pop()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def undisturbed(logs: list[RaftMetadataLog]) -> AsyncIterator[None]:
    """Check that nothing in the block causes an election."""
    term = logs[0].status().term
    yield
    assert {log.status().term for log in logs} == {term}


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
