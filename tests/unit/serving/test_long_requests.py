"""Requests that name thousands of streams: what they cost the node's loop and the audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import CODES, PermissionDeniedError
from jetstream_protocol.generated import api_pb2, common_pb2, cursors_pb2
from jetstream_protocol.types import WallUs
from jetstream_server.cursors.table import Outcome, Write
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.security.state import SecurityState, Token
from jetstream_server.serving.grpc.cursors_service import COMMITS_MAX, CursorsService
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.reads_service import ReadsService
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop

TOKEN = Token("t", "user:ann", "hash", WallUs(0), WallUs(0))
WITHOUT_RIGHTS = Identity("user:ann", "ipv4:192.0.2.1:5", TOKEN)


class Services:
    """The services of a node with one stream, `orders`. Its store commits whatever it is given."""

    def __init__(self, folder: Path, access: AccessControl) -> None:
        node = Node(folder / "streams")
        node.start()
        self.stream = node.create().stream
        self.written: list[Write] = []
        streams = StreamAccess(access, node.cluster.registry)
        self.cursors = CursorsService(
            cast(Any, self),
            node.cluster.registry,
            cast(Any, self),
            streams,
            node.clocks.wall,
        )
        self.reads = ReadsService(
            node.replicas,
            LongPoll(lambda: True, access),
            streams,
            ResponseMemoryLimiter(lambda peer: None),
        )

    async def create(self) -> None:
        """As the way to the cursors' leader: they exist."""

    async def forward(self, *request: object) -> None:
        """As the way to the cursors' leader: it is this node."""

    async def write(self, writes: list[Write]) -> list[Outcome]:
        self.written += writes
        return [Outcome(None) for _ in writes]


def secured() -> AccessControl:
    state = SecurityState({TOKEN.id: TOKEN}, {})
    return AccessControl(
        lambda: state,
        lambda: WallUs(1),
        enabled=True,
        node_id=0,
        secret=b"secret",
        incarnation=lambda: 1,
    )


def call_of(identity: Identity) -> Call:
    return cast(Call, SimpleNamespace(identity=identity, peer=identity.peer))


def commits(stream: str, count: int = COMMITS_MAX) -> cursors_pb2.CommitCursorsRequest:
    commit = cursors_pb2.CommitCursorsRequest.Commit
    ref = common_pb2.StreamRef(name=stream)
    return cursors_pb2.CommitCursorsRequest(
        commits=[commit(name=f"c{at}", stream=ref, offset=at, owner="o") for at in range(count)]
    )


async def turns_of_others(work: Any) -> tuple[Any, int]:
    """What the work returns, and how many turns another task of the loop has had meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return task.result(), turns


@on_virtual_loop
async def test_commits_without_a_right_leave_turns_to_others_and_one_line_in_the_audit_log(
    tmp_path: Path,
) -> None:
    access = secured()
    services = Services(tmp_path, access)
    for stream in ("orders", "unknown"):
        request = commits(stream)
        with capture_logs() as lines:
            answered, turns = await turns_of_others(
                services.cursors.CommitCursors(request, call_of(WITHOUT_RIGHTS))
            )
        denied = CODES[PermissionDeniedError].code
        assert [each.error.code for each in answered.results] == [denied] * COMMITS_MAX
        assert turns >= 50
        (line,) = [each for each in lines if each["event"] == "audit"]
        told = {key: line[key] for key in ("outcome", "principal", "operation", "resource")}
        assert told == {
            "outcome": "refused", "principal": "user:ann", "operation": "read", "resource": stream,
        }  # fmt: skip
        assert line["repeated"] == COMMITS_MAX - 1
    assert access.audit.authorization_failures == 2 * COMMITS_MAX


@on_virtual_loop
async def test_a_refusal_that_stands_alone_repeats_nothing(tmp_path: Path) -> None:
    services = Services(tmp_path, secured())
    with capture_logs() as lines:
        await services.cursors.CommitCursors(commits("orders", 1), call_of(WITHOUT_RIGHTS))
    assert [each["repeated"] for each in lines if each["event"] == "audit"] == [0]


@on_virtual_loop
async def test_commits_leave_turns_to_others_and_are_answered_in_their_order(
    tmp_path: Path,
) -> None:
    services = Services(tmp_path, open_to_all())
    request = commits("orders")
    for at in range(0, COMMITS_MAX, 3):
        request.commits[at].stream.name = "unknown"
    for at in range(1, COMMITS_MAX, 3):
        request.commits[at].offset = -1
    answered, turns = await turns_of_others(
        services.cursors.CommitCursors(request, call_of(ANONYMOUS))
    )
    assert turns >= 100
    has_error = [each.HasField("error") for each in answered.results]
    assert has_error == [at % 3 != 2 for at in range(COMMITS_MAX)]
    assert answered.results[0].error.code != answered.results[1].error.code
    names = [cursors_pb2.Cursor.FromString(each.value or b"").name for each in services.written]
    assert names == [f"c{at}" for at in range(2, COMMITS_MAX, 3)]


@on_virtual_loop
async def test_commits_that_come_together_are_written_together(tmp_path: Path) -> None:
    """The store makes one batch of what is written in one turn of the loop."""
    services = Services(tmp_path, open_to_all())
    calls = [
        services.cursors.CommitCursors(commits("orders", 1), call_of(ANONYMOUS)) for _ in range(500)
    ]
    answered, turns = await turns_of_others(asyncio.gather(*calls))
    assert len(answered) == len(services.written) == 500
    assert turns < 10


@pytest.mark.parametrize("stream", ["orders", "unknown"])
@on_virtual_loop
async def test_offsets_that_may_not_be_listed_are_one_line_in_the_audit_log(
    tmp_path: Path, stream: str
) -> None:
    services = Services(tmp_path, secured())
    query = api_pb2.ListOffsetsRequest.Query
    ref = common_pb2.StreamRef(name=stream)
    request = api_pb2.ListOffsetsRequest(queries=[query(stream=ref, latest=True)] * 1_000)
    with capture_logs() as lines:
        answered = await services.reads.ListOffsets(request, call_of(WITHOUT_RIGHTS))
    assert len(answered.results) == 1_000
    assert [each["repeated"] for each in lines if each["event"] == "audit"] == [999]
