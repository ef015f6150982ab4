"""What a stream answers to a publish, and the publish that waits for it.

The payload of an acknowledgement is the JSON that NATS clients know (docs/protocol.md, "Acks"):

    {"stream":"orders","seq":43}                                   seq = offset + 1
    {"error":{"code":…,"err_code":…,"description":…},"stream":"orders","seq":0}

`Pending` decides, without I/O, when a publish is done: see `PublishResult` for the rules.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from jetstream_client._feeds import Expectation
from jetstream_protocol.errors import CODES, InternalError, JetstreamError

_BY_ERR_CODE: dict[int, type[JetstreamError]] = {
    spelling.nats_err_code: cls for cls, spelling in CODES.items()
}


@dataclass(frozen=True, slots=True)
class Ack:
    """Stream `stream` has the message at `offset`. duplicate: it had it already."""

    stream: str
    offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PublishResult(Sequence[Ack]):
    """The acknowledgements of one publish, in order of arrival; usually one.

    With acks="all" one of every stream the subject feeds, with "any" at least one, with names one
    of each of these; none at all with ack_level="none". `stream` and `offset` are the first's.
    """

    subject: str
    acks: tuple[Ack, ...]

    @property
    def stream(self) -> str:
        return self.acks[0].stream

    @property
    def offset(self) -> int:
        return self.acks[0].offset

    @property
    def duplicate(self) -> bool:
        return self.acks[0].duplicate

    def __len__(self) -> int:
        return len(self.acks)

    def __iter__(self) -> Iterator[Ack]:
        return iter(self.acks)

    @overload
    def __getitem__(self, index: int) -> Ack: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Ack, ...]: ...
    def __getitem__(self, index: int | slice) -> Ack | tuple[Ack, ...]:
        return self.acks[index]


def parse_ack(payload: bytes) -> Ack | tuple[str, JetstreamError]:
    """The ack, or the stream's name ("" if unsaid) and why it refused."""
    try:
        answer = json.loads(payload)
        stream = str(answer.get("stream", ""))
        error = answer.get("error")
        if error is None:
            return Ack(stream, int(answer["seq"]) - 1, bool(answer.get("duplicate", False)))
        description = str(error["description"])
        cls = _BY_ERR_CODE.get(int(error["err_code"]), InternalError)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        quoted = payload[:64].decode("utf-8", "backslashreplace")
        return "", InternalError(
            f"something answered the publish with {quoted!r}, which is no acknowledgement: "
            "does another service listen on this subject?"
        )
    return stream, cls(description)


class Pending:
    """A publish on its way. `future` gets the PublishResult or the error."""

    __slots__ = ("acks", "deadline", "future", "missing", "one_is_enough", "refusals", "subject")

    def __init__(
        self,
        subject: str,
        expected: tuple[Expectation, ...],
        one_is_enough: bool,
        deadline: float,
    ) -> None:
        self.subject = subject
        self.missing: Sequence[Expectation] = expected
        self.one_is_enough = one_is_enough
        self.deadline = deadline
        self.future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.acks: tuple[Ack, ...] = ()
        self.refusals: list[JetstreamError] = []

    def answered(self, payload: bytes) -> bool:
        """Take in one answer. True: the publish is done, and the future set."""
        answer = parse_ack(payload)
        if isinstance(answer, Ack):
            self.acks += (answer,)
            self._strike(answer.stream)
        else:
            stream, error = answer
            if self._strike(stream):
                self.refusals.append(error)
        if self.missing and not (self.one_is_enough and self.acks):
            return False
        if self.refusals and not (self.one_is_enough and self.acks):
            self.fail(self._refusal())
        elif not self.future.done():
            self.future.set_result(PublishResult(self.subject, self.acks))
        return True

    def _strike(self, stream: str) -> bool:
        """The stream has spoken; an answer without a name counts for the first expectation.

        False: nobody waits for that stream. It is younger than our knowledge, or not asked for.
        """
        for index, expectation in enumerate(self.missing):
            if stream in expectation or not stream:
                self.missing = [*self.missing[:index], *self.missing[index + 1 :]]
                return True
        return False

    def _refusal(self) -> JetstreamError:
        error = self.refusals[0]
        for ack in self.acks:
            error.add_note(f"stream {ack.stream!r} has stored the message, at offset {ack.offset}")
        return error

    def fail(self, error: JetstreamError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
