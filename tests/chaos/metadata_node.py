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
import json
import secrets
import sys
import time
from typing import Any

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError, UnknownOutcomeError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.member_config import MemberConfig
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.metadata.status import MetadataStatus

PAUSE_SECONDS = 0.01
"""Between one proposer's commands: load enough to be caught in the middle, not a benchmark."""


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"at": time.monotonic(), "event": event, **fields}), flush=True)


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
        register = asyncio.create_task(self.register())
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while (line := await reader.readline()) and line != b"stop\n":
            await self.obey(line.decode().split())
        register.cancel()
        self.propose(0)
        await self.log.close()

    def leadership(self, status: MetadataStatus) -> None:
        say("leader", leader=status.leader, term=status.term)

    async def register(self) -> None:
        port = self.config.listen
        command = {
            "op": "register_node",
            "node_id": self.config.node_id,
            "addresses": {"grpc": port, "data": port, "raft": port, "http": port},
        }
        while self.log.incarnation is None:
            try:
                await self.log.propose(command)
            except (UnavailableError, UnknownOutcomeError):
                await asyncio.sleep(0.05)
        say("registered", incarnation=self.log.incarnation)

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
        command = {
            "op": "create_stream",
            "name": name,
            "subject": f"chaos.{name}",
            "replicas": [self.config.node_id],
            "created_at_us": 0,
        }
        try:
            result = await self.log.propose(command)
        except UnknownOutcomeError as error:
            say("unknown", name=name, reason=error.message)
        except JetstreamError as error:
            say("refused", name=name, reason=error.message)
        else:
            say("ack", name=name, id=result["stream_id"])


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    values = json.loads(sys.argv[1])
    voters = {NodeId(int(node_id)): address for node_id, address in values["voters"].items()}
    config = MemberConfig(
        directory=values["directory"],
        node_id=NodeId(values["node_id"]),
        voters=voters,
        listen=values["listen"],
        secret=values["secret"].encode(),
        compact_after_entries=values["compact_after_entries"],
    )
    asyncio.run(Node(config).run())


if __name__ == "__main__":
    main()
