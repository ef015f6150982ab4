"""When a publish is done, and what of: every combination of answers."""

from __future__ import annotations

import pytest

from jetstream_client import (
    Ack,
    InternalError,
    JetstreamError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    PreconditionFailedError,
    PublishResult,
    UnavailableError,
)
from jetstream_client.publishing.ack import Pending, parse_ack
from jetstream_client.publishing.subject_routes import SubjectRoute
from jetstream_protocol.errors import CODES
from jetstream_server.ingest.nats.replies import Replies
from jetstream_server.ingest.stream.acks import AckFormat
from tests.support.loops import on_loop

A, B = frozenset({"a"}), frozenset({"b"})


def pending(*expected: frozenset[str], any_: bool = False) -> Pending:
    feed = SubjectRoute(expected, frozenset().union(*expected))
    return Pending("1", "x.y", feed, expected, any_, deadline=0.0)


def ack(stream: str, offset: int) -> bytes:
    return b'{"stream":"%s","seq":%d}' % (stream.encode(), offset + 1)


def nack(stream: str, error: JetstreamError) -> bytes:
    return AckFormat(stream).nack_payload(error)


def test_an_ack_is_the_servers() -> None:
    line = AckFormat('o"rders').acks(Replies([b"_INBOX.1"], range(1)), 41)
    assert parse_ack(line.split(b"\r\n")[1]) == Ack('o"rders', 41)


MARK = "3f9a12c07be4"


def test_where_the_cluster_is_known_only_its_answers_count() -> None:
    ours, others = AckFormat("orders", MARK), AckFormat("orders", "000000000000")
    refusal = UnavailableError("why")
    for form, counts in ((ours, True), (others, False), (AckFormat("orders"), False)):
        line = form.acks(Replies([b"_INBOX.1"], range(1)), 41)
        assert parse_ack(line.split(b"\r\n")[1], MARK) == (Ack("orders", 41) if counts else None)
        assert (parse_ack(form.nack_payload(refusal), MARK) is not None) == counts
    assert parse_ack(b'{"stream":"orders","seq":42,"domain":"hub"}', MARK) is None


@on_loop
async def test_a_publish_waits_on_when_another_cluster_answers() -> None:
    expected = (frozenset(("orders",)),)
    route = SubjectRoute(expected, frozenset(("orders",)), cluster=MARK)
    publish = Pending("1", "x.y", route, expected, False, deadline=0.0)
    assert not publish.answered(ack("orders", 7))
    assert not publish.answered(nack("orders", UnavailableError("not now")))
    assert publish.of_others
    line = AckFormat("orders", MARK).acks(Replies([b"_INBOX.1"], range(1)), 3)
    assert publish.answered(line.split(b"\r\n")[1])
    assert publish.future.result().offset == 3


def test_a_duplicate_says_so() -> None:
    assert parse_ack(b'{"stream":"a","seq":1,"duplicate":true}') == Ack("a", 0, duplicate=True)


@pytest.mark.parametrize("cls", CODES)
def test_every_refusal_comes_back_as_its_class(cls: type[JetstreamError]) -> None:
    stream, error = parse_ack(nack("orders", cls("why")))  # type: ignore[misc]
    assert stream == "orders"
    assert type(error) is cls
    assert "why" in error.message


def test_a_condition_that_does_not_hold_is_told_in_offsets() -> None:
    _, error = parse_ack(nack("orders", PreconditionFailedError("wrong last sequence: 7")))  # type: ignore[misc]
    assert error.message == ("the next offset of stream 'orders' is 7, not the expected one")


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"hello", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000),
        *(b'{"seq":"x"}', b'{"seq":1e999}', b'{"seq":NaN}', b'{"seq":%b}' % (b"9" * 5000)),
        *(b'{"error":5}', b'{"error":{"description":"","err_code":Infinity}}'),
    ],
    ids=lambda payload: ascii(payload[:48]),
)
def test_what_is_no_acknowledgement_is_said_to_be_none(payload: bytes) -> None:
    stream, error = parse_ack(payload)  # type: ignore[misc]
    assert stream == ""
    assert isinstance(error, InternalError)
    assert "does another service listen" in error.message


@on_loop
async def test_one_stream_one_ack() -> None:
    publish = pending(A)
    assert publish.answered(ack("a", 7))
    result = publish.future.result()
    assert (result.stream, result.offset, result.acks) == ("a", 7, (Ack("a", 7),))


@on_loop
async def test_all_streams_must_acknowledge() -> None:
    publish = pending(A, B)
    assert not publish.answered(ack("b", 1))
    assert not publish.future.done()
    assert publish.answered(ack("a", 2))
    assert publish.future.result().acks == (Ack("a", 2), Ack("b", 1)), "in whatever order they come"


@on_loop
async def test_the_same_stream_twice_is_not_two_streams() -> None:
    publish = pending(A, B)
    publish.answered(ack("a", 1))
    assert not publish.answered(ack("a", 2))
    assert not publish.future.done()


@on_loop
async def test_one_member_answers_for_its_group() -> None:
    publish = pending(frozenset({"a", "b"}))
    assert publish.answered(ack("b", 3))


@on_loop
async def test_any_is_content_with_the_first() -> None:
    publish = pending(A, B, any_=True)
    assert publish.answered(ack("b", 1))
    assert publish.future.result().acks == (Ack("b", 1),)


@on_loop
async def test_any_outlasts_a_refusal() -> None:
    publish = pending(A, B, any_=True)
    assert not publish.answered(nack("a", NotEnoughReplicasError("no")))
    assert publish.answered(ack("b", 1))
    assert publish.future.result().stream == "b"


@on_loop
async def test_any_fails_when_all_refuse() -> None:
    publish = pending(A, B, any_=True)
    publish.answered(nack("a", NotEnoughReplicasError("no")))
    assert publish.answered(nack("b", PreconditionFailedError("neither")))
    assert isinstance(publish.future.exception(), NotEnoughReplicasError)


@pytest.mark.parametrize("any_", [False, True])
@on_loop
async def test_who_may_have_stored_it_counts_more_than_who_has_not(any_: bool) -> None:
    publish = pending(A, B, any_=any_)
    publish.answered(nack("a", NotEnoughReplicasError("no")))
    assert publish.answered(nack("b", NotEnoughReplicasAfterAppendError("perhaps")))
    assert isinstance(publish.future.exception(), NotEnoughReplicasAfterAppendError)


@on_loop
async def test_a_refusal_by_one_of_all_fails_and_names_who_has_stored_it() -> None:
    publish = pending(A, B)
    publish.answered(ack("b", 4))
    assert publish.answered(nack("a", PreconditionFailedError("no")))
    error = publish.future.exception()
    assert isinstance(error, PreconditionFailedError)
    assert error.__notes__ == ["stream 'b' has stored the message, at offset 4"]


@on_loop
async def test_a_refusal_nobody_waits_for_is_not_ours() -> None:
    publish = pending(A)
    assert not publish.answered(nack("stranger", PreconditionFailedError("no")))
    assert publish.answered(ack("a", 0))
    assert publish.future.exception() is None


def test_without_acks_there_is_no_offset() -> None:
    result = PublishResult("x.y")
    assert (result.acks, result.offset, result.stream) == ((), -1, "")
