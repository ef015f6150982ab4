"""Each anomaly, planted into what publishers of other languages were told, is found and named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetstream_protocol.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.stream.acks import AckFormat, Answer
from tests.chaos.foreign.checker import Books, Kind, Record, Said, check
from tests.chaos.foreign.programs import Line

STREAMS = {"loose.a": "loose", "strict.a": "strict"}
LOOSE, STRICT = AckFormat("loose"), AckFormat("strict")
REFUSED = STRICT.nack_payload(NotEnoughReplicasError("too few")).decode()
OPEN = STRICT.nack_payload(NotEnoughReplicasAfterAppendError("too few")).decode()


def acked(offset: int, format_: AckFormat = LOOSE) -> str:
    return format_.answer(Answer(b"r", offset + 1)).split(b"\r\n")[1].decode()


def once(lines: list[Line], sent: int = 6) -> Books:
    return Books("a once", "once", STREAMS, lines, sent)


def repeat(lines: list[Line], sent: int = 2) -> Books:
    return Books("a repeat", "repeat", {"loose.a": "loose"}, lines, sent)


def record(offset: int, number: int, *, has_id: bool = False) -> Record:
    """As it is stored; of those published once, even ones are in loose and odd ones in strict."""
    subject = "loose.a" if has_id or number % 2 == 0 else "strict.a"
    value = f"{subject} {number} \u2603".encode()
    return Record(offset, subject, value, f"{subject} {number}".encode() if has_id else b"")


# 0 and 1 are stored, 2 met nobody, 3 is refused, 4 has no answer, 5 leaves it open.
TOLD: list[Line] = [
    {"number": 0, "answer": acked(0)},
    {"number": 1, "answer": acked(0, STRICT)},
    {"number": 2, "no_responders": True},
    {"number": 3, "answer": REFUSED},
    {"number": 5, "answer": OPEN},
    {"sent": 6},
]
LOG = [record(0, 0), record(0, 1)]
STORED_0: Line = {"number": 0, "stream": "loose", "seq": 1, "duplicate": False}
STORED_1: Line = {"number": 1, "stream": "loose", "seq": 2, "duplicate": False}
WITH_IDS = [record(0, 0, has_id=True), record(1, 1, has_id=True)]


def kinds(books: Books, log: list[Record]) -> list[Any]:
    return [anomaly.kind for anomaly in check(books, log).anomalies]


@pytest.mark.parametrize(
    "more",
    [[], [record(1, 4)], [record(1, 5)], [record(1, 4), record(1, 5)]],
    ids=["neither", "without an answer", "left open", "both"],
)
def test_what_nobody_promised_may_be_stored_or_not(more: list[Record]) -> None:
    verdict = check(once(TOLD), LOG + more)
    assert verdict.anomalies == []
    assert verdict.counts == {
        Said.STORED: 2, Said.REFUSED: 1, Said.NOBODY_LISTENS: 1, Said.UNKNOWN: 1, Said.SILENCE: 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "log", "kind"),
    [
        (TOLD, LOG[1:], Kind.LOST),
        (TOLD, [record(7, 0), LOG[1]], Kind.ELSEWHERE),
        (TOLD, [*LOG, record(1, 2)], Kind.REFUSED_STORED),
        (TOLD, [*LOG, record(1, 3)], Kind.REFUSED_STORED),
        (TOLD, [*LOG, record(1, 0)], Kind.TWICE),
        (TOLD, [*LOG, record(1, 4), record(2, 4)], Kind.TWICE),
        (TOLD, [*LOG, record(1, 6)], Kind.CHANGED),
        (TOLD, [*LOG, LOG[0]._replace(value=b"loose.a 4 ?", offset=1)], Kind.CHANGED),
        (TOLD, [*LOG, record(1, 4)._replace(message_id=b"x")], Kind.CHANGED),
        (TOLD, [LOG[0], record(0, 5), LOG[1]._replace(offset=1)], Kind.ELSEWHERE),
        ([*TOLD, {"number": 0, "answer": acked(3)}], LOG, Kind.CONTRADICTION),
        ([*TOLD, {"number": 1, "answer": REFUSED}], LOG, Kind.CONTRADICTION),
        ([*TOLD, {"number": 4, "answer": acked(1, STRICT)}], LOG, Kind.NOT_UNDERSTOOD),
        ([*TOLD, {"number": 4, "answer": "+OK"}], LOG, Kind.NOT_UNDERSTOOD),
        ([*TOLD, {"number": 4, "answer": '{"stream":"loose"}'}], LOG, Kind.NOT_UNDERSTOOD),
        ([*TOLD, {"number": 5, "answer": REFUSED.replace("20012", "9")}], LOG, Kind.NOT_UNDERSTOOD),
    ],
)  # fmt: skip
def test_what_must_not_be_is_found(lines: list[Line], log: list[Record], kind: Kind) -> None:
    assert kind in kinds(once(lines), log)


def test_messages_that_overtook_each_other_are_found_unless_nats_was_away() -> None:
    log = [LOG[1], record(0, 4), record(1, 2)]
    books = Books("a once", "once", STREAMS, [], 6)
    assert kinds(books, log) == [Kind.REORDERED]
    away = Books("a once", "once", STREAMS, [], 6, detours=True)
    assert kinds(away, log) == []


def test_lines_that_are_no_json_are_found() -> None:
    books = Books("a once", "once", STREAMS, TOLD, 6, unreadable=["Traceback"])
    assert kinds(books, LOG) == [Kind.NOT_UNDERSTOOD]


def error(number: int, kind: type[Exception]) -> Line:
    said = json.loads(LOOSE.nack_payload(kind("why")))["error"]  # type: ignore[arg-type]
    return {"number": number, **said}


@pytest.mark.parametrize(
    "before",
    [[], [error(0, NotEnoughReplicasError)], [{"number": 0, "no_responders": True}]],
    ids=["at once", "refused", "nobody listened"],
)
def test_a_message_with_an_id_is_stored_in_the_end(before: list[Line]) -> None:
    assert kinds(repeat([*before, STORED_0, STORED_1]), WITH_IDS) == []


@pytest.mark.parametrize(
    "before", [error(0, UnknownOutcomeError), {"number": 0, "error": "nats: timeout"}]
)
def test_a_duplicate_follows_what_left_it_open(before: Line) -> None:
    assert kinds(repeat([before, {**STORED_0, "duplicate": True}, STORED_1]), WITH_IDS) == []


@pytest.mark.parametrize(
    ("lines", "log", "kind"),
    [
        ([STORED_0], WITH_IDS, Kind.GIVEN_UP),
        ([STORED_0, STORED_1], [*WITH_IDS, record(2, 1, has_id=True)], Kind.TWICE),
        ([STORED_0, STORED_1], WITH_IDS[1:], Kind.LOST),
        ([{**STORED_0, "stream": "strict"}, STORED_1], WITH_IDS, Kind.NOT_UNDERSTOOD),
        ([{"number": 0, "error": "bad json"}, STORED_0, STORED_1], WITH_IDS, Kind.NOT_UNDERSTOOD),
        (
            [error(0, NotEnoughReplicasError), {**STORED_0, "duplicate": True}, STORED_1],
            WITH_IDS,
            Kind.CONTRADICTION,
        ),
        (
            [{"number": 0, "no_responders": True}, {**STORED_0, "duplicate": True}, STORED_1],
            WITH_IDS,
            Kind.CONTRADICTION,
        ),
    ],
)
def test_what_must_not_be_of_messages_with_ids_is_found(
    lines: list[Line], log: list[Record], kind: Kind
) -> None:
    assert kind in kinds(repeat(lines), log)
