"""Every change that may have been made has its line in the audit log, however its call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import (
    JetstreamError,
    NotFoundError,
    NotLeaderError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import cursors_pb2
from jetstream_server.clocks import wall_clock
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.security.state import SecurityState
from jetstream_server.serving.grpc.cursors_service import CursorsService
from jetstream_server.serving.grpc.guard import Guarded
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from tests.support.virtual_time import on_virtual_loop

STATE = SecurityState()
ANN = Identity("user:ann", "10.0.0.1:5")


def access() -> AccessControl:
    return AccessControl(
        lambda: STATE, wall_clock, enabled=False, node_id=0, secret=b"", incarnation=lambda: 1
    )


class Service:
    """Deletes, and then does what the test says."""

    def __init__(self, then: Callable[[], None] | None) -> None:
        self._then = then

    async def DeleteStream(self, request: object, call: object) -> None:
        if self._then is None:
            await asyncio.Event().wait()
        else:
            self._then()


async def know_enough(revision: int) -> None: ...


def guarded(then: Callable[[], None] | None) -> Any:
    streams = SimpleNamespace(control=access(), name_of=lambda ref: "orders@orders.>")
    connections = SimpleNamespace(called=lambda peer, identity: None)
    service = Guarded(
        Service(then),
        "jetstream.v1.Streams",
        cast(Any, streams),
        cast(Any, connections),
        ResponseMemoryLimiter(lambda _: None),
        know_enough,
    )
    call = SimpleNamespace(
        peer="10.0.0.1:5", header=lambda key: "", identity=None, known_revision=0
    )
    return service.DeleteStream(pb.DeleteStreamRequest(), cast(Any, call))


def outcomes(lines: list[Any]) -> list[str]:
    return [line["outcome"] for line in lines if line["event"] == "audit"]


@on_virtual_loop
async def test_a_caller_that_leaves_in_the_middle_of_a_change_is_noted() -> None:
    with capture_logs() as lines:
        deleting = asyncio.ensure_future(guarded(None))
        await asyncio.sleep(0.01)
        deleting.cancel()
        await asyncio.wait((deleting,))
    assert deleting.cancelled()
    (line,) = lines
    assert (line["outcome"], line["resource"]) == ("unknown", "orders@orders.>")
    assert line["operation"] == "/jetstream.v1.Streams/DeleteStream"


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (UnknownOutcomeError("no answer"), ["unknown"]),
        (UnavailableError("it exists, but has no leader"), ["unknown"]),
        (ValueError("a bug"), ["unknown"]),
        (NotFoundError("there is none"), []),
        (NotLeaderError("ask another node"), []),
        (None, ["done"]),
    ],
)
@on_virtual_loop
async def test_an_error_after_which_a_change_may_be_made_is_noted(
    error: Exception | None, noted: list[str]
) -> None:
    def then() -> None:
        if error is not None:
            raise error

    with capture_logs() as lines:
        (found,) = await asyncio.gather(guarded(then), return_exceptions=True)
    assert found is error
    assert outcomes(lines) == noted


def test_cursors_that_may_have_been_moved_by_hand_are_noted_and_those_of_consumers_are_not() -> (
    None
):
    commit = cursors_pb2.CommitCursorsRequest.Commit
    commits = [commit(name="a", owner="me"), commit(name="b"), commit(name="c")]
    service = cast(Any, object.__new__(CursorsService))
    service._access = SimpleNamespace(control=access(), name_of=lambda ref: "orders@orders.>")

    def lines_of(commits: list[Any], identity: Identity, error: BaseException | None) -> list[Any]:
        with capture_logs() as lines:
            try:
                with service._noting_doubt(commits, identity):
                    if error is not None:
                        raise error
            except (JetstreamError, asyncio.CancelledError):
                pass
        return list(lines)

    (line,) = lines_of(commits, ANN, asyncio.CancelledError())
    assert (line["outcome"], line["resource"], line["repeated"]) == (
        "unknown", "b in orders@orders.>", 1
    )  # fmt: skip
    assert lines_of(commits[:1], ANN, asyncio.CancelledError()) == []
    assert lines_of(commits, ANN, None) == []
    node = Identity("node:1", "10.0.0.2:5", is_node=True)
    assert lines_of(commits, node, UnavailableError("that node notes it")) == []
