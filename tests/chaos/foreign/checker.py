"""What publishers in other languages were told, held against the log: a name for what must not be.

=================  ============================================================================
lost               told it is stored, and it is not in the log
elsewhere          told it is stored, and it is at another offset
refused, stored    told it is not stored, or that nobody listens, and it is in the log
stored twice       a message stands in the log twice
changed            a record is none of the messages, to the byte, or has another message id
reordered          messages that are published once stand in another order
contradiction      told of two offsets, or that it is stored and that it is not
not understood     an answer that is not as docs/protocol.md says, or one of which the client's
                   library makes something else
given up           a message with an id was never stored
=================  ============================================================================

An answer with one of UNKNOWN's codes, or none, says nothing: the message may be stored, once, or
not. Everything here looks at what others have observed, and touches nothing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from jetstream_protocol.errors import CODES, UnknownOutcomeError
from tests.chaos.damage.checker import Anomaly
from tests.chaos.foreign.programs import Line, Mode

UNKNOWN = {
    spelling.nats_err_code
    for error, spelling in CODES.items()
    if issubclass(error, UnknownOutcomeError)
}
"""Codes of answers that leave open whether the message is stored."""
MEANINGS = {spelling.nats_err_code: spelling.nats_code for spelling in CODES.values()}
SILENCE = ("timeout", "deadline exceeded")
"""How the libraries call it that no answer came, in part."""
SHOWN = 3


class Kind(StrEnum):
    LOST = "lost"
    ELSEWHERE = "elsewhere"
    REFUSED_STORED = "refused, stored"
    TWICE = "stored twice"
    CHANGED = "changed"
    REORDERED = "reordered"
    CONTRADICTION = "contradiction"
    NOT_UNDERSTOOD = "not understood"
    GIVEN_UP = "given up"


class Said(StrEnum):
    """What an answer means to whoever published."""

    STORED = "stored"
    REFUSED = "refused"
    NOBODY_LISTENS = "nobody listens"
    UNKNOWN = "unknown"
    SILENCE = "no answer"


NOT_STORED = {Said.REFUSED, Said.NOBODY_LISTENS}


class Answer(NamedTuple):
    """offset: of a message that is stored, else -1."""

    said: Said
    offset: int = -1
    duplicate: bool = False


class Record(NamedTuple):
    """Of the log. message_id: b"" for none."""

    offset: int
    subject: str
    value: bytes
    message_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Books:
    """What one publisher sent and was told. sent: the numbers below were published.

    streams: the name of the stream of each of its subjects. detours: NATS servers were away, so
    that its messages may have overtaken each other, and its library says what it likes.
    """

    name: str
    mode: Mode
    streams: dict[str, str]
    lines: Sequence[Line]
    sent: int
    unreadable: Sequence[str] = ()
    detours: bool = False

    def message(self, number: int) -> tuple[str, bytes]:
        """Its subject and its value."""
        subject = list(self.streams)[number % len(self.streams)]
        return subject, f"{subject} {number} \u2603".encode()


@dataclass(slots=True)
class Verdict:
    """anomalies: none if all is well. counts: how often each thing was said."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[Said] = field(default_factory=Counter)


def check(books: Books, log: Iterable[Record]) -> Verdict:
    """log: all records of the publisher's subjects."""
    checking = _Checking(books, log)
    checking.check()
    return checking.verdict


class _Checking:
    def __init__(self, books: Books, log: Iterable[Record]) -> None:
        self.verdict = Verdict()
        self._books = books
        self._log = [record for record in log if record.subject in books.streams]
        self._answers: defaultdict[int, list[Answer]] = defaultdict(list)
        self._at: defaultdict[int, list[int]] = defaultdict(list)

    def _found(self, kind: Kind, what: Sequence[object]) -> None:
        if what:
            more = f" and {len(what) - SHOWN} more" if len(what) > SHOWN else ""
            shown = "; ".join(map(str, what[:SHOWN])) + more
            self.verdict.anomalies.append(Anomaly(kind, self._books.name, shown))

    def check(self) -> None:
        self._found(Kind.NOT_UNDERSTOOD, [*self._books.unreadable, *self._understand()])
        self._found(Kind.CHANGED, list(self._place()))
        at, answers, sent = self._at, self._answers, range(self._books.sent)
        told = {
            n: {each.offset for each in answers[n] if each.said is Said.STORED} for n in answers
        }
        said = {n: {each.said for each in answers[n]} for n in answers}
        self.verdict.counts[Said.SILENCE] += sum(not said.get(n) for n in sent)
        stored = {n: next(iter(offsets)) for n, offsets in told.items() if offsets}
        self._found(Kind.LOST, [f"{n} at {offset}" for n, offset in stored.items() if not at[n]])
        self._found(
            Kind.ELSEWHERE,
            [
                f"{n} told {offset}, at {at[n]}"
                for n, offset in stored.items()
                if at[n] and offset not in at[n]
            ],
        )
        self._found(Kind.TWICE, [f"{n} at {at[n]}" for n in sent if len(at[n]) > 1])
        refused = [n for n in said if said[n] and said[n] <= NOT_STORED and at[n]]
        self._found(Kind.REFUSED_STORED, [f"{n} {sorted(said[n])} at {at[n]}" for n in refused])
        self._found(Kind.CONTRADICTION, list(self._contradictions(told, said)))
        if self._books.mode == "once":
            self._found(Kind.REORDERED, list(self._disorder()))
        else:
            self._found(Kind.GIVEN_UP, [n for n in sent if n not in stored])

    def _understand(self) -> Iterator[str]:
        """Fill `_answers`; returns what makes no sense."""
        for line in self._books.lines:
            if "sent" in line:
                continue
            try:
                number = int(line["number"])
                stream = self._books.streams[self._books.message(number)[0]]
                answer = understand(line, stream, detours=self._books.detours)
            except (ValueError, KeyError, TypeError) as error:
                yield f"{line}: {error}"
                continue
            self._answers[number].append(answer)
            self.verdict.counts[answer.said] += 1

    def _place(self) -> Iterator[str]:
        """Fill `_at`; returns the records that nobody has published."""
        numbers = {self._books.message(number): number for number in range(self._books.sent)}
        has_ids = self._books.mode == "repeat"
        for record in self._log:
            number = numbers.get((record.subject, record.value))
            message_id = f"{record.subject} {number}".encode() if has_ids else b""
            if number is None or record.message_id != message_id:
                yield str(record)
            else:
                self._at[number].append(record.offset)

    def _contradictions(
        self, told: dict[int, set[int]], said: dict[int, set[Said]]
    ) -> Iterator[str]:
        for number, answers in self._answers.items():
            if len(told[number]) > 1:
                yield f"{number} told {sorted(told[number])}"
            elif self._books.mode == "once":
                if told[number] and said[number] & NOT_STORED:
                    yield f"{number} {sorted(said[number])}"
            elif answers[-1].duplicate and {each.said for each in answers[:-1]} <= NOT_STORED:
                # It was stored by an attempt of which the publisher was told that it is not.
                yield f"{number} is a duplicate, after {[str(each.said) for each in answers[:-1]]}"

    def _disorder(self) -> Iterator[str]:
        if self._books.detours:
            return
        for subject in self._books.streams:
            by_offset = sorted(
                (offset, number)
                for number, offsets in self._at.items()
                for offset in offsets[:1]
                if self._books.message(number)[0] == subject
            )
            for (_, one), (offset, other) in pairwise(by_offset):
                if other < one:
                    yield f"{other} after {one}, at {offset} of {subject}"


def understand(line: Line, stream: str, *, detours: bool = False) -> Answer:
    """What a line of a publisher means. Raises ValueError, KeyError, TypeError if it means
    nothing."""
    if "answer" in line:
        return _understand_answer(json.loads(line["answer"]), stream)
    if "no_responders" in line:
        return Answer(Said.NOBODY_LISTENS)
    if "err_code" in line:
        return _refusal(line)
    if "seq" in line:
        return _stored(line, stream)
    if not detours and not any(words in line["error"].lower() for words in SILENCE):
        raise ValueError("it is not said that no answer came")
    return Answer(Said.SILENCE)


def _understand_answer(answer: Line, stream: str) -> Answer:
    if "error" not in answer:
        return _stored(answer, stream)
    if answer["stream"] != stream or answer["seq"] != 0 or "code" not in answer["error"]:
        raise ValueError("not as a refusal is")
    return _refusal(answer["error"])


def _stored(answer: Line, stream: str) -> Answer:
    if answer["stream"] != stream or answer["seq"] < 1:
        raise ValueError("not as an ack is")
    return Answer(Said.STORED, answer["seq"] - 1, bool(answer.get("duplicate")))


def _refusal(error: Line) -> Answer:
    code = error["err_code"]
    if error.get("code", MEANINGS[code]) != MEANINGS[code] or not error["description"]:
        raise ValueError("an error that docs/protocol.md does not have")
    return Answer(Said.UNKNOWN if code in UNKNOWN else Said.REFUSED)
