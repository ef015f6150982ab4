"""A metadata member with older or newer software, as a process.

    python -m tests.integration.versioned_node '{"software": 2, "directory": …, "node_id": 0, …}'

Software 1 is the shipped one; 2 understands feature level 2, which has the command `later`.
Lines on stdout are JSON:

    {"event": "registered", "incarnation": 5}
    {"event": "level", "level": 2}              the cluster's feature level rose
    {"event": "later", "number": 7}             accepted
    {"event": "refused", "reason": …}           a proposal, a registration among them
    {"event": "stopped", "reason": …}           this node takes no part any more

Lines on stdin: `later NUMBER`, `stop`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass
from typing import ClassVar

from jetstream_protocol.errors import JetstreamError
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.state import commands
from jetstream_server.metadata.state.changes import Change, SettingsChanged
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import RegisterNode
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.nodes import Addresses, FeatureLevel
from jetstream_server.metadata.state.operations import OPERATIONS, Operation
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication.drivers.controller import Controller, ControllerSettings
from tests.support import member_process
from tests.support.member_process import configured, orders, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Command):
    op: ClassVar[str] = "later"
    level: ClassVar[int] = 2
    number: int


def later(_: Tables, command: Later) -> Decision:
    return Decision({"number": command.number})


class Node:
    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.session = secrets.token_hex(4)
        self.log = RaftMetadataLog(config, self.session, self.stopped)

    async def run(self) -> None:
        self.log.watch(self.changed)
        try:
            await self.log.start()
        except JetstreamError as error:
            self.stopped(error.message)
            return
        quick = ControllerSettings(round_seconds=0.1)
        controller = Controller(self.log, dict, quick)
        controller.start()
        registering = asyncio.create_task(self.register())
        async for words in orders():
            await self.propose_later(int(words[1]))
        registering.cancel()
        await controller.close()
        await self.log.close()

    async def register(self) -> None:
        port = self.config.voters[self.config.node_id]  # As others reach it.
        command = RegisterNode(
            session=self.session,
            node_id=self.config.node_id,
            addresses=Addresses(grpc=port, data=port, raft=port, http=port),
            feature_level_max=commands.FEATURE_LEVEL_MAX,
        )
        try:
            await member_process.register(self.log, command)
        except JetstreamError as error:
            say("refused", reason=error.message)

    async def propose_later(self, number: int) -> None:
        try:
            await self.log.barrier()  # It knows who has registered.
            result = await self.log.propose(Later(number=number))
        except JetstreamError as error:
            say("refused", reason=error.message)
        else:
            say("later", number=result["number"])

    def changed(self, change: Change) -> None:
        if isinstance(change, SettingsChanged):
            say("level", level=change.after.feature_level)

    def stopped(self, reason: str) -> None:
        say("stopped", reason=reason)


def main() -> None:
    told = json.loads(sys.argv[1])
    commands.FEATURE_LEVEL_MAX = FeatureLevel(told.pop("software"))
    if Later.level == commands.FEATURE_LEVEL_MAX:
        OPERATIONS[Later.op] = Operation(Later, later)
    sys.argv[1] = json.dumps(told)
    asyncio.run(Node(configured()).run())


if __name__ == "__main__":
    main()
