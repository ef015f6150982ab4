"""A member of a metadata group as a process: it says on stdout what happens, and obeys its stdin.

What it is told at its start is one argument of JSON: directory, node_id, voters, listen, secret.
Lines on stdout are JSON, each with `event` and `at`, the monotonic time, which processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from jetstream_protocol.errors import UnavailableError, UnknownOutcomeError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.config import MemberConfig
from jetstream_server.metadata.state.commands import RegisterNode


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"at": time.monotonic(), "event": event, **fields}), flush=True)


def configured() -> MemberConfig:
    """As the process was told; its own log goes to stderr."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    told = json.loads(sys.argv[1])
    voters = {NodeId(int(node_id)): address for node_id, address in told.pop("voters").items()}
    node_id, secret = NodeId(told.pop("node_id")), told.pop("secret").encode()
    return MemberConfig(node_id=node_id, voters=voters, secret=secret, **told)


async def orders() -> AsyncIterator[list[str]]:
    """The words of each line on stdin, until a line says `stop` or stdin ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while (line := await reader.readline()) and line != b"stop\n":
        yield line.decode().split()


async def register(log: RaftMetadataLog, command: RegisterNode) -> None:
    """Propose the registration until it is known to be done."""
    while log.incarnation is None:
        try:
            await log.propose(command)
        except (UnavailableError, UnknownOutcomeError):
            await asyncio.sleep(0.05)
    say("registered", incarnation=log.incarnation)
