from __future__ import annotations

import json
from pathlib import Path

import nats.js.api
import nats.js.errors
import pytest

from jetstream_protocol.errors import (
    CODES,
    InvalidRequestError,
    JetstreamError,
    NotEnoughReplicasError,
    UnsupportedHeaderError,
)
from jetstream_server.ingest.nats.replies import AckPolicy, Replies
from jetstream_server.ingest.stream.acks import AckFormat, Answer
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from tests.support.loops import on_loop
from tests.unit.ingest.streams import stream_on


def published(wire: bytes) -> list[tuple[bytes, bytes]]:
    """The PUBs of `wire` as (subject, payload), read as strictly as nats-server does."""
    found = []
    while wire:
        line, _, rest = wire.partition(b"\r\n")
        verb, subject, length = line.split(b" ")
        assert verb == b"PUB"
        payload, wire = rest[: int(length)], rest[int(length) :]
        assert wire.startswith(b"\r\n")
        wire = wire[2:]
        found.append((subject, payload))
    return found


def test_a_whole_delivery_of_inbox_replies_is_selected_as_it_is() -> None:
    replies = [b"_INBOX.abc.1", b"_INBOX.abc.2"]
    selection = AckPolicy().select(replies)
    assert selection.to_list() is replies
    assert selection.positions() == [0, 1]
    assert selection.refused == 0


def test_replies_outside_ack_subjects_are_not_answered_but_counted() -> None:
    replies = [b"_INBOX.a", b"", b"orders.eu", b"$SYS.REQ.SERVER.PING", b"_INBOX", b"_INBOX.b"]
    selection = AckPolicy().select(replies)
    assert selection.to_list() == [b"_INBOX.a", b"_INBOX.b"]
    assert selection.positions() == [0, 5]
    assert selection.refused == 3


def test_a_delivery_without_replies_selects_nothing_and_refuses_nothing() -> None:
    selection = AckPolicy().select([b"", b""])
    assert (len(selection), selection.refused) == (0, 0)


@pytest.mark.parametrize(
    ("patterns", "reply", "allowed"),
    [
        (("_INBOX.>",), b"_INBOX.a.b.c", True),
        (("_INBOX.>",), b"_INBOX.", False),
        (("_INBOX.>",), b"_INBOXx.a", False),
        (("_INBOX.>",), b"x_INBOX.a", False),
        (("_INBOX.*",), b"_INBOX.a", True),
        (("_INBOX.*",), b"_INBOX.a.b", False),
        (("_INBOX.*",), b"_INBOX.a b", False),
        (("_INBOX.*",), b"_INBOX.a\r\nPUB x 0\r\n", False),
        (("_INBOX.*",), b"_INBOX.>", False),
        (("a.*.c", "d.>"), b"a.b.c", True),
        (("a.*.c", "d.>"), b"d.e.f", True),
        (("a.*.c", "d.>"), b"a..c", False),
        (("a.b",), b"aXb", False),
        (("ack.ä.>",), "ack.ä.1".encode(), True),
        ((">",), b"anything.at.all", True),
        # What would end the field, the line, or reach many subjects.
        ((">",), b"a b", False),
        ((">",), b"a\r\nPUB x 0\r\n", False),
        ((">",), b"a\n", False),
        ((">",), b"a\tb", False),
        (("_INBOX.>",), b"_INBOX.>", False),
        (("_INBOX.>",), b"_INBOX.*", False),
        ((), b"_INBOX.a", False),
    ],
)
def test_only_literal_subjects_under_ack_subjects_are_allowed(
    patterns: tuple[str, ...], reply: bytes, allowed: bool
) -> None:
    policy = AckPolicy(patterns)
    assert policy.select([reply]).to_list() == [reply] * allowed
    assert policy.select([reply, reply]).refused == 2 * (not allowed)
    assert policy.select([b"", reply]).to_list() == [reply] * allowed


def test_an_ack_subject_that_is_no_pattern_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        AckPolicy(["a..b"])


def test_acks_say_stream_and_sequence_the_way_publishers_expect() -> None:
    wire = AckFormat("orders").acks(Replies([b"_INBOX.a", b"_INBOX.b"], range(2)), 41)
    assert wire == (
        b'PUB _INBOX.a 28\r\n{"stream":"orders","seq":42}\r\n'
        b'PUB _INBOX.b 28\r\n{"stream":"orders","seq":43}\r\n'
    )


@pytest.mark.parametrize("base_offset", [0, 7, 8, 9, 95, 999_999_990, 10**18 - 3])
@pytest.mark.parametrize("count", [1, 2, 3, 120])
def test_lengths_are_right_where_sequences_grow_by_a_digit(base_offset: int, count: int) -> None:
    replies = [b"_INBOX.%d" % i for i in range(count)]
    sparse = list(range(0, 2 * count, 2))
    whole = published(AckFormat("s").acks(Replies(replies, range(count)), base_offset))
    every_other = published(AckFormat("s").acks(Replies(replies, sparse), base_offset))
    assert [json.loads(p)["seq"] for _, p in whole] == [base_offset + 1 + i for i in range(count)]
    assert [json.loads(p)["seq"] for _, p in every_other] == [base_offset + 1 + i for i in sparse]
    assert [subject for subject, _ in whole] == replies


def test_no_acks_are_no_bytes() -> None:
    assert AckFormat("s").acks(Replies([]), 5) == b""
    assert AckFormat("s").nacks([], NotEnoughReplicasError("x")) == b""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"r", 13), {"seq": 13}),
        (Answer(b"r", 13, duplicate=True), {"seq": 13, "duplicate": True}),
        (Answer(b"r", 13, 10), {"seq": 13, "count": 10}),
        (
            Answer(b"r", 13, 10, True, 'é"\r\n%b'.encode()),
            {"seq": 13, "count": 10, "duplicate": True, "correlation": 'é"\r\n%b'},
        ),
    ],
)
def test_an_answer_says_what_applies_and_nothing_else(
    answer: Answer, said: dict[str, object]
) -> None:
    ((subject, payload),) = published(AckFormat("s").answer(answer))
    assert subject == b"r"
    assert json.loads(payload) == {"stream": "s"} | said


def test_a_nack_repeats_the_correlation_id() -> None:
    wire = AckFormat("s").nacks([b"r"], UnsupportedHeaderError("no"), "é%b\r\n".encode())
    ((_, payload),) = published(wire)
    answer = json.loads(payload)
    assert (answer["correlation"], answer["error"]["description"]) == ("é%b\r\n", "no")


@pytest.mark.parametrize("text", ["100 % sure", '"quoted" \\ ä', "%b %d", "line\r\nPUB x 0"])
def test_text_in_a_nack_cannot_break_out_of_it(text: str) -> None:
    wire = AckFormat('a"%d').nacks([b"r1", b"r2"], UnsupportedHeaderError(text))
    assert [subject for subject, _ in published(wire)] == [b"r1", b"r2"]
    for _, payload in published(wire):
        response = json.loads(payload)
        assert response["error"]["description"] == text
        assert response["stream"] == 'a"%d'
        assert response["seq"] == 0
    ((_, ack),) = published(AckFormat('a"%d').acks(Replies([b"r"], [0]), 0))
    assert json.loads(ack) == {"stream": 'a"%d', "seq": 1}


@pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.__name__)
def test_nats_py_reads_every_nack_as_an_api_error(kind: type[JetstreamError]) -> None:
    response = json.loads(AckFormat("orders").nack_payload(kind("why")))
    with pytest.raises(nats.js.errors.APIError) as caught:
        raise nats.js.errors.APIError.from_error(response["error"])
    assert caught.value.code == CODES[kind].nats_code
    assert caught.value.err_code == CODES[kind].nats_err_code
    assert caught.value.description is not None
    assert "why" in caught.value.description


def test_nats_py_reads_an_ack() -> None:
    ((_, payload),) = published(AckFormat("orders").acks(Replies([b"r"], range(1)), 0))
    ack = nats.js.api.PubAck.from_response(json.loads(payload))
    assert (ack.stream, ack.seq, ack.duplicate) == ("orders", 1, None)


@on_loop
async def test_who_expects_the_acks_of_another_cluster_is_noticed(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    noticed: list[str] = []
    stream.ingest = StreamIngest(
        stream.replica,
        stream.node.replicas,
        AckPolicy(),
        stream.bounds,
        stream.write,
        cluster="3f9a12c07be4",
        is_of_others=lambda replica, mark: noticed.append(f"{replica.stream.name} {mark}"),
    )
    stream.replica.on_commit = lambda _: stream.ingest.committed()
    for reply in (b"_INBOX.a", b"_INBOX.a@3f9a12c07be4", b"_INBOX.a@000000000000"):
        stream.deliver((b"x", reply))
        stream.node.flushes.run()
    assert noticed == [f"{stream.replica.stream.name} 000000000000"]
    assert {payload["cluster"] for _, payload in stream.answers()} == {"3f9a12c07be4"}
