"""A stream's answer to a publish, and the publish that waits for it.

The payload of an acknowledgement is the JSON that NATS clients know (docs/protocol.md, "Acks"):

    {"stream":"orders","seq":43}                                   seq = offset + 1
    {"error":{"code":…,"err_code":…,"description":…},"stream":"orders","seq":0}

Other clusters and NATS JetStream may hear the subject, and answer. Those answers do not count: a
client that knows its cluster's mark (ack_cluster.py) takes only answers with it.

`Pending` decides, without I/O, when a publish is done: see `PublishResult` for the rules.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from jetstream_client.publishing.subject_routes import Expectation, SubjectRoute
from jetstream_protocol import bounded_json
from jetstream_protocol.ack_cluster import SIGN
from jetstream_protocol.errors import CODES, InternalError, JetstreamError, UnknownOutcomeError

_BY_ERR_CODE: dict[int, type[JetstreamError]] = {
    spelling.nats_err_code: cls for cls, spelling in CODES.items()
}


OF_OTHERS = (
    "something else acknowledges on this subject: another cluster, or a stream of NATS JetStream"
)


def marked(route: SubjectRoute) -> str:
    """The end of a token, by which servers see whose answer is expected."""
    return f"{SIGN}{route.cluster}" if route.cluster else ""


@dataclass(frozen=True, slots=True)
class Ack:
    """Stream `stream` has the message at `offset`. duplicate: it had the message already."""

    stream: str
    offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The streams' answers to one publish. `stream` and `offset` are those of the first one. acks:
    all answers, nearly always one. With acks="all" there is one from every stream that the subject
    feeds, that of the oldest stream first; with names one from each of these, in their order; with
    "any" at least one. With ack_level="none" there is none: `stream` is "" and `offset` -1.
    """

    subject: str
    stream: str = ""
    offset: int = -1
    duplicate: bool = False
    # Kept apart, so that the usual result is one object: programs hold a hundred thousand of them.
    _others: tuple[Ack, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, subject: str, acks: tuple[Ack, ...]) -> PublishResult:
        """The result that consists of these answers, at least one."""
        first = acks[0]
        return cls(subject, first.stream, first.offset, first.duplicate, acks[1:])

    @property
    def acks(self) -> tuple[Ack, ...]:
        """All answers."""
        if not self.stream:
            return ()
        return (Ack(self.stream, self.offset, self.duplicate), *self._others)


def parse_ack(payload: bytes, cluster: str = "") -> Ack | tuple[str, JetstreamError] | None:
    """The ack; or the stream's name ("" if the answer has none) and the reason why it refused.
    None: it is not of that cluster. cluster: a mark; "": any will do."""
    try:
        answer = bounded_json.loads(payload)
        if cluster and answer.get("cluster") != cluster:
            return None
        stream = str(answer.get("stream", ""))
        error = answer.get("error")
        if error is None:
            return Ack(stream, int(answer["seq"]) - 1, bool(answer.get("duplicate", False)))
        description = in_offsets(str(error["description"]), stream)
        cls = _BY_ERR_CODE.get(int(error["err_code"]), InternalError)
    except (ValueError, KeyError, TypeError, AttributeError):
        quoted = payload[:64].decode("utf-8", "backslashreplace")
        return "", InternalError(
            f"something answered the publish with {quoted!r}, which is no acknowledgement: "
            "does another service listen on this subject?"
        )
    return stream, cls(description)


def in_offsets(description: str, stream: str) -> str:
    """Translate JetStream's error text for a condition that does not hold into an error with
    offsets."""
    _, separator, last = description.partition("wrong last sequence: ")
    if not separator:
        return description
    return f"the next offset of stream {stream!r} is {last}, not the expected one"


class Pending:
    """A publish on its way. `future` gets the PublishResult or the error."""

    __slots__ = (
        "acks",
        "attempt",
        "deadline",
        "expected",
        "future",
        "missing",
        "of_others",
        "one_is_enough",
        "refusals",
        "route",
        "subject",
        "target",
        "token",
    )

    def __init__(
        self,
        token: str,
        subject: str,
        route: SubjectRoute,
        expected: tuple[Expectation, ...],
        one_is_enough: bool,
        deadline: float,
        attempt: int = 1,
        target: str = "",
    ) -> None:
        """target: the NATS subject that the message is sent on, if that is not `subject`."""
        self.token = token
        self.subject = subject
        self.target = target or subject
        self.route = route
        self.expected = self.missing = expected
        self.one_is_enough = one_is_enough
        self.deadline = deadline
        self.attempt = attempt
        self.future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.acks: tuple[Ack, ...] = ()
        self.of_others = False
        """Whether something else than the streams of this cluster has answered."""
        self.refusals: tuple[JetstreamError, ...] = ()

    @property
    def acked(self) -> frozenset[str]:
        """The streams that have acknowledged it."""
        return frozenset(ack.stream for ack in self.acks)

    def answered(self, payload: bytes) -> bool:
        """Take in one answer. True: the publish is done, and the future set."""
        answer = parse_ack(payload, self.route.cluster)
        if answer is None:
            self.of_others = True
            return False
        if isinstance(answer, Ack):
            self.acks += (answer,)
            self._strike(answer.stream)
        else:
            stream, error = answer
            if self._strike(stream):
                self.refusals += (error,)
        if self.missing and not (self.one_is_enough and self.acks):
            return False
        if self.refusals and not (self.one_is_enough and self.acks):
            self.fail(self._refusal_error())
        elif not self.future.done():
            self.future.set_result(PublishResult.of(self.subject, self._ordered()))
        return True

    def _ordered(self) -> tuple[Ack, ...]:
        """The answers in the order of the expectations, and not in that of their arrival."""
        if len(self.acks) == 1:
            return self.acks
        places = {name: at for at, names in enumerate(self.expected) for name in names}
        return tuple(sorted(self.acks, key=lambda ack: places.get(ack.stream, len(places))))

    def _strike(self, stream: str) -> bool:
        """Note that the stream has answered; an answer without a name counts for the first
        expectation. False: no publish waits for that stream, because the client does not know it
        yet, or did not ask it."""
        for index, expectation in enumerate(self.missing):
            if stream in expectation or not stream:
                self.missing = self.missing[:index] + self.missing[index + 1 :]
                return True
        return False

    def _refusal_error(self) -> JetstreamError:
        """The first one. One that leaves the outcome unknown comes before those that do not."""
        unknown = (each for each in self.refusals if isinstance(each, UnknownOutcomeError))
        error = next(unknown, self.refusals[0])
        for ack in self.acks:
            error.add_note(f"stream {ack.stream!r} has stored the message, at offset {ack.offset}")
        return error

    def fail(self, error: JetstreamError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # The caller may have left: asyncio need not log that.
