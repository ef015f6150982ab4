"""Which streams a subject feeds, and so how many acknowledgements a publish has to wait for.

A stream outside a queue group acknowledges each message; of the streams of a group exactly one
receives it and acknowledges. Hence an expectation is a set of stream names, one of which answers.
Streams with `acks: envelope` or `off` answer a plain message with nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from jetstream_client._types import Stream
from jetstream_protocol.errors import InvalidRequestError, NoStreamError
from jetstream_protocol.subjects import check_literal

FRESH_SECONDS = 5.0
"""How long an answer of the registry is used again. A stream made meanwhile acknowledges too; its
acknowledgement is merely not waited for."""

STALE_SECONDS = 5.0
"""How much longer it is used while it is asked for anew, so that busy publishers never wait."""

SUBJECTS_MAX = 100_000  # Above it the cache begins anew: subjects may be without number.

Expectation = frozenset[str]


@dataclass(frozen=True, slots=True)
class Feed:
    """The streams of one subject: those that answer, as expectations, and all by name.

    expectations: who answers plain messages. enveloping: who answers envelopes. duplicate_window:
    seconds for which every stream recognises a message's id. services: whether a stream says by
    `acks: envelope` that others answer on the subject.
    """

    expectations: tuple[Expectation, ...]
    names: frozenset[str]
    full_names: frozenset[str] = frozenset()
    enveloping: tuple[Expectation, ...] = ()
    duplicate_window: float = 0.0
    services: bool = False

    @classmethod
    def of(cls, streams: Sequence[Stream]) -> Feed:
        names = frozenset(stream.name for stream in streams)
        return cls(
            _expectations([stream for stream in streams if stream.acks == "reply"]),
            names,
            frozenset(stream.full_name for stream in streams),
            _expectations([stream for stream in streams if stream.acks in ("reply", "envelope")]),
            min((stream.duplicate_window for stream in streams), default=0.0),
            any(stream.acks == "envelope" for stream in streams),
        )

    def recognises_ids(self, seconds: float) -> bool:
        """Whether a message with an id may be published again within so many seconds.

        Of the streams of a group another may get it, which does not know it.
        """
        groups = any(len(each) > 1 for each in self.expectations)
        return self.duplicate_window > seconds and not groups

    def is_covered_by(self, wanted: Sequence[Expectation]) -> bool:
        """Whether every stream of the subject is among those whose answer is waited for."""
        return self.names == frozenset().union(*wanted)

    def wanted(self, subject: str, acks: str | Sequence[str]) -> tuple[Expectation, ...]:
        """The expectations that `acks` asks for. Raises where they can never be met."""
        if not self.expectations:
            raise InvalidRequestError(
                f"no stream on {subject!r} acknowledges plain messages: "
                "publish with ack_level='none', or create a stream with acks 'reply'"
            )
        return self._chosen(self.expectations, subject, acks, "plain messages")

    def wanted_of_batches(self, subject: str, acks: str | Sequence[str]) -> tuple[Expectation, ...]:
        """The same of a batched publisher. Streams of a group cannot have one: each batch would
        reach another of them, and none would see their sequence."""
        if any(len(each) > 1 for each in self.enveloping):
            raise InvalidRequestError(
                f"streams of a group share {subject!r}: publish() to them, message by message"
            )
        if not self.enveloping:
            raise InvalidRequestError(f"no stream on {subject!r} acknowledges: all have acks 'off'")
        return self._chosen(self.enveloping, subject, acks, "batches")

    def _chosen(
        self,
        expectations: tuple[Expectation, ...],
        subject: str,
        acks: str | Sequence[str],
        what: str,
    ) -> tuple[Expectation, ...]:
        if acks in ("all", "any"):
            return expectations
        if isinstance(acks, str):
            raise InvalidRequestError(f"invalid acks {acks!r}: say 'all', 'any' or stream names")
        wanted: list[Expectation] = []
        for name in acks:
            bare = name.partition("@")[0]
            found = [each for each in expectations if bare in each]
            if name not in self.names | self.full_names:
                raise NoStreamError(f"no stream {name!r} listens on {subject!r}")
            if not found:
                raise InvalidRequestError(f"stream {name!r} does not acknowledge {what}")
            wanted.extend(each for each in found if each not in wanted)
        if not wanted:
            raise InvalidRequestError("acks names no stream: say 'all', 'any' or stream names")
        return tuple(wanted)


def _expectations(streams: Sequence[Stream]) -> tuple[Expectation, ...]:
    groups: dict[str, set[str]] = {}
    for stream in streams:
        if stream.group:
            groups.setdefault(stream.group, set()).add(stream.name)
    alone = (frozenset((stream.name,)) for stream in streams if not stream.group)
    return (*alone, *(frozenset(names) for names in groups.values()))


class Feeds:
    """A cache of feeds by subject. `streams_on` asks the registry."""

    def __init__(self, streams_on: Callable[[str], Awaitable[Sequence[Stream]]]) -> None:
        self._streams_on = streams_on
        self._cache: dict[str, tuple[float, Feed]] = {}  # the feed, and until when it is fresh
        self._asking: dict[str, asyncio.Task[Feed]] = {}

    def known(self, subject: str) -> Feed | None:
        """Without waiting: the feed, if it was asked for lately."""
        entry = self._cache.get(subject)
        if entry is None:
            return None
        fresh_until, feed = entry
        age = time.monotonic() - fresh_until
        if age > STALE_SECONDS:
            return None
        if age > 0:
            self._asked_for(subject)
        return feed

    async def ask(self, subject: str) -> Feed:
        """The feed as the registry knows it now. Raises NoStreamError when there is none.

        Publishers that ask at the same time share one call.
        """
        return await asyncio.shield(self._asked_for(subject))

    def _asked_for(self, subject: str) -> asyncio.Task[Feed]:
        task = self._asking.get(subject)
        if task is None:
            check_literal(subject)
            task = asyncio.get_running_loop().create_task(self._ask(subject))
            self._asking[subject] = task
            task.add_done_callback(lambda done: self._asked(subject, done))
        return task

    def _asked(self, subject: str, task: asyncio.Task[Feed]) -> None:
        self._asking.pop(subject, None)
        if not task.cancelled():
            task.exception()  # Whoever waited has seen it; perhaps nobody waits any more.

    async def _ask(self, subject: str) -> Feed:
        streams = await self._streams_on(subject)
        if not streams:
            self._cache.pop(subject, None)
            raise NoStreamError(
                f"no stream listens on {subject!r}: create one, "
                f"for example on {subject.partition('.')[0]}.>"
            )
        if len(self._cache) >= SUBJECTS_MAX:
            self._cache.clear()
        feed = Feed.of(streams)
        self._cache[subject] = (time.monotonic() + FRESH_SECONDS, feed)
        return feed

    def forget(self, subject: str) -> None:
        self._cache.pop(subject, None)

    def forget_all(self) -> None:
        """After a stream was created or deleted through this client."""
        self._cache.clear()

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
