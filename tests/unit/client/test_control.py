"""Which failures are tried again, where, and the error when no node is left."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from jetstream_client import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PermissionDeniedError,
    StreamExistsError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.transport import control
from jetstream_client.transport.control import (
    ControlPlane,
    WrongPortError,
    cause_error,
    first_contact,
    outcome_error,
)
from jetstream_client.transport.groups import Groups
from jetstream_client.transport.grpc_calls import (
    LostCallError,
    RefusedError,
    UnreachedError,
    to_error,
)
from jetstream_client.transport.retries import next_step
from jetstream_client.transport.streams import Streams
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.generated import api_pb2, common_pb2, groups_pb2
from tests.support.virtual_time import on_virtual_loop


class Failed(grpc.RpcError):
    """A call that has failed, as gRPC says so."""

    def __init__(self, status: grpc.StatusCode, details: str, sent: bytes | None) -> None:
        self._said = status, details, sent

    def code(self) -> grpc.StatusCode:
        return self._said[0]

    def details(self) -> str:
        return self._said[1]

    def trailing_metadata(self) -> Any:
        sent = self._said[2]
        return None if sent is None else (("jetstream-error-bin", sent),)


def failed(
    status: grpc.StatusCode, details: str = "", error: JetstreamError | None = None
) -> Failed:
    sent = None if error is None else error.to_proto().SerializeToString()
    return Failed(status, details, sent)


def test_the_servers_own_error_wins() -> None:
    sent = OffsetOutOfRangeError("gone", 5, 9)
    error = to_error(failed(grpc.StatusCode.OUT_OF_RANGE, "gone", sent), "a:1")
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.message, error.log_start_offset, error.high_watermark) == ("gone", 5, 9)


@pytest.mark.parametrize(
    ("status", "details", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", UnreachedError),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: connect: Connection refused (111)",
            RefusedError,
        ),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed", RefusedError),
        (
            grpc.StatusCode.UNAVAILABLE,
            "errors resolving a:1: [field:hostname lookup error:Domain name not found]",
            RefusedError,
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", LostCallError),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", LostCallError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", LostCallError),
        (grpc.StatusCode.CANCELLED, "", LostCallError),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Concurrent RPC limit exceeded!",
            UnavailableError,
        ),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (67108865 vs. 67108864)",
            InternalError,
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "", InvalidRequestError),
        (grpc.StatusCode.PERMISSION_DENIED, "no", PermissionDeniedError),
        (grpc.StatusCode.DATA_LOSS, "?", InternalError),
    ],
)
def test_a_status_without_an_error_is_read_as_what_it_can_mean(
    status: grpc.StatusCode, details: str, cls: type[JetstreamError]
) -> None:
    assert type(to_error(failed(status, details), "a:1")) is cls


def test_an_undecodable_error_is_an_internal_one() -> None:
    error = Failed(grpc.StatusCode.INTERNAL, "", b"\xff\xff")
    assert isinstance(to_error(error, "a:1"), InternalError)


def test_what_is_not_retriable_is_final() -> None:
    assert next_step(StreamExistsError("no"), 1, 0.5) is None
    assert next_step(UnknownOutcomeError("?"), 1, 0.5) is None


def test_a_server_that_is_not_there_is_followed_by_the_next_after_a_while() -> None:
    waits = [next_step(UnavailableError("no"), attempt, 1.0) for attempt in (1, 2, 3, 20)]
    assert [step.wait for step in waits if step] == [0.05, 0.1, 0.2, 1.0]
    assert all(step is not None and step.address is None for step in waits)


def test_waits_differ_between_clients() -> None:
    shortest, longest = (next_step(UnavailableError("no"), 5, chance) for chance in (0.0, 1.0))
    assert shortest is not None
    assert longest is not None
    assert shortest.wait == longest.wait / 2


def test_a_redirect_is_followed_at_once_but_not_forever() -> None:
    error = NotLeaderError("no", common_pb2.NodeAddress(grpc="b:2"))
    first, late = next_step(error, 1, 0.5), next_step(error, 9, 0.5)
    assert first is not None
    assert (first.address, first.wait) == ("b:2", 0.0)
    assert late is not None
    assert late.wait > 0


def test_a_change_that_may_have_happened_has_an_unknown_outcome() -> None:
    told = outcome_error(LostCallError("a:1 did not answer in time"), "creating x", True, lost=True)
    assert isinstance(told, UnknownOutcomeError)
    assert "may or may not have been done" in told.message


@pytest.mark.parametrize(
    ("error", "changes", "lost"),
    [
        (UnavailableError("cannot reach a:1"), True, False),  # nothing was ever sent
        (LostCallError("timed out"), False, True),  # reading changes nothing
        (StreamExistsError("no"), True, True),  # a definite answer
    ],
)
def test_every_other_error_is_told_as_it_is(
    error: JetstreamError, changes: bool, lost: bool
) -> None:
    assert outcome_error(error, "creating x", changes, lost) is error


@pytest.mark.parametrize("last", [UnreachedError("cannot reach b:1"), LostCallError("no answer")])
def test_what_a_server_said_is_told_rather_than_that_others_are_dead(last: JetstreamError) -> None:
    said = UnavailableError("there is no metadata leader")
    assert cause_error(last, said, [UnreachedError("cannot reach c:1")]) is said


def test_where_nobody_answered_all_who_were_tried_are_named_in_a_class_of_everybody() -> None:
    first, last = UnreachedError("cannot reach b:1"), RefusedError("cannot reach c:1: refused")
    told = cause_error(last, None, [first, last])
    assert type(told) is UnavailableError
    assert told.message == "cannot reach b:1; cannot reach c:1: refused"
    assert type(cause_error(LostCallError("no answer"), None, [])) is UnavailableError


def test_at_the_first_contact_what_is_refused_everywhere_is_said_at_once() -> None:
    refused, wrong = RefusedError("a:1: refused"), WrongPortError("b:1 is NATS")
    slow = UnreachedError("cannot reach b:1")
    assert first_contact(["a:1", "b:1"], {"a:1": refused}) is None
    assert first_contact(["a:1", "b:1"], {"a:1": refused, "b:1": slow}) is None
    both = first_contact(["a:1", "b:1"], {"a:1": refused, "b:1": wrong})
    assert type(both) is UnavailableError
    assert "a:1: refused; b:1 is NATS" in both.message
    assert "jetstream-server --dev" in both.message


def test_a_port_that_is_a_wrong_one_is_wrong_usage() -> None:
    wrong = WrongPortError("b:1 is NATS")
    assert type(first_contact(["b:1"], {"b:1": wrong})) is InvalidRequestError


def test_the_last_answer_of_a_server_counts() -> None:
    last = StreamExistsError("it exists")
    assert cause_error(last, UnavailableError("try again"), []) is last


@on_virtual_loop
async def test_calls_of_a_client_that_does_one_thing_share_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[float] = []

    async def slow(
        channel: Any, request: Any, timeout: float, *_: object, **__: object
    ) -> api_pb2.ListStreamsResponse:
        timeouts.append(timeout)
        await asyncio.sleep(min(timeout, 0.3))
        if timeout < 0.3:
            raise LostCallError("did not answer in time")
        return api_pb2.ListStreamsResponse()

    monkeypatch.setattr(control, "ask", slow)
    plane = ControlPlane(ClientConfig(timeout=0.5, total_timeout=0.5))
    streams = Streams(plane)
    assert await streams.find() == []
    with pytest.raises(UnavailableError, match="did not answer in time"):
        await streams.find()
    assert 1 < len(timeouts) <= 3, "the second call asks on two connections at once"
    assert max(timeouts[1:]) < 0.21, "more than the first call has left"
    await plane.close()


@on_virtual_loop
async def test_a_second_server_has_as_long_as_an_answer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[str, float]] = []

    async def first_is_frozen(
        channel: Any, request: Any, timeout: float, address: str, *_: str, **__: object
    ) -> Message:
        if isinstance(request, api_pb2.DescribeClusterRequest):
            return api_pb2.DescribeClusterResponse()
        given.append((address, timeout))
        if address == "a:1":
            await asyncio.sleep(min(timeout, 0.4))
            raise LostCallError("did not answer in time")
        return groups_pb2.GroupHeartbeatResponse(generation=1)

    monkeypatch.setattr(control, "ask", first_is_frozen)
    plane = ControlPlane(ClientConfig(["a:1", "b:1"], retry_on_failed_connect=True))
    await plane.call(
        groups_pb2.GroupHeartbeatRequest(),
        what="a call",
        timeout=0.8,
        share_min=0.4,
    )
    assert [address for address, _ in given] == ["a:1", "b:1"]
    assert given[1][1] > 0.2  # Not the half of what is left.
    given.clear()
    # The last heartbeat that arrived was answered after the wait; this one arrives at the second
    # server before the session has ended.
    session, wait = 6.0, 2.0
    plane._servers.first = "a:1"
    request = groups_pb2.GroupHeartbeatRequest(group="g", source="s", wait_ms=int(wait * 1000))
    await Groups(plane).heartbeat(request)
    await plane.close()
    assert wait < given[0][1] < session - wait
    assert given[1][1] > wait


@on_virtual_loop
async def test_who_joins_a_group_while_its_coordinator_changes_waits_as_long_as_the_client_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[str, float]] = []

    async def only_the_third_time(
        channel: Any, request: Any, timeout: float, address: str, *_: str, **__: object
    ) -> Message:
        if isinstance(request, api_pb2.DescribeClusterRequest):
            return api_pb2.DescribeClusterResponse()
        given.append((address, timeout))
        if len(given) < 3:
            raise LostCallError("did not answer in time")
        return groups_pb2.GroupHeartbeatResponse(generation=1)

    monkeypatch.setattr(control, "ask", only_the_third_time)
    for servers, shares in (["a:1", "b:1"], [2.0, 4.0, 8.0]), (["a:1"], [20.0] * 3):
        given.clear()
        plane = ControlPlane(ClientConfig(servers, timeout=20, retry_on_failed_connect=True))
        await Groups(plane).heartbeat(groups_pb2.GroupHeartbeatRequest(group="g", source="s"))
        await plane.close()
        assert [share for _, share in given] == pytest.approx(shares, abs=1)


@on_virtual_loop
async def test_a_publisher_learns_its_streams_although_the_first_server_is_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[str, float]] = []

    async def only_the_last_answers(
        channel: Any, request: Any, timeout: float, address: str, *_: str, **__: object
    ) -> Message:
        if isinstance(request, api_pb2.DescribeClusterRequest):
            return api_pb2.DescribeClusterResponse()
        given.append((address, timeout))
        if address != "c:1":
            raise LostCallError("did not answer in time")
        return api_pb2.ListStreamsResponse()

    monkeypatch.setattr(control, "ask", only_the_last_answers)
    plane = ControlPlane(
        ClientConfig(["a:1", "b:1", "c:1"], timeout=20, retry_on_failed_connect=True)
    )
    await Streams(plane).find("orders.new")
    assert given == [("a:1", 1.0), ("b:1", 2.0), ("c:1", 4.0)]  # Slow servers have time, too.
    plane._servers.first = "a:1"
    given.clear()
    await Streams(plane).find()
    await plane.close()
    assert given[0][1] == pytest.approx(10, abs=1)
