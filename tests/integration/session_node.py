"""One node's session as a process, to be killed, frozen and kept busy.

    python -m tests.integration.session_node '{"directory": …, "node_id": 0, "voters": {…}, …}'

Lines on stdout are JSON, each with `at`, the monotonic time, which all processes share:

    {"event": "leader", "leader": 1, "controller_epoch": 7 | null}
    {"event": "registered", "incarnation": 5}
    {"event": "held"} {"event": "lost"}         lease_holds() has another answer than before
    {"event": "told", "held": true}             the lease holds, or has lapsed
    {"event": "node", "node": 2, "incarnation": 5, "fenced": true}    applied here
    {"event": "streams", "leaders": {name: node}}                     the answer to "streams"
    {"event": "state", "held": true, "unfenced": [0, 1, 2]}           the answer to "state"

Lines on stdin: `create NAME NODE…`, `streams`, `state`, `block SECONDS` (the server's loop, not the
Raft thread), `stall SECONDS` (the disk: the next flush of the metadata journal takes so long),
`stop`. They say `blocking` and `unblocked`; `stalling` once the order is obeyed, `stalled` and
`unstalled` around the flush.

Sessions and terms last a few times as long as in production: a machine that stands still for three
seconds ends none.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.raft.status import MetadataStatus
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.state.changes import Change, NodeChanged
from jetstream_server.replication.drivers.controller import Controller
from jetstream_server.replication.sessions.lease import SessionSettings
from jetstream_server.replication.sessions.node_session import NodeSession
from tests.support import member_process
from tests.support.member_process import configured, orders, say

from .metadata_group import create, register

LOOK_SECONDS = 0.002
SESSION_SECONDS = 6.0
SESSIONS = SessionSettings(timeout_us=6_000_000, lease_us=5_200_000, authority_us=2_000_000)
TERMS = RaftTimings(election_min=4.0, election_max=6.0, leader_fallback=6.0)


class Node:
    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.log = RaftMetadataLog(replace(config, raft=TERMS), secrets.token_hex(4))
        self.session = NodeSession(self.log, SESSIONS)
        self.controller = Controller(self.log, lambda: self.session.log_ends)

    async def run(self) -> None:
        self.log.watch_leadership(self.leadership)
        self.log.watch(self.changed)
        await self.log.start()
        self.session.start(changed=self.lease_changed)
        self.controller.start()
        registering = member_process.register(self.log, register(self.log))
        tasks = [asyncio.create_task(registering), asyncio.create_task(self.look())]
        async for words in orders():
            await self.obey(words)
        for task in tasks:
            task.cancel()
        await self.controller.close()
        await self.session.close()
        await self.log.close()

    def lease_changed(self) -> None:
        say("told", held=self.session.lease_holds())

    def leadership(self, status: MetadataStatus) -> None:
        say(
            "leader",
            leader=status.leader,
            term=status.term,
            controller_epoch=status.controller_epoch,
        )

    def changed(self, change: Change) -> None:
        if isinstance(change, NodeChanged) and change.after is not None:
            node = change.after
            say("node", node=node.node_id, incarnation=node.incarnation, fenced=node.fenced)

    async def look(self) -> None:
        held = False
        while True:
            if self.session.lease_holds() != held:
                held = not held
                say("held" if held else "lost")
            await asyncio.sleep(LOOK_SECONDS)

    async def obey(self, words: list[str]) -> None:
        match words:
            case ["create", name, *replicas]:
                await self.log.propose(create(name, *map(int, replicas)), patience=60.0)
            case ["streams"]:
                streams = self.log.registry.streams.values()
                say("streams", leaders={stream.name: stream.leader for stream in streams})
            case ["state"]:
                nodes = self.log.registry.nodes.values()
                unfenced = sorted(node.node_id for node in nodes if not node.fenced)
                say("state", held=self.session.lease_holds(), unfenced=unfenced)
            case ["block", seconds]:
                say("blocking")
                time.sleep(float(seconds))  # noqa: ASYNC251  # On purpose.
                say("unblocked")
            case ["stall", seconds]:
                os.fdatasync = stalling(float(seconds))
                say("stalling")


def stalling(seconds: float) -> Callable[[int], None]:
    """A flush that takes so long; the ones after it do not."""
    fdatasync = os.fdatasync

    def stall(descriptor: int) -> None:
        os.fdatasync = fdatasync
        say("stalled")
        time.sleep(seconds)
        fdatasync(descriptor)
        say("unstalled")

    return stall


def main() -> None:
    asyncio.run(Node(configured()).run())


if __name__ == "__main__":
    main()
