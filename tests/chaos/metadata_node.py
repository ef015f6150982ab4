"""One member of a metadata group as a process, to be killed: proposes by itself, obeys its stdin.

    python -m tests.chaos.metadata_node '{"directory": …, "node_id": 0, "voters": {"0": …}, …}'

Lines on stdout are JSON, each with `at`, the monotonic time:

    {"event": "started"}                        taking part
    {"event": "leader", "leader": 1, "term": 3} what it believes, whenever that changes
    {"event": "ack", "name": …, "id": …}        it created a stream: this must never be lost
    {"event": "unknown" | "refused", "name": …, "reason": …}
    {"event": "registry", "revision": …, "streams": {name: id, …}}   the answer to "registry"

Lines on stdin: `propose N` keeps N creations under way (0: none), `registry`, `stop`.
"""

from __future__ import annotations

import asyncio
import secrets

from jetstream_protocol.errors import JetstreamError, UnavailableError, UnknownOutcomeError
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.state.commands import CreateStream, RegisterNode
from jetstream_server.metadata.state.nodes import Addresses
from tests.support.member_process import configured, orders, register, say

PAUSE_SECONDS = 0.01
"""Between one proposer's commands: load enough to be caught in the middle, not a benchmark."""


class Node:
    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.session = secrets.token_hex(4)
        self.log = RaftMetadataLog(config, self.session)
        self.created = 0
        self.proposers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self.log.watch_leadership(self.leadership)
        await self.log.start()
        say("started")
        registering = asyncio.create_task(self.register())
        async for words in orders():
            await self.obey(words)
        registering.cancel()
        self.propose(0)
        await self.log.close()

    def leadership(self, status: MetadataStatus) -> None:
        say("leader", leader=status.leader, term=status.term)

    async def register(self) -> None:
        port = self.config.voters[self.config.node_id]  # As others reach it.
        command = RegisterNode(
            session=self.session,
            node_id=self.config.node_id,
            addresses=Addresses(grpc=port, data=port, raft=port, http=port),
        )
        await register(self.log, command)

    async def obey(self, words: list[str]) -> None:
        if words[0] == "propose":
            self.propose(int(words[1]))
        elif words[0] == "registry":
            await self.show_registry()

    async def show_registry(self) -> None:
        while True:
            try:
                await self.log.barrier()
                break
            except (UnavailableError, UnknownOutcomeError):
                await asyncio.sleep(0.05)
        registry = self.log.registry
        streams = {stream.name: stream.id for stream in registry.streams.values()}
        say("registry", revision=registry.revision, streams=streams)

    def propose(self, count: int) -> None:
        for task in self.proposers:
            task.cancel()
        self.proposers = [asyncio.create_task(self.create_forever()) for _ in range(count)]

    async def create_forever(self) -> None:
        while True:
            if self.log.incarnation is not None:
                await self.create()
            await asyncio.sleep(PAUSE_SECONDS)

    async def create(self) -> None:
        self.created += 1
        name = f"n{self.config.node_id}-{self.session}-{self.created}"
        command = CreateStream(
            name=name, subject=f"chaos.{name}", replicas=(self.config.node_id,), created_at_us=0
        )
        try:
            result = await self.log.propose(command)
        except UnknownOutcomeError as error:
            say("unknown", name=name, reason=error.message)
        except JetstreamError as error:
            say("refused", name=name, reason=error.message)
        else:
            say("ack", name=name, id=result["stream_id"])


def main() -> None:
    asyncio.run(Node(configured()).run())


if __name__ == "__main__":
    main()
